// Package worldtest simulates fleets for tests of bills: agents write the counters of random
// workloads to a store in memory, restart, lose their state and lose samples. Hostile adds what must
// not happen and does.
package worldtest

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// World simulates agents that write the counters of random workloads to a store, including
// restarts, lost state and lost samples.
type World struct {
	r     *rand.Rand
	Store *querytest.Memory
	Begin time.Time
	End   time.Time
	step  time.Duration
	// calm: no agent dies and no sample is lost, so the store has the full truth.
	calm bool
	wild bool // see Hostile

	agents []*agent
	// Held is the device time that the agents have counted since the start, in seconds.
	Held float64
}

type agent struct {
	world    *World
	name     string
	cluster  string
	pod      int // pod of the agent, a scrape label
	twice    bool
	devices  []*gpu
	last     time.Time // the last tick
	down     time.Time // the agent is down until then
	deaf     time.Time // scrapes fail until then
	snapshot []map[string]*account

	// Of a hostile world.
	offset time.Duration // of the agent's clock
	since  time.Time     // when a second agent of the host starts
	blind  bool          // it sees no workloads
}

type gpu struct {
	uuid, model string
	noActivity  bool
	noEnergy    bool
	holders     []string // by part of the device
	relabelled  []int    // how often the team label of the holder was edited, by part of the device
	accounts    map[string]*account
	known       map[string]bool // accounts so far
}

type account struct {
	labels               query.Labels
	into                 map[series]func(time.Time, float64) // shared by copies
	held, active, energy float64
	seen                 time.Time
	ended                bool
}

// series is what tells the series of one account apart.
type series struct {
	name     string
	way, pod int
	cluster  string
}

var models = []string{"H100", "A100", "MI300X", "p150a"}

// New returns a fleet. A calm one neither restarts agents nor loses samples.
func New(seed uint64, begin time.Time, d time.Duration, calm bool) *World {
	f := &World{r: rand.New(rand.NewPCG(seed, 9)), Store: querytest.NewMemory(), Begin: begin, End: begin.Add(d), calm: calm}
	f.step = time.Duration(30+f.r.IntN(90)) * time.Second
	for i := range 1 + f.r.IntN(3) {
		a := &agent{world: f, name: fmt.Sprintf("node-%d", i), twice: f.r.IntN(3) == 0 && !calm}
		for j := range 1 + f.r.IntN(2) {
			model := models[f.r.IntN(len(models))]
			g := &gpu{uuid: fmt.Sprintf("GPU-%d-%d", i, j), model: model, accounts: map[string]*account{}, known: map[string]bool{}, noActivity: strings.HasPrefix(model, "Ten"), noEnergy: f.r.IntN(4) == 0}
			g.holders = make([]string, []int{1, 1, 2, 7}[f.r.IntN(4)])
			g.relabelled = make([]int, len(g.holders))
			a.devices = append(a.devices, g)
		}
		f.agents = append(f.agents, a)
	}
	return f
}

// Hostile adds what must not happen and does: second agents on a host, for a while or for good, with
// the labels of the first one or without any workloads; nodes whose devices have the same ID; clocks
// that are wrong and are set right.
func (f *World) Hostile() *World {
	f.wild = true
	for _, a := range slices.Clone(f.agents) {
		if f.r.IntN(3) == 0 {
			for _, g := range a.devices {
				g.uuid = "tpu-0000:3d:00." + g.uuid[len(g.uuid)-1:]
			}
		}
		if f.r.IntN(2) == 0 {
			continue
		}
		twin := &agent{world: f, name: a.name, blind: f.r.IntN(2) == 0, since: f.Begin.Add(time.Duration(f.r.Int64N(int64(f.End.Sub(f.Begin)))))}
		if f.r.IntN(4) == 0 {
			twin.name = "pod-of-" + a.name
		}
		for _, g := range a.devices {
			x := *g
			x.accounts, x.known, x.relabelled = map[string]*account{}, map[string]bool{}, make([]int, len(g.holders))
			x.holders = slices.Clone(g.holders)
			twin.devices = append(twin.devices, &x)
		}
		f.agents = append(f.agents, twin)
	}
	return f
}

// Run lets the agents work.
func (f *World) Run() *World {
	for at := f.Begin; !at.After(f.End); at = at.Add(f.step) {
		for _, a := range f.agents {
			a.tick(at.Add(time.Duration(f.r.IntN(900)) * time.Millisecond))
		}
	}
	return f
}

func (a *agent) tick(at time.Time) {
	r := a.world.r
	if at.Before(a.down) || at.Before(a.since) {
		return
	}
	if a.world.wild && r.IntN(60) == 0 {
		a.offset = []time.Duration{0, 0, 9 * time.Minute, -7 * time.Minute, 2 * time.Second}[r.IntN(5)]
	}
	if !a.world.calm {
		switch r.IntN(400) {
		case 0: // clean restart: nothing is lost
			a.down = at.Add(time.Duration(r.IntN(7200)) * time.Second)
			a.pod++
			return
		case 1: // killed: continues from the last saved state
			a.down = at.Add(time.Duration(r.IntN(600)) * time.Second)
			a.pod++
			for i, g := range a.devices {
				if a.snapshot != nil {
					g.accounts = clone(a.snapshot[i])
				} else {
					g.accounts = map[string]*account{}
				}
			}
			return
		case 2: // state folder lost
			a.down = at.Add(time.Duration(r.IntN(600)) * time.Second)
			a.pod++
			a.snapshot = nil
			for _, g := range a.devices {
				g.accounts = map[string]*account{}
			}
			return
		case 3:
			a.deaf = at.Add(time.Duration(r.IntN(5400)) * time.Second)
		case 4:
			a.cluster = "prod" // the metadata server answers late
		}
	}
	elapsed := min(at.Sub(a.last), a.world.step+time.Second) // nothing is counted while the agent is down
	a.last = at
	for _, g := range a.devices {
		g.tick(a, at, elapsed)
	}
	if r.IntN(4) == 0 {
		a.snapshot = nil
		for _, g := range a.devices {
			a.snapshot = append(a.snapshot, clone(g.accounts))
		}
	}
}

