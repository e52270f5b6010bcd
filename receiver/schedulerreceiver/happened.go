package schedulerreceiver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// Event names of the records of a job.
const (
	eventJobStarted = "scheduler.job.started"
	eventJobEnded   = "scheduler.job.ended"
)

// maxUntold bounds the events that are kept while the pipeline refuses them.
const maxUntold = 10_000

const leftOutEvents = "Left out starts and ends of pods: too many at once"

// tell sends a record for each pod that has started or ended.
func (r *kubernetesReceiver) tell(ctx context.Context, now time.Time) {
	list := r.watcher.Events()
	if r.logs == nil {
		return
	}
	if list = append(r.untold, list...); len(list) == 0 {
		return
	}
	over := max(0, len(list)-maxUntold)
	list, r.lost = list[over:], r.lost+over
	err := r.logs.ConsumeLogs(ctx, r.records(list, now))
	switch r.untold = nil; {
	case consumererror.IsPermanent(err):
		r.lost += len(list)
	case err != nil:
		r.untold = list
	}
	switch refused := err != nil; {
	case ctx.Err() != nil, refused && r.refusedLogs:
		return
	case refused:
		r.set.Logger.Error("The pipeline refuses log records of Kubernetes", zap.Error(err))
		r.refusedLogs = true
		return
	case r.refusedLogs:
		r.set.Logger.Info("The pipeline accepts log records of Kubernetes again", zap.Int("left_out", r.lost))
	case r.lost > 0:
		r.set.Logger.Warn(leftOutEvents, zap.Int("left_out", r.lost))
	}
	r.refusedLogs, r.lost = false, 0
}

func (r *kubernetesReceiver) records(list []kube.Event, now time.Time) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("service.name", "gpumeter")
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(r.set.BuildInfo.Version)
	sl.LogRecords().EnsureCapacity(len(list))
	for i := range list {
		podRecord(sl.LogRecords().AppendEmpty(), &list[i], r.cfg.Kubernetes.Cluster, now)
	}
	return ld
}

// podRecord fills in the record of a pod. It says the same whoever tells it, so that a store may leave out a second one.
func podRecord(rec plog.LogRecord, e *kube.Event, cluster string, now time.Time) {
	p := &e.Pod
	name, state := eventJobEnded, string(e.Kind)
	text := fmt.Sprintf("Pod %s with %d GPUs ended: %s", p.FullName(), e.Devices, state)
	if e.Kind == kube.EventStarted {
		name, text = eventJobStarted, fmt.Sprintf("Pod %s with %d GPUs started on %s", p.FullName(), e.Devices, p.Node)
		if !p.Scheduled.IsZero() {
			text += fmt.Sprintf(", %s after it was created and %s after it was scheduled",
				scheduler.Duration(max(0, p.Started.Sub(p.Created))), scheduler.Duration(max(0, p.Started.Sub(p.Scheduled))))
		}
	}
	rec.SetEventName(name)
	rec.SetTimestamp(pcommon.NewTimestampFromTime(e.Time))
	rec.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
	rec.SetSeverityNumber(plog.SeverityNumberInfo)
	rec.SetSeverityText("INFO")
	if e.Kind == kube.EventFailed {
		rec.SetSeverityNumber(plog.SeverityNumberWarn)
		rec.SetSeverityText("WARN")
	}
	rec.Body().SetStr(text)
	attrs := rec.Attributes()
	attrs.EnsureCapacity(24)
	for _, a := range []struct{ key, value string }{
		{"log.record.uid", p.UID + "/" + strings.TrimPrefix(name, "scheduler.job.")},
		{"scheduler.cluster", cluster},
		{"scheduler.type", kubernetesKind},
		{"scheduler.queue", p.Namespace},
		{"scheduler.team", p.Team},
		{"scheduler.job.id", p.UID},
		{"scheduler.job.name", p.Name},
		{"scheduler.job.result", map[bool]string{true: state}[name == eventJobEnded]},
		{"scheduler.job.controller.kind", p.ControllerKind},
		{"scheduler.job.controller.name", p.Controller},
		{"gpu.workload.team", p.Team}, // who may see only a team finds its records by this
		{"k8s.namespace.name", p.Namespace},
		{"k8s.pod.name", p.Name},
		{"k8s.pod.uid", p.UID},
		{"k8s.node.name", p.Node},
	} {
		if a.value != "" {
			attrs.PutStr(a.key, a.value)
		}
	}
	attrs.PutInt("scheduler.job.gpu.count", e.Devices)
	for _, t := range []struct {
		key string
		at  time.Time
	}{
		{"scheduler.job.created_time", p.Created},
		{"scheduler.job.reserved_time", p.ReservedAt},
		{"scheduler.job.admitted_time", p.AdmittedAt},
		{"scheduler.job.ungated_time", p.Ungated},
		{"scheduler.job.scheduled_time", p.Scheduled},
		{"scheduler.job.sandboxed_time", p.Sandboxed},
		{"scheduler.job.initialized_time", p.Initialized},
		{"scheduler.job.started_time", p.Started},
		{"scheduler.job.ended_time", map[bool]time.Time{true: e.Time}[name == eventJobEnded]},
	} {
		if !t.at.IsZero() {
			attrs.PutInt(t.key, t.at.Unix())
		}
	}
}
