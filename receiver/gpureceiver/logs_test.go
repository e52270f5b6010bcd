package gpureceiver

import (
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

func newTestRecorder(snapshots bool) *recorder {
	cfg := createDefaultConfig().(*Config)
	cfg.Snapshots = snapshots
	return newRecorder(cfg, receivertest.NewNopSettings(metadata.Type))
}

// eventTick is the golden tick with every kind of event.
func eventTick() node.Tick {
	t := goldenTick()
	at := now.Add(-3 * time.Second)
	t.Resource = map[string]string{"k8s.cluster.name": "c1"}
	t.Events = []device.Event{
		{
			Time: at, Device: "GPU-0", PCI: "0000:00:00.0", Name: device.EventXID, Code: 31, PID: 610, Process: "bad",
			Message: "MMU Fault: ENGINE GRAPHICS", Position: device.Position{Record: 376},
		},
		{Time: at, Device: "MIG-1", Name: device.EventXID, Code: 94},
		{Time: at, PCI: "0000:99:00.0", Name: device.EventXID, Code: 79, Message: "GPU has fallen off the bus."},
		{Time: now, Device: "GPU-2", PCI: "0000:02:00.0", Name: device.EventLost, Message: "device is lost"},
		{Time: now, Device: "GPU-0", PCI: "0000:00:00.0", Name: device.EventReturned},
		{Time: now, Device: "GPU-0", Name: device.EventReset, Message: "GPU reset begin!"},
		{Time: now, Device: "GPU-0", Name: device.EventECC, Message: "1 correctable hardware errors detected in umc block"},
		{Time: now, Device: "GPU-0", Name: device.EventHang, Message: "ring comp_1.0.0 timeout"},
		{Time: at, PCI: "0000:c1:00.0", Name: device.EventSXID, Code: 12028, Message: "Non-fatal, Link 32 egress non-posted PRIV error"},
	}
	gpu := t.Readings[0].ID
	job := workload.Workload{ID: "slurm/c/7", Kind: "slurm_job", Name: "train", Attributes: map[string]string{"slurm.job.id": "7"}}
	sick := health.Finding{
		Rule: "gpu.xid", Key: "94", Severity: health.Critical, Device: t.Readings[1].ID, Reason: "XID 94, 3s ago", Action: "Reset it.", Since: at,
		Evidence: []string{"a", "b"}, Workloads: []workload.Workload{job},
	}
	both := sick
	both.Workloads = []workload.Workload{job, {ID: "pod/x"}}
	t.Findings = []health.Finding{sick}
	t.Hit = [][]workload.Workload{{job}, {job, {ID: "pod/x"}}}
	t.Changes = []health.Change{
		{Finding: sick, Time: now},
		{Finding: both, Time: now, Ended: true},
		{Finding: health.Finding{Rule: "gpu.missing", Severity: health.Warning, Reason: "r", Action: "a", Since: at}, Time: now},
	}
	t.Episodes = []node.Episode{
		{Device: gpu, Cause: "hw_thermal", Buckets: device.BucketThermal, Begin: at, Workloads: []workload.Workload{job}},
		{Device: gpu, Cause: "sw_power_cap", Buckets: device.BucketPower, Begin: at, End: now},
	}
	of := device.Of
	t.Tenures = []node.Tenure{
		{Device: gpu, At: now, Holder: node.Holder{Workload: job, Since: now}},
		{Device: gpu, At: now.Add(-time.Minute), Holder: node.Holder{Workload: job, Since: at, Ended: true, Partition: "MIG-1", Profile: "1g.18gb", Allocated: 10, Active: of(7), Energy: of(700), Peak: of(1 << 30)}},
	}
	return t
}

func TestGoldenLogs(t *testing.T) {
	raw, err := (&plog.JSONMarshaler{}).MarshalLogs(newTestRecorder(true).emit(eventTick()))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "logs.json", indent(t, raw))
}

// Catches snapshots that were not requested, and a batch for a tick without events.
func TestRecords(t *testing.T) {
	f := func(snapshots bool, tick node.Tick, want ...string) {
		t.Helper()
		var got []string
		for _, rl := range newTestRecorder(snapshots).emit(tick).ResourceLogs().All() {
			for _, rec := range rl.ScopeLogs().At(0).LogRecords().All() {
				got = append(got, rec.EventName())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("records %q, want %q", got, want)
		}
	}
	f(false, goldenTick())
	f(false, eventTick(), "gpu.xid", "gpu.xid", "gpu.xid", "gpu.lost", "gpu.returned", "gpu.reset", "gpu.ecc", "gpu.hang", "nvswitch.sxid",
		"gpu.finding", "gpu.finding", "gpu.finding", "gpu.throttle", "gpu.throttle", "gpu.workload.start", "gpu.workload.stop")
	f(true, goldenTick(), "gpu.snapshot", "gpu.snapshot", "gpu.snapshot")
	paused := eventTick()
	paused.Paused, paused.Readings = true, nil
	f(true, paused, "gpu.xid", "gpu.xid", "gpu.xid", "gpu.lost", "gpu.returned", "gpu.reset", "gpu.ecc", "gpu.hang", "nvswitch.sxid",
		"gpu.finding", "gpu.finding", "gpu.finding", "gpu.throttle", "gpu.throttle", "gpu.workload.start", "gpu.workload.stop")
}

// Catches an event emitted twice, and a batch while nothing happens.
func TestEmitsEvents(t *testing.T) {
	v := &view{ticks: make(chan node.Tick, 8)}
	sink := new(consumertest.LogsSink)
	r, err := NewFactory().CreateLogs(t.Context(), receivertest.NewNopSettings(metadata.Type), createDefaultConfig(), sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), hostWith(v)); err != nil {
		t.Fatal(err)
	}
	v.ticks <- goldenTick()
	v.ticks <- eventTick()
	v.ticks <- goldenTick()
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(sink.AllLogs()); n != 1 || sink.LogRecordCount() != 16 {
		t.Errorf("%d batches of %d records", n, sink.LogRecordCount())
	}
}
