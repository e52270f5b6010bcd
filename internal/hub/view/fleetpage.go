package view

import (
	"context"
	"math"
	"time"
)

// headline is the fleet in one sentence.
type headline struct {
	GPUs        int    `json:"gpus"`
	Held        int    `json:"held"`      // somebody has them, or a part of them
	Idle        int    `json:"idle"`      // held, and not used for idleAfter
	Free        int    `json:"free"`      // nobody has them
	Sick        int    `json:"sick"`      // critical, or they do not answer
	Warning     int    `json:"warning"`   // somebody should look at them
	Simulated   int    `json:"simulated"` // not real
	Nodes       int    `json:"nodes"`
	Owners      int    `json:"owners"`
	Teams       int    `json:"teams"`
	Watts       number `json:"watts"`       // drawn now, of those that say it
	Utilization number `json:"utilization"` // mean of those that say it
	LostPerDay  number `json:"lostPerDay"`  // price of the idle ones; null without prices
	CostPerHour number `json:"costPerHour"` // price of all
}

// fleetAnswer has one column a property: rows of a table would repeat its names 10,000 times.
type fleetAnswer struct {
	At        int64    `json:"at"`
	Title     string   `json:"title,omitempty"`
	Team      string   `json:"team,omitempty"`
	Currency  string   `json:"currency,omitempty"`
	IdleAfter int      `json:"idleAfter"` // minutes
	Headline  headline `json:"headline"`
	Owners    []Owner  `json:"owners"`
	Texts     []string `json:"texts"` // of model, vendor, node, cluster and rack
	GPUs      gpus     `json:"gpus"`
}

type gpus struct {
	UUID    []string `json:"uuid"`
	Index   column   `json:"index"`
	Model   []int    `json:"model"`
	Short   []int    `json:"shortModel"` // the model without the words of its vendor
	Vendor  []int    `json:"vendor"`
	Node    []int    `json:"node"`
	Cluster []int    `json:"cluster"`
	Rack    []int    `json:"rack"`
	// 1 is good, 0.5 a warning, 0 critical, -1 it does not answer.
	Health      column  `json:"health"`
	Utilization column  `json:"utilization"`
	Memory      column  `json:"memory"`
	MemoryTotal column  `json:"memoryTotal"`
	Power       column  `json:"power"`
	Temperature column  `json:"temperature"`
	Held        column  `json:"held"`
	Idle        column  `json:"idle"` // minutes
	Rate        column  `json:"rate"`
	Owners      [][]int `json:"owners"`
	Simulated   []int   `json:"simulated"` // which of them are
}

func (v *viewer) fleetPage(ctx context.Context, r request) (any, error) {
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	a := fleetAnswer{
		At: f.at.Unix(), Title: v.opts.Title, Team: v.opts.Team, Currency: v.accounts.Currency,
		IdleAfter: int(idleAfter / time.Minute), Headline: f.headline(), Owners: f.owners,
	}
	if a.Owners == nil {
		a.Owners = []Owner{}
	}
	a.GPUs, a.Texts = columns(f.gpus)
	return a, nil
}

// columns turns rows into columns.
func columns(list []gpu) (gpus, []string) {
	n := len(list)
	values := func(of func(*gpu) float64) column {
		c := make(column, n)
		for i := range list {
			c[i] = of(&list[i])
		}
		return c
	}
	texts := dictionary{Texts: []string{}}
	words := func(of func(*gpu) string) []int {
		c := make([]int, n)
		for i := range list {
			c[i] = texts.of(of(&list[i]))
		}
		return c
	}
	t := gpus{
		UUID:        make([]string, n),
		Owners:      make([][]int, n),
		Simulated:   []int{},
		Index:       values(func(g *gpu) float64 { return g.index }),
		Health:      values(func(g *gpu) float64 { return g.condition() }),
		Utilization: values(func(g *gpu) float64 { return g.util }),
		Memory:      values(func(g *gpu) float64 { return g.memory }),
		MemoryTotal: values(func(g *gpu) float64 { return g.memoryTotal }),
		Power:       values(func(g *gpu) float64 { return g.power }),
		Temperature: values(func(g *gpu) float64 { return g.temp }),
		Held:        values(func(g *gpu) float64 { return g.held }),
		Idle:        values(func(g *gpu) float64 { return g.idle }),
		Rate:        values(func(g *gpu) float64 { return g.rate }),
		Model:       words(func(g *gpu) string { return g.model }),
		Short:       words(func(g *gpu) string { return g.shortModel }),
		Vendor:      words(func(g *gpu) string { return g.vendor }),
		Node:        words(func(g *gpu) string { return g.node }),
		Cluster:     words(func(g *gpu) string { return g.cluster }),
		Rack:        words(func(g *gpu) string { return g.rack }),
	}
	for i := range list {
		t.UUID[i] = list[i].uuid
		t.Owners[i] = list[i].owners
		if t.Owners[i] == nil {
			t.Owners[i] = []int{}
		}
		if list[i].simulated {
			t.Simulated = append(t.Simulated, i)
		}
	}
	return t, texts.Texts
}

// condition is how a device is: its health, or -1 if it does not answer.
func (g *gpu) condition() float64 {
	if !g.up {
		return -1
	}
	return g.health
}

func (g *gpu) isIdle() bool { return g.held > 0 && g.idle >= idleAfter.Minutes() }

func (f *fleet) headline() headline {
	h := headline{GPUs: len(f.gpus), Owners: len(f.owners), Watts: number(absent), Utilization: number(absent), LostPerDay: number(absent), CostPerHour: number(absent)}
	nodes, teams := map[[2]string]bool{}, map[string]bool{}
	var watts, util, lost, rate sum
	for _, o := range f.owners {
		if o.Team != "" {
			teams[o.Team] = true
		}
	}
	for i := range f.gpus {
		g := &f.gpus[i]
		nodes[[2]string{g.cluster, g.node}] = true
		if g.held > 0 {
			h.Held++
		} else {
			h.Free++
		}
		if g.simulated {
			h.Simulated++
		}
		switch c := g.condition(); {
		case c <= 0:
			h.Sick++
		case c < 1:
			h.Warning++
		}
		watts.add(g.power)
		util.add(g.util)
		rate.add(g.rate)
		if g.isIdle() {
			h.Idle++
			lost.add(24 * g.rate * min(g.held, 1))
		}
	}
	h.Nodes, h.Teams = len(nodes), len(teams)
	if watts.n > 0 {
		h.Watts = number(watts.total)
	}
	if util.n > 0 {
		h.Utilization = number(util.total / float64(util.n))
	}
	if rate.n > 0 {
		h.CostPerHour, h.LostPerDay = number(rate.total), number(lost.total)
	}
	return h
}

// sum adds what is there.
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

// value is the sum, absent if there was nothing to add.
func (s *sum) value() number {
	if s.n == 0 {
		return number(absent)
	}
	return number(s.total)
}
