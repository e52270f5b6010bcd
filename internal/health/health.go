// Package health judges accelerators: what is wrong with a device, how severe that is, which
// workloads are affected and what to do about it.
//
// Rules are pure functions over the samples of a machine from the last ten minutes (Span);
// they read nothing themselves and need no privileges. Monitor feeds them in the agent,
// Check runs them once. Thresholds are constants beside the rules, each with the false
// alarm that it avoids: a busy device is not a sick one. Whole-node checks such as storage
// and network are in internal/check.
package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Severity says how bad a finding is.
type Severity int

// The severities.
const (
	Info     Severity = iota + 1 // worth knowing; the device is fine
	Warning                      // the device works but needs attention
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

// Finding is one problem of a device or of the machine.
type Finding struct {
	// Rule names the rule, such as gpu.pcie.downtrained. Rule and Key together identify a
	// finding of a device: as long as the problem persists, it is the same finding.
	Rule     string    `json:"rule"`
	Key      string    `json:"key,omitempty"`
	Severity Severity  `json:"severity"`
	Device   device.ID `json:"device,omitzero"` // zero for the machine as a whole
	Reason   string    `json:"reason"`          // human-readable, with numbers
	Action   string    `json:"action"`          // what to do
	Evidence []string  `json:"evidence,omitempty"`
	Since    time.Time `json:"since"`
	// Workloads had the device when the problem was found.
	Workloads []workload.Workload `json:"workloads,omitempty"`
}

// Device is the state of one device at a moment.
type Device struct {
	device.Sample
	Up      bool
	Problem string    // why the device is not up
	Lost    bool      // the driver reports that the device is gone
	Reset   bool      // the driver refuses the device until it is reset
	Since   time.Time // when the device's counters started
	Holders []workload.Workload
	XIDs    []XIDSeen // set by Monitor: codes and counts
	// Incidents are entries of the kernel log about devices whose driver has no XIDs.
	Incidents []Incident
}

// Incident is an entry of the kernel log about a device.
type Incident struct {
	Name      string              `json:"name"` // event name
	Count     uint64              `json:"count"`
	Last      time.Time           `json:"last"`
	Message   string              `json:"message,omitempty"`
	Workloads []workload.Workload `json:"workloads,omitempty"`
}

// XIDSeen is an error code (XID) that NVIDIA's driver reported for a device.
type XIDSeen struct {
	Code    int       `json:"code"`
	Link    string    `json:"link,omitempty"` // for NVLink codes, which are counted per link
	Count   uint64    `json:"count"`
	Last    time.Time `json:"last"`
	Message string    `json:"message,omitempty"`
	PID     uint32    `json:"pid,omitempty"`
	Process string    `json:"process,omitempty"`
	// Workloads had the device when the code was last reported.
	Workloads []workload.Workload `json:"workloads,omitempty"`
}

// Moment is the state of a machine at one time.
type Moment struct {
	Time    time.Time
	Devices []Device
}

// Machine is the recent history of a machine: the input of the rules.
type Machine struct {
	// Moments are the samples, oldest first, at most Span back. The last one is the present.
	Moments []Moment
	// Expected is the number of physical devices there should be; 0 if unknown.
	Expected int
	// Known are the physical devices that the machine has had since boot.
	Known []device.ID
	// LinksUp are the links that have been up since boot, named by linkName.
	LinksUp map[string]bool
	// Unlisted are the errors of GPUs that the driver does not list, by PCI address or UUID.
	Unlisted map[string][]XIDSeen
	// Switches are recent NVSwitch errors from the kernel log.
	Switches []SXIDSeen
}

// Span is how far back the rules look.
const Span = 10 * time.Minute

// Check runs all rules and returns the findings, most severe first.
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
			rules = downRules
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

// Score returns the health of a device: 1 without findings or with infos only, 0.5 with a
// warning, 0 with a critical finding.
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

// trail is the history of one device.
type trail struct {
	machine *Machine
	now     time.Time
	last    *Device
	all     []step // oldest first; the last is the present
	past    []step // the steps at which the device answered
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

// throughout reports whether a condition held in every sample of the last d in which the
// device answered, and since when. It is false if the history is shorter than d.
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

// increase returns by how much a counter rose over the visible history, and over which
// time. After a counter reset, which resets all counters of the device, it starts over.
func (t trail) increase(counter func(*device.Sample) device.Value) (by float64, over time.Duration, ok bool) {
	var from, to float64
	var at time.Time
	for _, s := range t.past {
		v, has := counter(&s.d.Sample).Get()
		switch {
		case !has: // absent in this sample
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
