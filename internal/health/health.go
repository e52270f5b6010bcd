// Package health judges accelerators: what is wrong with one, how bad that is, whom it
// hits and what to do. Rules are pure functions over what was read of a machine in the
// last minutes. Thresholds are constants beside the rules, with the false alarm that each
// avoids; a busy device is not a sick one.
package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Severity is how bad a finding is.
type Severity int

// The severities.
const (
	Info     Severity = iota + 1 // worth knowing; the device is fine
	Warning                      // the device works, and somebody should look at it
	Critical                     // nothing new should be put on the device
)

// String returns the severity in lower case.
func (s Severity) String() string {
	switch s {
	case Info:
		return "info"
	case Warning:
		return "warning"
	case Critical:
		return "critical"
	}
	return "none"
}

// MarshalText implements encoding.TextMarshaler.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Severity) UnmarshalText(b []byte) error {
	for _, v := range []Severity{Info, Warning, Critical} {
		if v.String() == string(b) {
			*s = v
		}
	}
	return nil
}

// Finding is something that is wrong.
type Finding struct {
	// Rule is what found it, such as gpu.pcie.downtrained. With Key it says which finding
	// of the device it is: one that goes on is the same finding.
	Rule     string    `json:"rule"`
	Key      string    `json:"key,omitempty"`
	Severity Severity  `json:"severity"`
	Device   device.ID `json:"device,omitzero"` // zero: the machine as a whole
	Reason   string    `json:"reason"`          // for people, with numbers
	Action   string    `json:"action"`          // what to do
	Evidence []string  `json:"evidence,omitempty"`
	Since    time.Time `json:"since"`
	// Workloads are those that had the device when it was found.
	Workloads []workload.Workload `json:"workloads,omitempty"`
}

// Device is what was known of one device at a moment.
type Device struct {
	device.Sample
	Up      bool
	Problem string    // why it is not up
	Lost    bool      // the driver says that it is gone
	Reset   bool      // the driver refuses it until it is reset
	Since   time.Time // when its counters began
	Holders []workload.Workload
	XIDs    []XIDSeen // of a Monitor's Moment: their codes and how often
	// Incidents are what the kernel's log said of devices without such codes.
	Incidents []Incident
}

// Incident is something that the kernel's log said of a device.
type Incident struct {
	Name      string              `json:"name"` // of the event
	Count     uint64              `json:"count"`
	Last      time.Time           `json:"last"`
	Message   string              `json:"message,omitempty"`
	Workloads []workload.Workload `json:"workloads,omitempty"`
}

// XIDSeen is an error that the driver of NVIDIA reported of a device.
type XIDSeen struct {
	Code    int       `json:"code"`
	Link    string    `json:"link,omitempty"` // of NVLink's codes: each link has its own
	Count   uint64    `json:"count"`
	Last    time.Time `json:"last"`
	Message string    `json:"message,omitempty"`
	PID     uint32    `json:"pid,omitempty"`
	Process string    `json:"process,omitempty"`
	// Workloads are those that had the device at the last one.
	Workloads []workload.Workload `json:"workloads,omitempty"`
}

// Moment is a machine at one time.
type Moment struct {
	Time    time.Time
	Devices []Device
}

// Machine is a machine over some time.
type Machine struct {
	// Moments are what was read, oldest first, at most Span back. The last is now.
	Moments []Moment
	// Expected is how many physical devices there should be; 0: nobody said.
	Expected int
	// Known are the physical devices that the machine has had since it was booted.
	Known []device.ID
	// LinksUp are the links that have been up since then, as linkName names them.
	LinksUp map[string]bool
	// Switches are the errors of NVSwitch that the kernel reported lately.
	Switches []SXIDSeen
}

// Span is how far back rules look.
const Span = 10 * time.Minute

// Check returns what is wrong with a machine, the worst first.
func Check(m Machine) []Finding {
	if len(m.Moments) == 0 {
		return nil
	}
	now := m.Moments[len(m.Moments)-1]
	var all []Finding
	for _, d := range now.physical() {
		t := m.trail(d)
		rules := deviceRules
		if !d.Up {
			rules = rules[:1] // what it was like before it stopped answering is not known to be over
		}
		for _, rule := range rules {
			for _, f := range rule(t) {
				f.Device = d.ID
				if f.Workloads == nil {
					f.Workloads = d.Holders
				}
				all = append(all, f)
			}
		}
	}
	for _, rule := range machineRules {
		all = append(all, rule(&m)...)
	}
	for i := range all {
		if all[i].Since.IsZero() {
			all[i].Since = now.Time
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Device.Index, b.Device.Index), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return all
}

// Score returns how healthy a device is, of 1: 0.5 with a warning, 0 with something
// critical.
func Score(findings []Finding, uuid string) float64 {
	score := 1.0
	for _, f := range findings {
		if f.Device.UUID != uuid {
			continue
		}
		switch f.Severity {
		case Critical:
			return 0
		case Warning:
			score = 0.5
		case Info:
		}
	}
	return score
}

// physical returns the devices that are not partitions.
func (m *Moment) physical() []*Device {
	var out []*Device
	for i := range m.Devices {
		if m.Devices[i].ID.Parent == "" {
			out = append(out, &m.Devices[i])
		}
	}
	return out
}

// trail is one device over some time.
type trail struct {
	machine *Machine
	now     time.Time
	last    *Device
	all     []step // oldest first, the last is now
	past    []step // those at which it answered
}

type step struct {
	at time.Time
	d  *Device
}

func (m *Machine) trail(last *Device) trail {
	t := trail{machine: m, now: m.Moments[len(m.Moments)-1].Time, last: last}
	for i := range m.Moments {
		moment := &m.Moments[i]
		if t.now.Sub(moment.Time) > Span {
			continue
		}
		for j := range moment.Devices {
			d := &moment.Devices[j]
			if d.ID.UUID != last.ID.UUID {
				continue
			}
			t.all = append(t.all, step{moment.Time, d})
			if d.Up {
				t.past = append(t.past, step{moment.Time, d})
			}
		}
	}
	return t
}

// throughout reports whether something held at every moment of the last d at which the
// device answered, and when it began to. Less history than d is not enough.
func (t trail) throughout(d time.Duration, holds func(*Device) bool) (since time.Time, ok bool) {
	return throughout(t.past, t.now, d, holds)
}

func throughout(steps []step, now time.Time, d time.Duration, holds func(*Device) bool) (since time.Time, ok bool) {
	for _, s := range slices.Backward(steps) {
		if !holds(s.d) {
			break
		}
		since = s.at
	}
	return since, !since.IsZero() && now.Sub(since) >= d
}

// increase returns by how much a counter rose since it can be seen, and over which time. A
// counter that began anew, with all of the device, is followed from there.
func (t trail) increase(counter func(*device.Sample) device.Value) (by float64, over time.Duration, ok bool) {
	var from, to float64
	var at time.Time
	for _, s := range t.past {
		v, has := counter(&s.d.Sample).Get()
		switch {
		case !has: // for once, or not read at this moment
			continue
		case !s.d.Since.Equal(t.last.Since):
			at = time.Time{}
			continue
		case at.IsZero() || v < from:
			from, at = v, s.at
		}
		to = v
	}
	if at.IsZero() || !t.now.After(at) {
		return 0, 0, false
	}
	return to - from, t.now.Sub(at), true
}
