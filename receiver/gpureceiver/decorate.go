package gpureceiver

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/node"
)

// decoration is an attribute that some points have and others do not. mdatagen would
// search every recorded point for an optional attribute, so they are added afterwards.
type decoration struct {
	key, description string
	value            func(subject) string
}

var decorations = append([]decoration{
	{
		"gpu.partition.id", "Identifier of the partition (NVIDIA: UUID of the MIG device) the value is of. Absent: the whole device.",
		subject.partition,
	},
	{
		"gpu.partition.profile", "Size of the partition as its vendor names it, such as 1g.18gb.",
		func(s subject) string { return s.profile },
	},
}, owning...)

// owning are the attributes of a workload. They are on what a workload uses, and on the
// gauges of a device or partition that one workload alone has; never on the sums of a
// device, whose series live as long as it does.
var owning = []decoration{
	{"gpu.workload.kind", "What the workload is: deployment, job and so on, container, process; unallocated (nobody holds it), unattributed (used, and nobody knows by whom) or other (those beyond a cap).", func(s subject) string { return s.workload().Kind }},
	{"gpu.workload.name", "Name of the workload that its users know: of the deployment, not of the pod.", func(s subject) string { return s.workload().Name }},
	{"gpu.workload.team", "Who the workload belongs to, by a label or a mapping.", func(s subject) string { return s.workload().Team }},
	known("k8s.namespace.name", "Namespace of the pod."),
	known("k8s.pod.name", "Name of the pod."),
	known("k8s.pod.uid", "UID of the pod."),
	known("k8s.container.name", "Name of the container in the pod."),
	known("k8s.deployment.name", "Name of the deployment, if that is what the pod belongs to; likewise for the next."),
	known("k8s.replicaset.name", "Name of the replica set."),
	known("k8s.statefulset.name", "Name of the stateful set."),
	known("k8s.daemonset.name", "Name of the daemon set."),
	known("k8s.job.name", "Name of the job."),
	known("k8s.cronjob.name", "Name of the cron job."),
	known("slurm.cluster", "Cluster of the Slurm job."),
	known("slurm.job.id", "Number of the Slurm job; of an array, of the task."),
	known("slurm.job.name", "Name of the Slurm job."),
	known("slurm.user", "User of the Slurm job."),
	known("slurm.account", "Account of the Slurm job."),
	known("slurm.partition", "Partition of the Slurm job."),
	known("slurm.qos", "Quality of service of the Slurm job."),
	known("slurm.array.job.id", "Number of the array that the Slurm job is a task of."),
	known("slurm.array.task.id", "Number of the task in its array."),
	known("container.id", "Identifier of a container that is not of a pod."),
	known("container.name", "Name of a container that is not of a pod."),
	known("container.image.name", "Image of a container that is not of a pod."),
	known("user.name", "User of a process that is in no container."),
}

// known is an attribute that sources of workloads know.
func known(key, description string) decoration {
	return decoration{key, description, func(s subject) string { return s.workload().Attributes[key] }}
}

// decorate adds what the builder could not: the attributes above, and when each
// counter began. Points come in with a key of their subject in gpu.uuid and leave with
// the UUID of the physical device.
func decorate(md pmetric.Metrics, t node.Tick, runtimes epochs) {
	all := subjects(t, runtimes)
	started := pcommon.NewTimestampFromTime(t.Started)
	eachMetric(md, func(m pmetric.Metric) {
		points, counts := pointsOf(m)
		points.each(func(dp dataPoint) {
			start := started
			if uuid, ok := dp.Attributes().Get("gpu.uuid"); ok {
				s := all[uuid.Str()]
				start = pcommon.NewTimestampFromTime(s.beginning(m, dp))
				dress(dp.Attributes(), s)
				// Others join on gpu.info: it has one series whoever the owner is.
				if s.workload() != nil && (s.holder != nil || !counts && m.Name() != "gpu.info") {
					dressOwner(dp.Attributes(), s)
				}
			}
			if counts {
				dp.SetStartTimestamp(start)
			} else {
				dp.SetStartTimestamp(0) // a gauge has no beginning
			}
		})
	})
}

// dress adds what the device is.
func dress(attrs pcommon.Map, s subject) {
	attrs.RemoveIf(func(_ string, v pcommon.Value) bool { return v.Type() == pcommon.ValueTypeStr && v.Str() == "" })
	if _, ok := attrs.Get("gpu.uuid"); !ok || s.ID.Parent != "" || s.holder != nil {
		attrs.PutStr("gpu.uuid", s.ID.Physical())
	}
	for _, d := range decorations[:len(decorations)-len(owning)] {
		if v := d.value(s); v != "" {
			attrs.PutStr(d.key, v)
		}
	}
}

// dressOwner adds whose it is.
func dressOwner(attrs pcommon.Map, s subject) {
	attrs.EnsureCapacity(attrs.Len() + len(s.owner))
	for _, pair := range s.owner {
		attrs.PutStr(pair[0], pair[1])
	}
}

// vital are the metrics that no cap cuts: what is up, and what was cut.
func vital(m pmetric.Metric) bool {
	return m.Name() == "gpu.up" || strings.HasPrefix(m.Name(), "gpumeter.")
}

// trim removes points until at most limit are left and returns how many it removed.
// Every metric keeps as many as the largest may have, so those with few series, which
// say most, stay whole.
func trim(md pmetric.Metrics, limit int) int {
	if md.DataPointCount() <= limit {
		return 0
	}
	before := md.DataPointCount()
	var sizes []int
	eachMetric(md, func(m pmetric.Metric) {
		points, _ := pointsOf(m)
		if vital(m) {
			limit -= points.Len()
			return
		}
		sizes = append(sizes, points.Len())
	})
	keep := level(sizes, limit)
	eachMetric(md, func(m pmetric.Metric) {
		if vital(m) {
			return
		}
		points, _ := pointsOf(m)
		points.keep(keep)
	})
	return before - md.DataPointCount()
}

// level returns the largest n for which the sum of min(size, n) is within limit.
func level(sizes []int, limit int) int {
	n, sum := 0, 0
	for {
		wider := 0
		for _, s := range sizes {
			if s > n {
				wider++
			}
		}
		if wider == 0 || sum+wider > limit {
			return n
		}
		n, sum = n+1, sum+wider
	}
}
