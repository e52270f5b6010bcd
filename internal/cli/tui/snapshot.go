// Package tui is the terminal view of gpumeter top: a model and pure functions from values to
// text. It does no I/O: the caller sends it snapshots.
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

// Snapshot is the state of the devices of one or more machines at one time.
type Snapshot struct {
	Time      time.Time
	From      string // source for display: the host, or the address of the hub
	Simulated bool   // all devices are simulated
	Currency  string // of Device.Cost; empty: there are no prices
	Queue     string // what waits, in words; empty if nothing does or nobody says
	Devices   []Device
	Findings  []Finding // the worst first
	// Problem is why there is no newer data. If set, all other fields are empty.
	Problem string
	// Empty is the text shown if there are no devices.
	Empty string
}

// Device is one device, or one partition of one.
type Device struct {
	Host    string
	Cluster string
	Vendor  string
	Index   int
	Model   string
	UUID    string
	// Profile of a partition; empty: a whole device.
	Profile string

	Up          bool
	Since       time.Time // of the last sample of a silent device; zero if the device reports
	State       string    // one or two words; ok if all is well
	Severity    Severity
	Simulated   bool
	Utilization device.Value // 0 to 1
	SM          device.Value // 0 to 1
	Memory      device.Value // bytes
	MemoryTotal device.Value
	Power       device.Value // watts
	PowerLimit  device.Value
	Celsius     device.Value
	Cost        device.Value // per hour
	Lost        device.Value // per hour of held time, without energy
	Held        bool         // allocated to workloads, in whole or in part
	Idle        device.Value // seconds without use by any holder
	Owners      []Owner
	More        []string // lines for the details page
}

// Owner is a workload that holds or uses a device or a part of it.
type Owner struct {
	ID          string // empty: unknown
	Partition   string // ID; empty: the whole device
	Kind, Name  string
	Label       string // the name by which users know the workload
	Cluster     string
	Team        string
	Share       float64 // allocated part of the device
	Uninvited   bool    // uses the device without an allocation
	Utilization device.Value
	Memory      device.Value // bytes
	Power       device.Value // watts
	Cost        device.Value // per hour
}

// Finding is a problem of a device or a machine.
type Finding struct {
	Severity Severity
	Host     string
	Cluster  string // of the host
	UUID     string // of the device; empty: the machine
	Of       string // the device, for display
	Reason   string
	Action   string
	Since    time.Time
}

// Apart adds the cluster to the names of hosts that several clusters have. It must be called once
// the snapshot is complete.
func (s *Snapshot) Apart() {
	clusters := map[string]map[string]bool{} // by host
	for i := range s.Devices {
		d := &s.Devices[i]
		if clusters[d.Host] == nil {
			clusters[d.Host] = map[string]bool{}
		}
		clusters[d.Host][d.Cluster] = true
	}
	name := func(host *string, cluster string) {
		if len(clusters[*host]) > 1 {
			*host = fleet.InCluster(*host, cluster)
		}
	}
	for i := range s.Devices {
		name(&s.Devices[i].Host, s.Devices[i].Cluster)
	}
	for i := range s.Findings {
		name(&s.Findings[i].Host, s.Findings[i].Cluster)
	}
}

// Severity is the severity of a finding or a device.
type Severity int

// The severities, in ascending order.
const (
	Fine Severity = iota
	Info
	Warning
	Critical
)

// String returns the severity in lower case.
func (s Severity) String() string { return [...]string{"ok", "info", "warning", "critical"}[s] }

// key identifies a device in a snapshot.
func (d *Device) key() string { return d.Host + "/" + d.UUID }

// idle reports whether the device is idle by the definition of package fleet.
func (d *Device) idle() bool {
	idle, ok := d.Idle.Get()
	return ok && d.Held && idle >= fleet.IdleAfter.Seconds()
}

// silent reports whether the device no longer reports.
func (d *Device) silent() bool { return !d.Since.IsZero() }

// notGiven follows the name of a workload that uses a device without an allocation.
const notGiven = " (not given)"

// owners returns the names of all owners, with their shares if there are several.
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
			return 2 // above any share: an owner without an allocation comes first
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

// totals holds the sums of the line at the top.
type totals struct {
	devices, silent, held, idle, down int
	hosts                             int
	watts                             device.Value
	cost, lost, unseen                float64 // lost is the cost of the held time of idle devices, unseen that of silent ones
}

func (s *Snapshot) totals() totals {
	var t totals
	hosts := map[string]bool{}
	for i := range s.Devices {
		d := &s.Devices[i]
		hosts[d.Host] = true
		if d.Profile != "" {
			continue // already counted with its device
		}
		t.devices++
		cost, _ := d.Cost.Get()
		t.cost += cost
		t.watts = plus(t.watts, d.Power)
		if d.silent() {
			t.silent++
			t.unseen += cost
			continue
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
			lost, _ := d.Lost.Get()
			t.lost += lost
		}
	}
	t.hosts = len(hosts)
	return t
}

// workloadRow is one workload on all its devices.
type workloadRow struct {
	Owner
	devices   float64 // sum of the shares
	active    int     // number of devices with utilization above 0
	busy      float64 // utilization, weighted by share
	known     float64 // devices whose utilization is known: the share, or 1 without an allocation
	memory    device.Value
	watts     device.Value
	cost      float64
	priced    bool
	hosts     []string
	severity  Severity
	uninvited bool
}

// plus adds two values. A sum of unknown values is unknown.
func plus(a, b device.Value) device.Value {
	x, ok := a.Get()
	y, too := b.Get()
	if !ok && !too {
		return device.Value{}
	}
	return device.Of(x + y)
}

// workloads returns the workloads on all devices, the largest allocation first.
func (s *Snapshot) workloads() []workloadRow {
	all := map[string]*workloadRow{}
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Profile != "" {
			continue // its owners are listed with the device
		}
		active := map[*workloadRow]bool{} // on this device
		for _, o := range d.Owners {
			name := o.Kind + " " + o.Label + " " + o.Cluster
			h := all[name]
			if h == nil {
				h = &workloadRow{Owner: o}
				all[name] = h
			}
			h.devices += o.Share
			if busy, ok := o.Utilization.Get(); ok {
				h.busy += busy
				if o.Uninvited {
					h.known++
				} else {
					h.known += max(o.Share, busy)
				}
				if busy > 0 && !active[h] {
					active[h] = true
					h.active++
				}
			}
			h.memory, h.watts = plus(h.memory, o.Memory), plus(h.watts, o.Power)
			if cost, ok := o.Cost.Get(); ok {
				h.cost += cost
				h.priced = true
			}
			if !slices.Contains(h.hosts, d.Host) {
				h.hosts = append(h.hosts, d.Host)
			}
			h.severity = max(h.severity, d.Severity)
			h.uninvited = h.uninvited || o.Uninvited
		}
	}
	clusters := map[string]int{} // by kind and name
	for _, h := range all {
		clusters[h.Kind+" "+h.Label]++
	}
	list := make([]workloadRow, 0, len(all))
	for _, h := range all {
		if clusters[h.Kind+" "+h.Label] > 1 {
			h.Label = fleet.InCluster(h.Label, h.Cluster)
		}
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b workloadRow) int {
		return cmp.Or(cmp.Compare(b.devices, a.devices), cmp.Compare(a.Label, b.Label), cmp.Compare(a.Kind, b.Kind))
	})
	return list
}
