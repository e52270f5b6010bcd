package gpureceiver

import (
	"fmt"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// eventSnapshot is the event name of the state of a device at a tick.
const eventSnapshot = "gpu.snapshot"

// recorder converts ticks to log records.
type recorder struct {
	cfg     *Config
	version string
	board   *spans.Board // of applications; nil: none
}

func newRecorder(cfg *Config, set receiver.Settings) *recorder {
	return &recorder{cfg: cfg, version: set.BuildInfo.Version}
}

// emit returns a record for each event of the tick and, if configured, for each device.
func (r *recorder) emit(t node.Tick) plog.Logs {
	ld := plog.NewLogs()
	var slow []spans.Slow
	if r.board != nil {
		slow = r.board.SlowSpans()
	}
	if len(slow)+len(t.Events)+len(t.Changes)+len(t.Episodes)+len(t.Tenures) == 0 && !r.cfg.Snapshots {
		return ld
	}
	rl := ld.ResourceLogs().AppendEmpty()
	ticks.Resource(metadata.NewResourceBuilder(r.cfg.ResourceAttributes), &t).MoveTo(rl.Resource())
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(r.version)
	readings := make(map[string]*node.Reading, len(t.Readings))
	for i := range t.Readings {
		readings[t.Readings[i].ID.UUID] = &t.Readings[i]
	}
	for i := range t.Events {
		var hit []workload.Workload
		if i < len(t.Hit) {
			hit = t.Hit[i]
		}
		event(sl.LogRecords().AppendEmpty(), &t.Events[i], readings[t.Events[i].Device], hit, t)
	}
	for i := range t.Changes {
		rec := sl.LogRecords().AppendEmpty()
		finding(rec, &t.Changes[i], t)
		hit(rec, r.board, &t.Changes[i])
	}
	for i := range t.Episodes {
		episode(sl.LogRecords().AppendEmpty(), &t.Episodes[i], t)
	}
	for i := range t.Tenures {
		tenure(sl.LogRecords().AppendEmpty(), &t.Tenures[i], t)
	}
	for i := range slow {
		slowSpan(sl.LogRecords().AppendEmpty(), &slow[i], t)
	}
	if r.cfg.Snapshots {
		for i := range t.Readings {
			snapshot(sl.LogRecords().AppendEmpty(), &t.Readings[i], t)
		}
	}
	return ld
}

// event fills in the record of e. of is the current reading of its device, nil if there is none; hit are
// the affected workloads.
func event(rec plog.LogRecord, e *device.Event, of *node.Reading, hit []workload.Workload, t node.Tick) {
	name := "a GPU"
	attrs := rec.Attributes()
	switch {
	case of != nil:
		bare(attrs, of.ID)
		if name = fmt.Sprintf("GPU %d", of.ID.Index); of.ID.Parent != "" {
			name += " partition " + of.ID.Profile
		}
	case e.Device != "":
		attrs.PutStr("gpu.uuid", e.Device)
	}
	whose(attrs, hit)
	if of == nil && e.PCI != "" {
		attrs.PutStr("gpu.pci.address", e.PCI)
	}
	if e.PID != 0 {
		attrs.PutInt("process.pid", int64(e.PID))
	}
	if e.Process != "" {
		attrs.PutStr("process.executable.name", e.Process)
	}
	text, severity := e.Name, plog.SeverityNumberInfo
	switch e.Name {
	case device.EventXID:
		x := health.ExplainXID(e.Code, e.Message)
		attrs.PutInt("gpu.xid.code", int64(e.Code))
		attrs.PutStr("gpu.xid.class", x.Class)
		attrs.PutStr("gpu.xid.action", x.Action)
		text, severity = fmt.Sprintf("XID %d on %s, %s", e.Code, name, x.Meaning), severities[x.Severity]
		if x.Severity == health.Info && x.Class != "information" { // the GPU is fine, but a program is not
			severity = plog.SeverityNumberWarn
		}
	case device.EventSXID:
		attrs.PutInt("nvswitch.sxid.code", int64(e.Code))
		text, severity = fmt.Sprintf("SXID %d of the NVSwitch at %s", e.Code, e.PCI), plog.SeverityNumberWarn
	case device.EventReset:
		text, severity = "Reset of "+name, plog.SeverityNumberError
	case device.EventECC: // the message says whether the errors were corrected
		text, severity = "Memory or logic errors on "+name, plog.SeverityNumberWarn
	case device.EventHang: // usually caused by a program
		text, severity = "Hang on "+name, plog.SeverityNumberWarn
	case device.EventLost:
		text, severity = name+" does not answer", plog.SeverityNumberError
	case device.EventReturned:
		text = name + " answers again"
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	rec.SetTimestamp(pcommon.NewTimestampFromTime(e.Time))
	complete(rec, e.Name, severity, text, t)
}

func complete(rec plog.LogRecord, name string, severity plog.SeverityNumber, text string, t node.Tick) {
	rec.SetEventName(name)
	rec.SetObservedTimestamp(pcommon.NewTimestampFromTime(t.Time))
	rec.SetSeverityNumber(severity)
	rec.SetSeverityText(map[plog.SeverityNumber]string{
		plog.SeverityNumberInfo: "INFO", plog.SeverityNumberWarn: "WARN", plog.SeverityNumberError: "ERROR",
	}[severity])
	rec.Body().SetStr(text)
}

// identify adds the identity of a device to a record, as on points.
func identify(attrs pcommon.Map, r *node.Reading) {
	attrs.PutInt("gpu.index", int64(r.ID.Index))
	attrs.PutStr("gpu.model", r.ID.Model)
	attrs.PutStr("gpu.vendor", r.ID.Vendor)
	of := newSubject(r)
	dress(attrs, of)
	if r.Owner != nil {
		dressOwner(attrs, of)
	}
}

// snapshot fills in the record of a device or partition. Values have the names of their metrics.
func snapshot(rec plog.LogRecord, r *node.Reading, t node.Tick) {
	attrs := rec.Attributes()
	identify(attrs, r)
	prefix := "gpu."
	if r.ID.Parent != "" {
		prefix = "gpu.partition."
	}
	for _, v := range snapshotValues(r) {
		if f, ok := v.value.Get(); ok {
			attrs.PutDouble(prefix+v.name, f)
		}
	}
	severity, text := plog.SeverityNumberInfo, fmt.Sprintf("GPU %d", r.ID.Index)
	if !r.Up {
		severity, text = plog.SeverityNumberWarn, text+" does not answer: "+r.Problem
	}
	rec.SetTimestamp(pcommon.NewTimestampFromTime(t.Time))
	complete(rec, eventSnapshot, severity, text, t)
}

// namedValue is a value with its metric name, without the prefix of devices or partitions.
type namedValue struct {
	name  string
	value device.Value
}

func snapshotValues(r *node.Reading) []namedValue {
	s := &r.Sample
	list := []namedValue{
		{"up", device.Flag(r.Up)},
		{"utilization", r.Busy.Or(s.Utilization.Compute)},
		{"memory.used", s.Memory.Used},
		{"memory.total", s.Memory.Total},
		{"memory.utilization", s.MemoryUtilization()},
		{"energy", s.Energy},
		{"sm.active", s.Profile.SMActive},
		{"dram.active", s.Profile.DRAMActive},
		{"throttle.power_active", s.Throttled(device.BucketPower)},
		{"throttle.thermal_active", s.Throttled(device.BucketThermal)},
		{"temperature", s.Temperature()},
		{"power.draw", s.Power().Draw()},
		{"power.limit", s.Power().Enforced()},
	}
	if !r.Up {
		return list[:1]
	}
	return list
}
