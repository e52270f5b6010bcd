package health

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// watch observes one GPU every step between from and to, counted from noon and adjusted by
// change, and returns the reported changes with the seconds after noon.
func watch(m *Monitor, from, to, step time.Duration, change func(at time.Duration, d *Device) []Event) []string {
	var told []string
	for at := from; at <= to; at += step {
		d := steady(0)
		var events []Event
		if change != nil {
			events = change(at, &d)
		}
		for _, c := range m.Observe(Moment{Time: noon.Add(at), Devices: []Device{d}}, events) {
			word := "began"
			if c.Ended {
				word = "ended"
			}
			told = append(told, fmt.Sprintf("%.0f %s %s %s since %.0f", at.Seconds(), word, strings.TrimSpace(c.Rule+" "+c.Key), c.Severity, c.Since.Sub(noon).Seconds()))
		}
	}
	return told
}

func heat(at time.Duration, d *Device, from, to time.Duration) {
	if at >= from && at < to {
		d.Throttles = []device.Throttle{{Cause: "x", Buckets: device.BucketThermal, Active: true}}
	}
}

// A finding is reported once when it opens and once when it closes, at any tick interval. A
// flapping finding counts as one.
func TestMonitor(t *testing.T) {
	for _, step := range []time.Duration{time.Second, 5 * time.Second, 10 * time.Second} {
		var m Monitor
		got := watch(&m, 0, 10*time.Minute, step, func(at time.Duration, d *Device) []Event {
			heat(at, d, 100*time.Second, 200*time.Second)
			heat(at, d, 230*time.Second, 250*time.Second) // too short for a finding
			return nil
		})
		// The finding closes a minute after the last check that found it. Checks are at least 5
		// seconds apart.
		end := 200 - max(step, pause).Seconds() + 60
		want := []string{"160 began gpu.throttle.thermal warning since 100", fmt.Sprintf("%.0f ended gpu.throttle.thermal warning since 100", end)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("each %v (-want +got):\n%s", step, diff)
		}
		if len(m.Findings()) != 0 {
			t.Errorf("still open: %v", m.Findings())
		}
	}
}

// At any tick interval the history is small and covers the span of the rules.
func TestMonitorMemory(t *testing.T) {
	for _, step := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second, 5 * time.Minute} {
		var m Monitor
		watch(&m, 0, max(12*time.Minute, 4*step), step, nil)
		n := len(m.moments)
		if n > 40 || n < int(min(20, Span/step)) {
			t.Errorf("each %v: %d moments", step, n)
		}
		back := m.moments[n-1].Time.Sub(m.moments[0].Time)
		if back > Span || back < Span-max(step, time.Minute) {
			t.Errorf("each %v: back to %v", step, back)
		}
		for i := 1; i < n-1; i++ {
			if gap := m.moments[i].Time.Sub(m.moments[i-1].Time); gap > max(step, 35*time.Second) {
				t.Errorf("each %v: a gap of %v at %v", step, gap, m.moments[i].Time)
			}
		}
	}
}

