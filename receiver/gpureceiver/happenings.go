package gpureceiver

import (
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Event names of records of what began and ended. The timestamp says when.
const (
	eventFinding  = "gpu.finding"        // gpu.finding.state is open or closed
	eventThrottle = "gpu.throttle"       // gpu.throttle.state is active or over
	eventStart    = "gpu.workload.start" // a workload started on a device
	eventStop     = "gpu.workload.stop"  // the workload left, with its usage of the device
)

// bare adds the identity of a device to a record, without its owner.
func bare(attrs pcommon.Map, id device.ID) {
	if id.UUID == "" {
		return // the machine itself
	}
	attrs.PutInt("gpu.index", int64(id.Index))
	attrs.PutStr("gpu.model", id.Model)
	attrs.PutStr("gpu.vendor", id.Vendor)
	attrs.PutStr("gpu.uuid", id.Physical())
	if id.Parent != "" {
		attrs.PutStr("gpu.partition.id", id.UUID)
		attrs.PutStr("gpu.partition.profile", id.Profile)
	}
}

// whose adds a sole workload to a record, or the names of several as a list.
func whose(attrs pcommon.Map, list []workload.Workload) {
	switch len(list) {
	case 0:
	case 1:
		for _, a := range list[0].Identity() {
			attrs.PutStr(a.Key, a.Value)
		}
	default:
		names := attrs.PutEmptySlice("gpu.workload.names")
		for i := range list {
			names.AppendEmpty().SetStr(cmpName(&list[i]))
		}
	}
}

func cmpName(w *workload.Workload) string {
	if w.Name != "" {
		return w.Name
	}
	return w.ID
}

func nameOf(id device.ID) string {
	if id.UUID == "" {
		return "this machine"
	}
	return fmt.Sprintf("GPU %d", id.Index)
}

var severities = map[health.Severity]plog.SeverityNumber{
	health.Info: plog.SeverityNumberInfo, health.Warning: plog.SeverityNumberWarn, health.Critical: plog.SeverityNumberError,
}

// finding fills in the record of a finding that opened or closed.
func finding(rec plog.LogRecord, c *health.Change, t node.Tick) {
	attrs := rec.Attributes()
	bare(attrs, c.Device)
	whose(attrs, c.Workloads)
	attrs.PutStr("gpu.finding.rule", c.Rule)
	if c.Key != "" {
		attrs.PutStr("gpu.finding.key", c.Key)
	}
	attrs.PutStr("gpu.finding.severity", c.Severity.String())
	attrs.PutStr("gpu.finding.reason", c.Reason)
	attrs.PutStr("gpu.finding.action", c.Action)
	attrs.PutStr("gpu.finding.since", c.Since.UTC().Format(time.RFC3339))
	if len(c.Evidence) > 0 {
		attrs.PutStr("gpu.finding.evidence", strings.Join(c.Evidence, "; "))
	}
	severity, text := severities[c.Severity], fmt.Sprintf("%s: %s. %s", nameOf(c.Device), c.Reason, c.Action)
	state := "open"
	if c.Ended {
		state, severity, text = "closed", plog.SeverityNumberInfo, fmt.Sprintf("%s: resolved: %s", nameOf(c.Device), c.Reason)
		attrs.PutDouble("gpu.finding.duration", c.Time.Sub(c.Since).Seconds())
	}
	attrs.PutStr("gpu.finding.state", state)
	rec.SetTimestamp(pcommon.NewTimestampFromTime(c.Time))
	complete(rec, eventFinding, severity, text, t)
}

// episode fills in the record of throttling that began or ended.
func episode(rec plog.LogRecord, e *node.Episode, t node.Tick) {
	attrs := rec.Attributes()
	bare(attrs, e.Device)
	whose(attrs, e.Workloads)
	attrs.PutStr("gpu.throttle.cause", e.Cause)
	at, state, text := e.Begin, "active", fmt.Sprintf("%s is throttled: %s", nameOf(e.Device), e.Cause)
	if !e.End.IsZero() {
		at, state, text = e.End, "over", fmt.Sprintf("%s was throttled for %s: %s", nameOf(e.Device), e.End.Sub(e.Begin).Round(time.Second), e.Cause)
		attrs.PutDouble("gpu.throttle.duration", e.End.Sub(e.Begin).Seconds())
	}
	attrs.PutStr("gpu.throttle.state", state)
	severity := plog.SeverityNumberInfo
	if e.End.IsZero() && e.Buckets&device.BucketThermal != 0 {
		severity = plog.SeverityNumberWarn
	}
	rec.SetTimestamp(pcommon.NewTimestampFromTime(at))
	complete(rec, eventThrottle, severity, text, t)
}

// tenure fills in the record of a workload that started on a device or left it.
func tenure(rec plog.LogRecord, n *node.Tenure, t node.Tick) {
	attrs := rec.Attributes()
	bare(attrs, n.Device)
	if n.Partition != "" {
		attrs.PutStr("gpu.partition.id", n.Partition)
		if n.Profile != "" {
			attrs.PutStr("gpu.partition.profile", n.Profile)
		}
	}
	whose(attrs, []workload.Workload{n.Workload})
	rec.SetTimestamp(pcommon.NewTimestampFromTime(n.At)) // the record of a departure may come later
	if !n.Ended {
		complete(rec, eventStart, plog.SeverityNumberInfo, fmt.Sprintf("%s started on %s", cmpName(&n.Workload), nameOf(n.Device)), t)
		return
	}
	attrs.PutStr("gpu.workload.since", n.Since.UTC().Format(time.RFC3339))
	attrs.PutDouble("gpu.workload.allocated.time", n.Allocated)
	for _, v := range []namedValue{
		{"gpu.workload.active.time", n.Active},
		{"gpu.workload.energy", n.Energy},
		{"gpu.workload.memory.peak", n.Peak},
	} {
		if f, ok := v.value.Get(); ok {
			attrs.PutDouble(v.name, f)
		}
	}
	if active, ok := n.Active.Get(); ok {
		attrs.PutDouble("gpu.workload.idle.time", n.Allocated-active)
	}
	complete(rec, eventStop, plog.SeverityNumberInfo, fmt.Sprintf("%s left %s", cmpName(&n.Workload), nameOf(n.Device)), t)
}
