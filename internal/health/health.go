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
	Reset   bool      // the driver refuses it until it is reset
	Since   time.Time // when its counters began
	Holders []workload.Workload
	XIDs    []XIDSeen // of a Monitor's Moment: their codes and how often
}

// XIDSeen is an error that the driver of NVIDIA reported of a device.
type XIDSeen struct {
	Code    int       `json:"code"`
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
	// Expected is how many physical devices there should be; 0: as many as there were.
	Expected int
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
	for _, d := range now.Devices {
		if d.ID.Parent != "" {
			continue // physical sensors are on the parent
		}
		t := m.trail(d)
		for _, rule := range deviceRules {
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
		all = append(all, rule(m)...)
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

// trail is one device over some time.
type trail struct {
	now  time.Time
	last Device
	past []step // oldest first, the last is now; those at which the device did not answer too
}

type step struct {
	at time.Time
	d  Device
}

func (m Machine) trail(last Device) trail {
	t := trail{now: m.Moments[len(m.Moments)-1].Time, last: last}
	for _, moment := range m.Moments {
		if t.now.Sub(moment.Time) > Span {
			continue
		}
		for _, d := range moment.Devices {
			if d.ID.UUID == last.ID.UUID {
				t.past = append(t.past, step{moment.Time, d})
			}
		}
	}
	return t
}

// throughout reports whether something held at every moment of the last d, and when it
// began to. Less history than d is not enough.
func (t trail) throughout(d time.Duration, holds func(Device) bool) (since time.Time, ok bool) {
	for _, s := range slices.Backward(t.past) {
		if !holds(s.d) {
			break
		}
		since = s.at
	}
	return since, !since.IsZero() && t.now.Sub(since) >= d
}

// increase returns by how much a counter rose since it can be seen, and over which time.
// Counters that began anew are followed from there.
func (t trail) increase(counter func(*device.Sample) device.Value) (by float64, over time.Duration, ok bool) {
	var from float64
	var at time.Time
	for i := range t.past {
		s := &t.past[i]
		v, has := counter(&s.d.Sample).Get()
		switch {
		case !has || !s.d.Since.Equal(t.last.Since):
			at = time.Time{}
		case at.IsZero() || v < from:
			from, at = v, s.at
		}
	}
	v, has := counter(&t.last.Sample).Get()
	if !has || at.IsZero() || !t.now.After(at) {
		return 0, 0, false
	}
	return v - from, t.now.Sub(at), true
}