// An XID is reported at the tick that delivers it, with the workloads affected then, and a
// restart neither forgets nor repeats it.
func TestMonitorXID(t *testing.T) {
	bob := workload.Workload{ID: "pod/bob"}
	xid := Event{Event: device.Event{Name: device.EventXID, Code: 95, Device: "GPU-0", Time: noon.Add(5 * time.Second), Message: "m"}, Workloads: []workload.Workload{bob}}
	var m Monitor
	got := watch(&m, 0, time.Minute, 5*time.Second, func(at time.Duration, _ *Device) []Event {
		if at == 5*time.Second {
			return []Event{xid, xid}
		}
		return nil
	})
	if diff := cmp.Diff([]string{"5 began gpu.xid 95 critical since 5"}, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	f := m.Findings()[0]
	if diff := cmp.Diff([]workload.Workload{bob}, f.Workloads); diff != "" || !strings.Contains(f.Reason, "2 in total") {
		t.Errorf("%+v:\n%s", f, diff)
	}

	b, err := json.Marshal(m.State())
	if err != nil {
		t.Fatal(err)
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	var next Monitor
	next.Restore(s, noon.Add(2*time.Minute))
	if got := watch(&next, 2*time.Minute, time.Hour, 10*time.Second, nil); len(got) > 0 {
		t.Errorf("reported again after a restart: %v", got)
	}
	// The reset closes the finding.
	got = watch(&next, time.Hour+10*time.Second, 2*time.Hour, 10*time.Second, func(_ time.Duration, d *Device) []Event {
		d.Since = noon.Add(time.Hour)
		return nil
	})
	if diff := cmp.Diff([]string{"3660 ended gpu.xid 95 critical since 5"}, got); diff != "" {
		t.Errorf("after a reset (-want +got):\n%s", diff)
	}
}

// Catches an XID 79 without a finding because the driver no longer lists the GPU, whether
// the GPU was there before or not. A GPU that is listed again after a reset is well.
func TestMonitorUnlisted(t *testing.T) {
	fell := func(uuid, pci string, code int) Event {
		return Event{Event: device.Event{Name: device.EventXID, Code: code, Device: uuid, PCI: pci, Time: noon.Add(time.Second), Message: "m"}}
	}
	was := device.ID{Vendor: "nvidia", UUID: "GPU-7", Index: 7, PCI: "0000:b7:00.0", Model: "H100"}
	there := steady(0)
	present := func(more ...Device) []Device { return append([]Device{there}, more...) }
	var m Monitor
	m.Observe(Moment{Time: noon, Devices: present(Device{Sample: device.Sample{ID: was}, Up: true, Since: boot})}, nil)
	m.Observe(Moment{Time: noon.Add(10 * time.Second), Devices: present()}, []Event{fell("GPU-7", was.PCI, 79), fell("", "0000:99:00.0", 79), fell("", "0000:99:00.0", 31)})
	later := Moment{Time: noon.Add(time.Hour), Devices: present()}
	var next Monitor
	next.Restore(m.State(), later.Time)
	next.Observe(later, nil)
	got := slices.DeleteFunc(next.Findings(), func(f Finding) bool { return f.Rule != "gpu.xid" })
	const action = "Drain the node and reboot it. If the GPU does not come back, check its power and seating."
	want := []Finding{
		{
			Rule: "gpu.xid", Key: "79 0000:99:00.0", Severity: Critical, Device: device.ID{Vendor: "nvidia", PCI: "0000:99:00.0"}, Action: action, Evidence: []string{"m"}, Since: noon.Add(time.Second),
			Reason: "XID 79, the GPU fell off the bus, 1h ago; the driver no longer lists the GPU at 0000:99:00.0",
		},
		{
			Rule: "gpu.xid", Key: "79", Severity: Critical, Device: was, Action: action, Evidence: []string{"m"}, Since: noon.Add(time.Second),
			Reason: "XID 79, the GPU fell off the bus, 1h ago; the driver no longer lists the GPU at 0000:b7:00.0",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	back := device.ID{Vendor: "nvidia", UUID: "GPU-9", Index: 9, PCI: "0000:99:00.0", Model: "H100"}
	for at := time.Hour; at < 2*time.Hour; at += time.Minute {
		next.Observe(Moment{Time: noon.Add(at), Devices: present(
			Device{Sample: device.Sample{ID: was}, Up: true, Since: noon.Add(time.Hour)}, Device{Sample: device.Sample{ID: back}, Up: true, Since: noon.Add(time.Hour)},
		)}, nil)
	}
	if got := next.Findings(); len(got) > 0 {
		t.Errorf("after a reset: %+v", got)
	}
}

// Catches a recovery action that stays after the driver withdrew it.
func TestMonitorRecoveryAction(t *testing.T) {
	var m Monitor
	got := watch(&m, 0, 30*time.Minute, 10*time.Second, func(at time.Duration, _ *Device) []Event {
		says := map[time.Duration]string{
			10 * time.Second: "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
			10 * time.Minute: "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
		}[at]
		if says == "" {
			return nil
		}
		return []Event{{Event: device.Event{Name: device.EventXID, Code: 154, Device: "GPU-0", Time: noon.Add(at), Message: says}}}
	})
	want := []string{"10 began gpu.xid 154 critical since 10", "600 began gpu.xid 154 info since 10", "1250 ended gpu.xid 154 info since 10"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// In a storm not every error becomes an event, but all are counted.
func TestMonitorCounts(t *testing.T) {
	var m Monitor
	d := steady(0)
	d.XIDs = []XIDSeen{{Code: 31, Count: 10_000}, {Code: 13, Count: 5}}
	m.Observe(Moment{Time: noon, Devices: []Device{d}}, []Event{{Event: device.Event{Name: device.EventXID, Code: 31, Device: "GPU-0", Time: noon}}})
	if f := m.Findings(); len(f) != 1 || !strings.Contains(f[0].Reason, "10000 in total") {
		t.Errorf("%+v", f)
	}
}

// A finding that ended while the agent was down is reported as closed.
func TestMonitorRestore(t *testing.T) {
	var m Monitor
	watch(&m, 0, 2*time.Minute, 5*time.Second, func(at time.Duration, d *Device) []Event { heat(at, d, 0, time.Hour); return nil })
	var next Monitor
	next.Restore(m.State(), noon.Add(10*time.Minute))
	got := watch(&next, 10*time.Minute, 20*time.Minute, 5*time.Second, nil)
	if diff := cmp.Diff([]string{"1020 ended gpu.throttle.thermal warning since 0"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A log line may name a GPU by PCI address or name a partition; the finding is the GPU's.
func TestMonitorWhose(t *testing.T) {
	part := steady(0)
	part.ID.UUID, part.ID.Parent = "MIG-1", "GPU-0"
	whole := steady(0)
	whole.ID.PCI, part.ID.PCI = "0000:1a:00.0", "0000:1a:00.0"
	var m Monitor
	m.Observe(Moment{Time: noon, Devices: []Device{whole, part}}, []Event{
		{Event: device.Event{Name: device.EventXID, Code: 94, PCI: "0000:1a:00.0", Time: noon}},
		{Event: device.Event{Name: device.EventXID, Code: 95, Device: "MIG-1", Time: noon}},
		{Event: device.Event{Name: device.EventXID, Code: 96, PCI: "0000:ff:00.0", Time: noon}},
		{Event: device.Event{Name: device.EventSXID, Code: 12028, PCI: "0000:c1:00.0", Time: noon, Message: "Fatal, Link 3"}},
		{Event: device.Event{Name: device.EventSXID, Code: 12028, PCI: "0000:c1:00.0", Time: noon, Message: "Fatal, Link 3"}},
	})
	var got []string
	for _, f := range m.Findings() {
		got = append(got, fmt.Sprint(f.Device.UUID, " ", f.Key, " ", f.Severity))
	}
	if diff := cmp.Diff([]string{"GPU-0 95 critical", " 0000:c1:00.0 12028 critical", "GPU-0 94 info"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Memory and reported changes are bounded in a storm of errors.
func TestMonitorStorm(t *testing.T) {
	var m Monitor
	var events []Event
	for i := range 10_000 {
		events = append(events, Event{Event: device.Event{Name: device.EventXID, Code: i % 500, Device: "GPU-0", Time: noon}})
		events = append(events, Event{Event: device.Event{Name: device.EventSXID, Code: i, PCI: "p", Time: noon}})
	}
	told := 0
	for i := range 10 {
		d := steady(0)
		n := len(m.Observe(Moment{Time: noon.Add(time.Duration(i) * pause), Devices: []Device{d}}, events))
		events = nil
		if n > maxChanges {
			t.Errorf("%d changes at once", n)
		}
		told += n
	}
	if len(m.xids["GPU-0"]) != maxCodes || len(m.switches) != maxSXIDs || told != maxCodes+maxSXIDs {
		t.Errorf("%d codes, %d switch errors, %d changes", len(m.xids["GPU-0"]), len(m.switches), told)
	}
}

// Setting the clock back neither opens nor closes a finding.
func TestMonitorClock(t *testing.T) {
	var m Monitor
	watch(&m, 0, 2*time.Minute, 5*time.Second, func(at time.Duration, d *Device) []Event { heat(at, d, 0, time.Hour); return nil })
	got := watch(&m, -time.Hour, -time.Hour, time.Second, func(_ time.Duration, d *Device) []Event { heat(0, d, 0, 1); return nil })
	if len(got) > 1 {
		t.Errorf("%v", got)
	}
}

// A restart closes and repeats nothing, whatever the lookback of a rule.
func TestMonitorRestart(t *testing.T) {
	sick := func(_ time.Duration, d *Device) []Event {
		d.Fabric.State = of(2)
		d.Memory.Used, d.Utilization.Compute, d.Processes, d.Holders = of(9<<30), of(0), nil, nil
		d.ECC = []device.ECC{{Type: "uncorrected", Lifetime: "volatile", Count: of(5)}}
		return nil
	}
	var m Monitor
	watch(&m, 0, 3*time.Minute, 5*time.Second, func(at time.Duration, d *Device) []Event {
		sick(at, d)
		d.ECC[0].Count = of(4)
		return nil
	})
	got := watch(&m, 3*time.Minute+5*time.Second, 6*time.Minute, 5*time.Second, sick)
	if len(got) == 0 || len(m.Findings()) != 3 {
		t.Fatalf("%v, %v", got, m.Findings())
	}
	var next Monitor
	next.Restore(m.State(), noon.Add(6*time.Minute+10*time.Second))
	if got := watch(&next, 6*time.Minute+10*time.Second, 12*time.Minute, 5*time.Second, sick); len(got) > 0 {
		t.Errorf("reported again: %v", got)
	}
}

// A GPU that falls off the bus has not recovered from earlier findings, not even if the
// agent restarts and the driver no longer lists the GPU.
func TestMonitorLost(t *testing.T) {
	var m Monitor
	got := watch(&m, 0, 10*time.Minute, 5*time.Second, func(at time.Duration, d *Device) []Event {
		d.RowRemap.Pending = of(1)
		if at >= time.Minute {
			*d = Device{Sample: device.Sample{ID: d.ID}, Problem: "lost", Lost: true, Since: boot}
		}
		return nil
	})
	want := []string{"0 began gpu.row_remap.pending warning since 0", "60 began gpu.lost critical since 60"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var next Monitor
	next.Restore(m.State(), noon.Add(11*time.Minute))
	var told []string
	for at := 11 * time.Minute; at < 30*time.Minute; at += 10 * time.Second {
		for _, c := range next.Observe(Moment{Time: noon.Add(at)}, nil) {
			told = append(told, fmt.Sprintf("%s ended=%v", c.Rule, c.Ended))
		}
	}
	if len(told) == 0 || told[0] != "gpu.missing ended=false" {
		t.Errorf("%v", told)
	}
}

// A link that stays down remains a finding, also across a restart.
func TestMonitorLink(t *testing.T) {
	wire := func(up float64) func(time.Duration, *Device) []Event {
		return func(_ time.Duration, d *Device) []Event {
			d.Interconnects = []device.Interconnect{{Type: "ethernet", Links: []device.Link{{Index: 0, Up: of(1)}, {Index: 1, Up: of(up)}}}}
			return nil
		}
	}
	var m Monitor
	watch(&m, 0, time.Minute, 5*time.Second, wire(1))
	got := watch(&m, time.Minute+5*time.Second, 30*time.Minute, 5*time.Second, wire(0))
	if diff := cmp.Diff([]string{"95 began gpu.interconnect.link_down ethernet 1 critical since 65"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var next Monitor
	next.Restore(m.State(), noon.Add(30*time.Minute))
	if got := watch(&next, 30*time.Minute, time.Hour, 10*time.Second, wire(0)); len(got) > 0 {
		t.Errorf("after a restart: %v", got)
	}
}

// A harmless error of one link hides neither another link's error that requires a reset nor
// an earlier one of the same link.
func TestMonitorLinks(t *testing.T) {
	var m Monitor
	xid := func(at time.Duration, text string) []Event {
		return []Event{{Event: device.Event{Name: device.EventXID, Code: 149, Device: "GPU-0", Time: noon.Add(at), Message: text}}}
	}
	got := watch(&m, 0, 20*time.Minute, 10*time.Second, func(at time.Duration, _ *Device) []Event {
		switch at {
		case time.Minute:
			return xid(at, "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025001c6 0x0 0x0)")
		case 2 * time.Minute:
			return append(xid(at, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x0 0x0 0x0)"), xid(at, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 09 (0x0 0x0 0x0)")...)
		}
		return nil
	})
	want := []string{"60 began gpu.xid 149 link 9 critical since 60", "120 began gpu.xid 149 link 3 info since 120", "770 ended gpu.xid 149 link 3 info since 120"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Drivers that do not count resets report them in the kernel log.
func TestMonitorIncidents(t *testing.T) {
	bob := workload.Workload{ID: "pod/bob"}
	var m Monitor
	got := watch(&m, 0, 15*time.Minute, 10*time.Second, func(at time.Duration, _ *Device) []Event {
		event := func(name, text string) Event {
			return Event{Event: device.Event{Name: name, Device: "GPU-0", Time: noon.Add(at), Message: text}, Workloads: []workload.Workload{bob}}
		}
		switch at {
		case time.Minute:
			return []Event{event(device.EventReset, "GPU reset begin!"), event(device.EventReset, "GPU reset succeeded"), event(device.EventECC, "x")}
		case 2 * time.Minute:
			return []Event{event(device.EventHang, "ring timeout")}
		}
		return nil
	})
	want := []string{
		"60 began gpu.reset log warning since 60", "120 began gpu.hang log info since 120",
		"710 ended gpu.reset log warning since 60", "770 ended gpu.hang log info since 120",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var next Monitor
	next.Restore(m.State(), noon)
	if len(next.happened["GPU-0"]) != 2 || next.happened["GPU-0"][0].Count != 2 {
		t.Errorf("%+v", next.happened)
	}
}

// A later nonfatal line does not cancel a fatal one, and an error that arrives while devices
// are read is not dated in the future.
func TestMonitorLater(t *testing.T) {
	var m Monitor
	sxid := func(text string) Event {
		return Event{Event: device.Event{Name: device.EventSXID, Code: 12028, PCI: "p", Time: noon, Message: text}}
	}
	late := Event{Event: device.Event{Name: device.EventXID, Code: 95, Device: "GPU-0", Time: noon.Add(3 * time.Second)}}
	m.Observe(Moment{Time: noon, Devices: []Device{steady(0)}}, []Event{sxid("Fatal, Link 3"), sxid("Non-fatal, Link 3"), late})
	for _, f := range m.Findings() {
		if f.Severity != Critical || f.Since.After(noon) {
			t.Errorf("%+v", f)
		}
	}
	if len(m.Findings()) != 2 {
		t.Errorf("%+v", m.Findings())
	}
}

// Resets of another day are not added to the current ones.
func TestMonitorAnotherIncident(t *testing.T) {
	var m Monitor
	for _, at := range []time.Duration{0, time.Hour} {
		e := Event{Event: device.Event{Name: device.EventReset, Device: "GPU-0", Time: noon.Add(at)}}
		m.Observe(Moment{Time: noon.Add(at), Devices: []Device{steady(0)}}, []Event{e})
	}
	if n := m.happened["GPU-0"][0].Count; n != 1 {
		t.Errorf("%d resets, want only the recent ones", n)
	}
}
