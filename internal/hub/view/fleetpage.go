package view

import (
	"context"
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// headline summarizes the fleet.
type headline struct {
	GPUs        int    `json:"gpus"`      // with the silent ones, which count in none of those below
	Silent      int    `json:"silent"`    // reported in the last day and do not report now
	Held        int    `json:"held"`      // allocated, in whole or in part
	Idle        int    `json:"idle"`      // held and unused for fleet.IdleAfter
	Free        int    `json:"free"`      // not allocated
	Sick        int    `json:"sick"`      // critical or unresponsive
	Warning     int    `json:"warning"`   // needs attention
	Uninvited   int    `json:"uninvited"` // used by a workload without an allocation
	Simulated   int    `json:"simulated"` // not real
	Nodes       int    `json:"nodes"`
	SilentNodes int    `json:"silentNodes"` // nodes whose devices are all silent
	Owners      int    `json:"owners"`      // workloads that hold a device
	Teams       int    `json:"teams"`
	Watts       number `json:"watts"`       // sum over the devices that report power
	Utilization number `json:"utilization"` // mean over the devices that report utilization
	LostPerDay  number `json:"lostPerDay"`  // cost of the held time of idle devices, without energy; null without prices
	CostPerHour number `json:"costPerHour"` // cost of all devices
	// SilentPerHour is the part of CostPerHour for silent devices.
	SilentPerHour number `json:"silentPerHour"`
}

// fleetAnswer has one column per property: an array of objects would repeat every key 10,000
// times.
type fleetAnswer struct {
	At        int64         `json:"at"`
	Title     string        `json:"title,omitempty"`
	Team      string        `json:"team,omitempty"`
	Currency  string        `json:"currency,omitempty"`
	IdleAfter int           `json:"idleAfter"` // minutes
	Headline  headline      `json:"headline"`
	Owners    []fleet.Owner `json:"owners"`
	Texts     []string      `json:"texts"` // dictionary for model, vendor, node, cluster and rack
	GPUs      gpus          `json:"gpus"`
}

type gpus struct {
	UUID    []string `json:"uuid"`
	Index   column   `json:"index"`
	Model   []int    `json:"model"`
	Short   []int    `json:"shortModel"` // model without the vendor's name
	Vendor  []int    `json:"vendor"`
	Node    []int    `json:"node"`
	Cluster []int    `json:"cluster"`
	Rack    []int    `json:"rack"`
	// Since is the time of the last sample of silent devices in Unix seconds, by row number.
	Since map[int]int64 `json:"since"`
	// 1 is good, 0.5 a warning, 0 critical, -1 unresponsive.
	Health      column  `json:"health"`
	Utilization column  `json:"utilization"`
	Memory      column  `json:"memory"`
	MemoryTotal column  `json:"memoryTotal"`
	Power       column  `json:"power"`
	Temperature column  `json:"temperature"`
	Held        column  `json:"held"`
	Idle        column  `json:"idle"` // minutes
	Rate        column  `json:"rate"`
	HeldRate    column  `json:"heldRate"` // of held time, without energy
	Owners      [][]int `json:"owners"`
	// Uninvited has the workloads that use a device without an allocation, by row number.
	Uninvited map[int][]int `json:"uninvited"`
	Simulated []int         `json:"simulated"` // row numbers
}

func (v *viewer) fleetPage(ctx context.Context, r request) (any, error) {
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	a := fleetAnswer{
		At: f.At.Unix(), Title: v.opts.Title, Team: v.opts.Team, Currency: v.accounts.Currency,
		IdleAfter: int(fleet.IdleAfter / time.Minute), Headline: headlineOf(f), Owners: f.Owners,
	}
	if a.Owners == nil {
		a.Owners = []fleet.Owner{}
	}
	a.GPUs, a.Texts = v.columns(f.Devices)
	return a, nil
}

// columns converts devices to columns.
func (v *viewer) columns(list []fleet.Device) (gpus, []string) {
	n := len(list)
	values := func(of func(*fleet.Device) float64) column {
		c := make(column, n)
		for i := range list {
			c[i] = of(&list[i])
		}
		return c
	}
	texts := dictionary{Texts: []string{}}
	words := func(of func(*fleet.Device) string) []int {
		c := make([]int, n)
		for i := range list {
			c[i] = texts.of(of(&list[i]))
		}
		return c
	}
	t := gpus{
		UUID:        make([]string, n),
		Owners:      make([][]int, n),
		Uninvited:   map[int][]int{},
		Since:       map[int]int64{},
		Simulated:   []int{},
		Index:       values(func(d *fleet.Device) float64 { return float(d.Index) }),
		Health:      values(func(d *fleet.Device) float64 { return float(d.Condition()) }),
		Utilization: values(func(d *fleet.Device) float64 { return float(d.Utilization) }),
		Memory:      values(func(d *fleet.Device) float64 { return float(d.Memory) }),
		MemoryTotal: values(func(d *fleet.Device) float64 { return float(d.MemoryTotal) }),
		Power:       values(func(d *fleet.Device) float64 { return float(d.Power) }),
		Temperature: values(func(d *fleet.Device) float64 { return float(d.Temperature) }),
		Held:        values(func(d *fleet.Device) float64 { return d.Allocated }),
		Idle:        values(func(d *fleet.Device) float64 { return math.Floor(float(d.Idle) / 60) }),
		Rate:        values(func(d *fleet.Device) float64 { return float(d.Rate) }),
		HeldRate:    values(func(d *fleet.Device) float64 { return float(fleet.HeldRate(d.Charges)) }),
		Model:       words(func(d *fleet.Device) string { return d.Model }),
		Short:       words(func(d *fleet.Device) string { return v.opts.shortModel(d.Model) }),
		Vendor:      words(func(d *fleet.Device) string { return d.Vendor }),
		Node:        words(func(d *fleet.Device) string { return d.Node }),
		Cluster:     words(func(d *fleet.Device) string { return d.Cluster }),
		Rack:        words(func(d *fleet.Device) string { return d.Rack }),
	}
	for i := range list {
		t.UUID[i] = list[i].UUID
		t.Owners[i] = list[i].Owners
		if t.Owners[i] == nil {
			t.Owners[i] = []int{}
		}
		if len(list[i].Uninvited) > 0 {
			t.Uninvited[i] = list[i].Uninvited
		}
		if list[i].Silent() {
			t.Since[i] = list[i].Since.Unix()
		}
		if list[i].Simulated {
			t.Simulated = append(t.Simulated, i)
		}
	}
	return t, texts.Texts
}

// headlineOf sums up a fleet.
func headlineOf(f *fleet.Fleet) headline {
	h := headline{GPUs: len(f.Devices), Watts: number(absent), Utilization: number(absent), LostPerDay: number(absent), CostPerHour: number(absent), SilentPerHour: number(absent)}
	nodes, teams, holders := map[[2]string]bool{}, map[string]bool{}, map[int]bool{} // nodes: whether they report
	var watts, util, rate, lost, silent sum
	for i := range f.Devices {
		d := &f.Devices[i]
		node := [2]string{d.Cluster, d.Node}
		nodes[node] = nodes[node] || !d.Silent()
		if d.Simulated {
			h.Simulated++
		}
		rate.add(float(d.Rate))
		if d.Silent() {
			h.Silent++
			silent.add(float(d.Rate))
			continue
		}
		if d.Held() {
			h.Held++
		} else {
			h.Free++
		}
		for _, n := range d.Owners {
			o := &f.Owners[n]
			if fleet.IsWorkload(o.Kind) {
				holders[n] = true
			}
			if o.Team != "" {
				teams[o.Team] = true
			}
		}
		if len(d.Uninvited) > 0 {
			h.Uninvited++
		}
		if c, ok := d.Condition().Get(); ok && c <= 0 {
			h.Sick++
		} else if ok && c < 1 {
			h.Warning++
		}
		watts.add(float(d.Power))
		util.add(float(d.Utilization))
		if d.IsIdle() {
			h.Idle++
			lost.add(24 * float(fleet.HeldRate(d.Charges)))
		}
	}
	h.Nodes, h.Teams, h.Owners = len(nodes), len(teams), len(holders)
	for _, reports := range nodes {
		if !reports {
			h.SilentNodes++
		}
	}
	if watts.n > 0 {
		h.Watts = number(watts.total)
	}
	if util.n > 0 {
		h.Utilization = number(util.total / float64(util.n))
	}
	if rate.n > 0 {
		h.CostPerHour, h.LostPerDay, h.SilentPerHour = number(rate.total), number(lost.total), number(silent.total)
	}
	return h
}

// sum adds the values that are present.
type sum struct {
	total float64
	n     int
}

func (s *sum) add(v float64) {
	if !math.IsNaN(v) {
		s.total += v
		s.n++
	}
}

// value returns the sum, absent if nothing was added.
func (s *sum) value() number {
	if s.n == 0 {
		return number(absent)
	}
	return number(s.total)
}
