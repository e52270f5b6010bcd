package workloadprocessor

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// What agents say of who has a device. The names are those of the gpu receiver.
const (
	allocationMetric  = "gpu.allocation"
	unallocatedMetric = "gpu.unallocated"
	uuidKey           = "gpu.uuid"
	indexKey          = "gpu.index"
	partitionKey      = "gpu.partition.id"
	profileKey        = "gpu.partition.profile"
	deviceKeys        = "gpu." // all that begin so, except those of workloads, are of the device
)

// Bounds of what is remembered of one workload.
const (
	maxTags  = 64
	maxValue = 1024
)

// learn takes in what agents say in md. A batch has a whole tick of theirs: a holder that
// is not in it is gone.
func (f *fleet) learn(md pmetric.Metrics) {
	var drafts map[name]*member
	for _, rm := range md.ResourceMetrics().All() {
		var hosts [2]string
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				free := m.Name() == unallocatedMetric
				if m.Name() != allocationMetric && !free || m.Type() != pmetric.MetricTypeGauge {
					continue
				}
				if drafts == nil {
					drafts = map[name]*member{}
				}
				hosts = hostsOf(rm.Resource().Attributes())
				for _, dp := range m.Gauge().DataPoints().All() {
					f.draft(drafts, hosts, dp, free)
				}
			}
		}
	}
	f.merge(drafts)
}

// hostsOf returns the names of the node that an agent is on.
func hostsOf(attrs pcommon.Map) [2]string {
	var hosts [2]string
	for i, key := range []string{"host.name", "k8s.node.name"} {
		if v, ok := attrs.Get(key); ok {
			hosts[i] = text(v)
		}
	}
	if hosts[0] == "" {
		hosts[0] = hosts[1]
	}
	return hosts
}

// draft adds one point to what is to be learned. free: the point is what nobody holds.
func (f *fleet) draft(drafts map[name]*member, hosts [2]string, dp pmetric.NumberDataPoint, free bool) {
	attrs := dp.Attributes()
	get := func(key string) string {
		if v, ok := attrs.Get(key); ok {
			return text(v)
		}
		return ""
	}
	key := name{hosts[0], get(uuidKey)}
	if key.host == "" || key.device == "" {
		return
	}
	d := drafts[key]
	if d == nil || d.tick < dp.Timestamp() { // of two ticks in one batch the newer counts
		d = &member{tick: dp.Timestamp()}
		drafts[key] = d
	} else if d.tick > dp.Timestamp() {
		return
	}
	partition := get(partitionKey)
	index := get(indexKey)
	for _, host := range hosts {
		d.call(name{host, key.device})
		if index != "" {
			d.call(name{host, "#" + index})
		}
	}
	if dp.Flags().NoRecordedValue() || free && dp.DoubleValue() == 0 {
		return // the holder is gone, or nothing is free; the other points of this tick are who is left
	}
	h := holder{kind: get(workload.KeyKind), partition: partition, profile: get(profileKey)}
	var ok bool
	if h.tags, ok = learnTags(attrs); !ok || !d.hold(h) {
		f.refused.Add(1)
		d.hold(holder{kind: workload.Other, partition: partition}) // somebody has it
		return
	}
	if partition != "" {
		for _, host := range hosts {
			d.call(name{host, partition})
		}
	}
}

// learnTags returns the attributes of the workload of a point, false if they are more
// than any agent sends.
func learnTags(attrs pcommon.Map) ([]tag, bool) {
	list := make([]tag, 0, attrs.Len())
	for key, v := range attrs.All() {
		if strings.HasPrefix(key, deviceKeys) && !strings.HasPrefix(key, workload.OwnPrefix) {
			continue
		}
		if v.Type() != pcommon.ValueTypeStr || v.Str() == "" {
			continue
		}
		if len(key) > maxName || len(v.Str()) > maxValue || len(list) == maxTags {
			return nil, false
		}
		list = append(list, tag{Key: key, Value: v.Str()})
	}
	workload.SortAttributes(list)
	return list, true
}
