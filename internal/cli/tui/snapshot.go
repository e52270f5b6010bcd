// Package tui is the terminal view of gpumeter top: one model, made of plain functions
// from values to text. It reads nothing itself: snapshots are sent to it.
package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/fleet"
)

// Snapshot is what is shown: the devices of one machine or of many, at one moment.
type Snapshot struct {
	Time      time.Time
	From      string // for people: the host, or the address of the hub
	Simulated bool   // nothing of it is real
	Currency  string // of Device.Cost; empty: there are no prices
	Devices   []Device
	Findings  []Finding // the worst first
	// Problem says why nothing newer is known. Nothing else is set then.
	Problem string
	// Empty says what to do where there are no devices.
	Empty string
}

// Device is one device, or one partition of one.
type Device struct {
	Host   string
	Vendor string
	Index  int
	Model  string
	UUID   string
	// Profile is that of a partition; empty: a whole device.
	Profile string

	Up          bool
	State       string // in a word or two what deserves attention; ok if nothing does
	Severity    Severity
	Simulated   bool
	Utilization device.Value // of 1
	SM          device.Value // of 1
	Memory      device.Value // bytes
	MemoryTotal device.Value
	Power       device.Value // watts
	PowerLimit  device.Value
	Celsius     device.Value
	Cost        device.Value // of an hour
	Held        bool         // workloads have been given it or a part of it
	Idle        device.Value // seconds for which no holder has used it
	Owners      []Owner
	More        []string // lines for the details
}

// Owner is a workload that has a device, or a part of it.
type Owner struct {
	Kind, Name  string
	Label       string // the name that users know it by
	Team        string
	Share       float64 // part of the device that it holds
	Uninvited   bool    // it uses what nobody gave it
	Utilization device.Value
	Memory      device.Value // bytes
	Power       device.Value // watts
}

// Finding is one problem of a device or of the machine.
type Finding struct {
	Severity Severity
	Host     string
	UUID     string // of the device; empty: of the machine
	Of       string // the device, for people
	Reason   string
	Action   string
	Since    time.Time
}

// Severity is how bad something is.
type Severity int

// The severities, in order.
const (
	Fine Severity = iota
	Info
	Warning
	Critical
)

// String returns the severity in lower case.
func (s Severity) String() string { return [...]string{"ok", "info", "warning", "critical"}[s] }

// key tells a device from every other.
func (d *Device) key() string { return d.Host + "/" + d.UUID }

// idle reports whether the device is idle by the definition of package fleet.
func (d *Device) idle() bool {
	idle, ok := d.Idle.Get()
	return ok && d.Held && idle >= fleet.IdleAfter.Seconds()
}

// notGiven follows the name of who uses a device that nobody gave it.
const notGiven = " (not given)"

// owners returns the names of all that have d, and how much of it where they are several.
func (d *Device) owners() string {
	var names []string
	shares := map[string]float64{}
	for _, o := range d.Owners {
		name := o.Label
		if o.Uninvited {
			name += notGiven
		}
		if _, ok := shares[name]; !ok {
			names = append(names, name)
		}
		shares[name] += o.Share
	}
	rank := func(name string) float64 {
		if strings.HasSuffix(name, notGiven) {
			return 2 // above any share: who should not be there is news
		}
		return shares[name]
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(b), rank(a)) })
	for i, name := range names {
		if share := shares[name]; share > 0 && share < 0.995 && len(names) > 1 {
			names[i] += fmt.Sprintf(" %.0f%%", 100*share)
		}
	}
	return strings.Join(names, ", ")
}

// totals are the sums of the line at the top.
type totals struct {
	devices, held, idle, down int
	hosts                     int
	watts, cost, lost         float64 // lost is the cost of what is idle
}

func (s *Snapshot) totals() totals {
	var t totals
	hosts := map[string]bool{}
	for i := range s.Devices {
		d := &s.Devices[i]
		hosts[d.Host] = true
		if d.Profile != "" {
			continue // a part of one that is counted
		}
		t.devices++
		cost, _ := d.Cost.Get()
		t.cost += cost
		if watts, ok := d.Power.Get(); ok {
			t.watts += watts
		}
		if !d.Up {
			t.down++
			continue
		}
		if d.Held {
			t.held++
		}
		if d.idle() {
			t.idle++
			t.lost += cost
		}
	}
	t.hosts = len(hosts)
	return t
}

// workloadRow is one workload on all its devices.
type workloadRow struct {
	Owner
	devices   float64 // parts of devices, added up
	active    int     // devices it does something on
	busy      float64 // utilization, weighted by share
	known     float64 // share of devices whose utilization is known
	memory    float64
	watts     float64
	cost      float64
	priced    bool
	hosts     []string
	severity  Severity
	uninvited bool
}

// workloads returns who has devices, by name.
func (s *Snapshot) workloads() []workloadRow {
	all := map[string]*workloadRow{}
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Profile != "" {
			continue // its owner is one of the device
		}
		active := map[*workloadRow]bool{} // on this device
		for _, o := range d.Owners {
			name := o.Kind + " " + o.Label
			h := all[name]
			if h == nil {
				h = &workloadRow{Owner: o}
				all[name] = h
			}
			h.devices += o.Share
			if busy, ok := o.Utilization.Get(); ok {
				h.busy += busy
				h.known += max(o.Share, busy)
				if busy > 0 && !active[h] {
					active[h] = true
					h.active++
				}
			}
			memory, _ := o.Memory.Get()
			watts, _ := o.Power.Get()
			h.memory += memory
			h.watts += watts
			if cost, ok := d.Cost.Get(); ok {
				h.cost += cost * o.Share
				h.priced = true
			}
			if !slices.Contains(h.hosts, d.Host) {
				h.hosts = append(h.hosts, d.Host)
			}
			h.severity = max(h.severity, d.Severity)
			h.uninvited = h.uninvited || o.Uninvited
		}
	}
	list := make([]workloadRow, 0, len(all))
	for _, h := range all {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b workloadRow) int {
		return cmp.Or(cmp.Compare(b.devices, a.devices), cmp.Compare(a.Label, b.Label), cmp.Compare(a.Kind, b.Kind))
	})
	return list
}
