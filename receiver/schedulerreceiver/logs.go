package schedulerreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// logs returns the records of Slurm's state at a moment.
func (e *emitter) logs(list []slurmctl.Record, cluster string, now time.Time) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rb := metadata.NewResourceBuilder(e.cfg.ResourceAttributes)
	rb.SetServiceName("gpumeter")
	rb.Emit().MoveTo(rl.Resource())
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(e.version)
	sl.LogRecords().EnsureCapacity(len(list))
	ts := pcommon.NewTimestampFromTime(now)
	for _, from := range list {
		rec := sl.LogRecords().AppendEmpty()
		rec.SetEventName(from.Event)
		rec.SetTimestamp(ts)
		rec.SetObservedTimestamp(ts)
		rec.SetSeverityNumber(plog.SeverityNumberInfo)
		rec.SetSeverityText("INFO")
		rec.Body().SetStr(from.Body)
		attrs := rec.Attributes()
		attrs.PutStr("slurm.cluster", cluster)
		for _, a := range from.Attrs {
			switch v := a.Value.(type) {
			case string:
				attrs.PutStr(a.Key, v)
			case int64:
				attrs.PutInt(a.Key, v)
			case float64:
				attrs.PutDouble(a.Key, v)
			case bool:
				attrs.PutBool(a.Key, v)
			}
		}
	}
	return ld
}