func clone(m map[string]*account) map[string]*account {
	out := map[string]*account{}
	for k, v := range m {
		c := *v
		out[k] = &c
	}
	return out
}

func (g *gpu) tick(a *agent, at time.Time, elapsed time.Duration) {
	f, r := a.world, a.world.r
	part := 1 / float64(len(g.holders))
	seconds := elapsed.Seconds() * (0.9 + r.Float64()/10)
	for i, who := range g.holders {
		if a.blind && who != "" {
			who = "?"
		}
		key := fmt.Sprint(i, who, g.relabelled[i])
		acc := g.accounts[key]
		if acc == nil {
			acc = &account{labels: g.labels(i, who), into: map[series]func(time.Time, float64){}}
			g.accounts[key] = acc
			if g.relabelled[i] == 0 || g.known[key] { // a scrape after an edit shows the new account above 0
				f.write(a, g, acc, at.Add(-elapsed)) // the counter starts at 0
			}
			g.known[key] = true
		}
		acc.held += part * seconds
		f.Held += part * seconds
		if r.IntN(3) > 0 {
			acc.active += part * seconds
		}
		acc.energy += part * seconds * 700 * r.Float64()
		acc.seen, acc.ended = at, false
	}
	for _, key := range slices.Sorted(maps.Keys(g.accounts)) { // in order, so that a seed is reproducible
		acc := g.accounts[key]
		if at.Sub(acc.seen) > 5*time.Minute {
			if !acc.ended {
				for _, name := range []string{acc.heldSeries(), fleet.SeriesActiveTime, fleet.SeriesEnergy} {
					acc.add(name, a, 0, at, math.NaN())
				}
			}
			acc.ended = true
			delete(g.accounts, key)
			continue
		}
		f.write(a, g, acc, at)
	}
	for i := range g.holders { // next holder, including A -> B -> A
		if r.IntN(40) == 0 {
			g.holders[i] = []string{"", "", "a", "b", "c", "a"}[r.IntN(6)]
		}
		if r.IntN(60) == 0 { // an agent opens a new account
			g.relabelled[i] = (g.relabelled[i] + 1) % 3
		}
		if g.holders[i] == "" {
			g.relabelled[i] = 0
		}
	}
}

func (g *gpu) labels(i int, who string) query.Labels {
	l := query.Labels{fleet.LabelUUID: g.uuid, fleet.LabelModel: g.model, fleet.LabelKind: fleet.KindUnallocated}
	if len(g.holders) > 1 {
		l[fleet.LabelPartition] = fmt.Sprintf("%s-%d", g.uuid, i)
	}
	switch who {
	case "":
	case "?":
		l[fleet.LabelKind] = fleet.KindUnattributed
	default:
		maps.Copy(l, query.Labels{
			fleet.LabelKind: "job", fleet.LabelWorkload: "job-" + who, fleet.LabelTeam: fmt.Sprint("team-", who, "-", g.relabelled[i]),
			fleet.LabelPodUID: "uid-" + who, fleet.LabelNamespace: "ns", fleet.LabelPod: "pod-" + who,
		})
	}
	return l
}

// heldSeries returns the name of the account's device time counter.
func (acc *account) heldSeries() string {
	if acc.labels[fleet.LabelKind] == fleet.KindUnallocated {
		return fleet.SeriesUnallocatedTime
	}
	return fleet.SeriesAllocatedTime
}

// add writes a sample of the account.
func (acc *account) add(name string, a *agent, way int, at time.Time, v float64) {
	id := series{name, way, a.pod, a.cluster}
	into := acc.into[id]
	if into == nil {
		l := maps.Clone(acc.labels)
		maps.Copy(l, query.Labels{fleet.LabelName: name, "__unit__": name[len("gpu_"):], fleet.LabelHost: a.name, "instance": fmt.Sprint(a.name, way), "pod": fmt.Sprint("agent-", a.pod), fleet.LabelIndex: "0"})
		if a.cluster != "" {
			l[fleet.LabelCluster] = a.cluster
		}
		into = a.world.Store.Into(l)
		acc.into[id] = into
	}
	into(at, v)
}

// write stores the agent's sample unless scrapes fail.
func (f *World) write(a *agent, g *gpu, acc *account, at time.Time) {
	if !f.calm && (at.Before(a.deaf) || f.r.IntN(50) == 0) {
		return
	}
	ways := 1
	if a.twice {
		ways = 2
	}
	at = at.Add(a.offset)
	for way := range ways {
		when := at.Add(time.Duration(way*f.r.IntN(3000)) * time.Millisecond)
		acc.add(acc.heldSeries(), a, way, when, acc.held)
		if !g.noActivity && acc.labels[fleet.LabelKind] != fleet.KindUnallocated {
			acc.add(fleet.SeriesActiveTime, a, way, when, acc.active)
		}
		if !g.noEnergy {
			acc.add(fleet.SeriesEnergy, a, way, when, acc.energy)
		}
	}
}
