package queue

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
)

// Team is what a team asks for, has and uses, in devices.
type Team struct {
	Team           string
	Given, Waiting float64 // as schedulers say
	Busy           float64 // of what it holds, as measured: the sum of utilizations
	Idle           int     // devices that nobody has used for fleet.IdleAfter
}

// Teams returns the teams that have or wait for devices in any cluster, the one that asks for most first. A pod without a team
// belongs to its namespace, as it does on a bill. holders are those of the same moment as f.
func Teams(clusters []Cluster, f *fleet.Fleet, holders []fleet.Holder) []Team {
	rows := map[string]*Team{}
	of := func(scheduler string, k Key) *Team {
		name := k.Team
		if scheduler == Kubernetes {
			name = cmp.Or(name, k.Queue)
		}
		if rows[name] == nil {
			rows[name] = &Team{Team: name}
		}
		return rows[name]
	}
	for i := range clusters {
		for _, n := range clusters[i].Allocated {
			of(clusters[i].Scheduler, n.Key).Given += n.N
		}
		for _, n := range clusters[i].Pending {
			of(clusters[i].Scheduler, n.Key).Waiting += n.N
		}
	}
	for i := range holders {
		if t := rows[holders[i].Team]; t != nil && fleet.IsWorkload(holders[i].Kind) {
			t.Busy += holders[i].Utilization.Default(0)
		}
	}
	for i := range f.Devices {
		if d := &f.Devices[i]; len(d.Owners) > 0 && d.IsIdle() {
			if t := rows[f.Owners[d.Owners[0]].Team]; t != nil {
				t.Idle++
			}
		}
	}
	out := make([]Team, 0, len(rows))
	for _, t := range rows {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b Team) int {
		return cmp.Or(cmp.Compare(b.Given+b.Waiting, a.Given+a.Waiting), cmp.Compare(a.Team, b.Team))
	})
	return out
}

// Rates are what devices cost an hour, by model.
type Rates []rate

type rate struct {
	words []string // of the model
	sum   float64
	n     float64
}

// RatesOf returns the rates of a fleet.
func RatesOf(f *fleet.Fleet) Rates {
	places, out := map[string]int{}, Rates(nil)
	for i := range f.Devices {
		d := &f.Devices[i]
		price, ok := d.Rate.Get()
		if !ok {
			continue
		}
		at, known := places[d.Model]
		if !known {
			at = len(out)
			places[d.Model] = at
			out = append(out, rate{words: words(d.Model)})
		}
		out[at].sum, out[at].n = out[at].sum+price, out[at].n+1
	}
	return out
}

// Of returns the mean rate of the devices of a model as a scheduler names it, absent without prices and if no device of the fleet
// has this name: all words of one name are in the other, as in H100 and NVIDIA H100 80GB HBM3.
func (r Rates) Of(model string) optional.Float {
	want := words(model)
	sum, n := 0.0, 0.0
	for _, one := range r {
		if same(want, one.words) {
			sum, n = sum+one.sum, n+one.n
		}
	}
	if n == 0 {
		return optional.Float{}
	}
	return optional.Of(sum / n)
}

// words returns the words of the name of a model: labels of nodes have other separators than drivers.
func words(model string) []string {
	return strings.FieldsFunc(strings.ToLower(model), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

func same(x, y []string) bool {
	if len(x) > len(y) {
		x, y = y, x
	}
	return len(x) > 0 && !slices.ContainsFunc(x, func(w string) bool { return !slices.Contains(y, w) })
}

// Spoken returns the name of a model in a label of a node as a driver writes it: NVIDIA-H100-80GB-HBM3 has spaces there.
func Spoken(model string) string { return strings.NewReplacer("-", " ", "_", " ").Replace(model) }
