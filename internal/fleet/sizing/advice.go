package sizing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Kinds of advice.
const (
	Release = "release" // no device was used
	Fewer   = "fewer"   // some devices were not used
	Cut     = "slice"   // a partition of the device would do
	Smaller = "smaller" // another model of this fleet would do
)

// Advice is what a workload could ask for instead.
type Advice struct {
	Kind    string
	Devices int    // what it concerns: devices to give back, or to exchange
	Enough  int    // devices that suffice, of those that are held
	Model   string // Smaller: what to ask for
	Profile string // Cut: what to ask for
	Memory  optional.Float
	Text    string // in a sentence

	// PerDay is what it would save from now on, at the prices of now: absent without a price, and if nothing is held any more.
	PerDay optional.Float
	// Hours are the device hours of the period that it would have left to others. A device that is exchanged leaves none.
	Hours float64
}

// judge finds what would do.
type judge struct {
	o      Options
	peaks  *Peaks
	fleet  *fleet.Fleet
	period time.Duration
	to     time.Time
}

// advise fills in what the workload could ask for instead, or why nothing is proposed.
func (j *judge) advise(w *Workload, list []*unit) {
	var idle []*unit
	for _, u := range list {
		if j.unused(u) && j.observed(u) >= Held {
			idle = append(idle, u)
		}
	}
	switch {
	case w.Mean == 0 && w.Now == 0:
		w.Because = "uses a device that it did not ask for"
	case j.period < Period || w.Observed < Held:
		w.Because = fmt.Sprintf("observed for %s: advice needs %s of a period of at least %s", hours(w.Observed), hours(Held), hours(Period))
	case !w.Used.OK():
		w.Because = "the activity of its devices is not known"
	case len(idle) > 0:
		w.Advice = []Advice{j.giveBack(w, idle)}
	case w.Used.Default(0) < float64(w.Devices):
		w.Because = "the devices without use were held for less than " + hours(Held)
	default:
		w.Advice, w.Because = j.exchange(list)
	}
}

func hours(d time.Duration) string {
	return strings.TrimSuffix(strings.TrimSuffix(d.Round(time.Minute).String(), "0s"), "0m")
}

// giveBack proposes to give back unused devices.
func (j *judge) giveBack(w *Workload, idle []*unit) Advice {
	a := Advice{Kind: Fewer, Devices: len(idle), Enough: w.Devices - len(idle)}
	a.Text = fmt.Sprintf("used %d of %d GPUs: ask for %d", a.Enough, w.Devices, a.Enough)
	if a.Enough == 0 {
		a.Kind = Release
		a.Text = fmt.Sprintf("used none of %d GPUs", w.Devices)
		if w.Devices == 1 {
			a.Text = "did not use its GPU"
		}
	}
	j.save(&a, idle, 1, func(_ *unit, hour float64) (float64, bool) { return hour, true })
	return a
}

// exchange proposes partitions and smaller devices for instances with one whole device each, all of one model. An instance that
// spans devices does so for a reason.
func (j *judge) exchange(list []*unit) (out []Advice, because string) {
	var need Need
	instances := map[string]bool{}
	for _, u := range list {
		if u.instance == "" || instances[u.instance] {
			return nil, "uses all its devices"
		}
		instances[u.instance] = true
	}
	for _, u := range list {
		peak, active := j.peaks.Peak[u.key]
		memory, ok := j.peaks.Memory[u.key]
		size, model := j.size(u), u.Labels[fleet.LabelModel]
		switch {
		case u.Labels[fleet.LabelPartition] != "" || u.now > 0 && u.now < 0.999:
			return nil, "has a part of a device, and uses it"
		case u.now <= 0 && !j.peaks.Sole[u.key]:
			return nil, "has ended, and may have shared its device"
		case !active || !ok || size <= 0 || j.peaks.Shared[u.key]:
			return nil, "the peak of its memory or of its activity is not known"
		case j.observed(u) < Held:
			return nil, "some of its devices were held for less than " + hours(Held)
		case need.Model != "" && (need.Model != model || need.Size != size):
			return nil, "has devices of several models, and uses them"
		}
		need = Need{Model: model, Size: size, Activity: max(need.Activity, peak), Memory: max(need.Memory, memory)}
	}
	if slice, _, ok := need.Slice(j.o.Facts); ok {
		a := Advice{Kind: Cut, Devices: len(list), Profile: slice.Profile, Memory: optional.Of(slice.Memory)}
		a.Text = fmt.Sprintf("a partition %s would have carried its peaks plus %.0f %%", slice.Profile, Headroom*100)
		j.save(&a, list, 1-slice.Part, func(_ *unit, hour float64) (float64, bool) { return hour * (1 - slice.Part), true })
		out = append(out, a)
	}
	if a, ok := j.smaller(list, need); ok {
		out = append(out, a)
	}
	slices.SortStableFunc(out, func(a, b Advice) int { return cmp.Compare(b.PerDay.Default(0), a.PerDay.Default(0)) })
	if len(out) == 0 {
		because = "needs what it has"
	}
	return out, because
}

// smaller proposes the cheapest model of the fleet that would do; without prices, that with the least memory.
func (j *judge) smaller(list []*unit, need Need) (least Advice, ok bool) {
	own, known := j.device(list[0])
	if !known {
		return Advice{}, false
	}
	tried := map[Need]bool{}
	for i := range j.fleet.Devices {
		d := &j.fleet.Devices[i]
		size, sized := d.MemoryTotal.Get()
		kind := Need{Model: d.Model, Size: size}
		if !sized || size > need.Size || d.Model == need.Model || d.Vendor != own.Vendor || d.Cluster != own.Cluster || d.Simulated != own.Simulated || tried[kind] {
			continue
		}
		tried[kind] = true
		if !need.Fits(j.o.Facts, d.Model, size) {
			continue
		}
		a := Advice{Kind: Smaller, Devices: len(list), Model: d.Model, Memory: optional.Of(size)}
		a.Text = fmt.Sprintf("%s with %.0f GiB would have carried its peaks plus %.0f %%", d.Model, size/(1<<30), Headroom*100)
		j.save(&a, list, 0, func(u *unit, hour float64) (float64, bool) {
			row := fleet.OfMachine(d.Labels)
			maps.Copy(row, fleet.OfWorkload(u.Labels))
			other, ok := j.hour(row)
			return hour - other, ok
		})
		if saves, priced := a.PerDay.Get(); priced && saves <= 0 {
			continue
		}
		if !ok || cmp.Or(-cmp.Compare(a.PerDay.Default(0), least.PerDay.Default(0)), cmp.Compare(size, least.Memory.Default(0)), cmp.Compare(a.Model, least.Model)) < 0 {
			least, ok = a, true
		}
	}
	return least, ok
}

// device returns the device of a unit.
func (j *judge) device(u *unit) (*fleet.Device, bool) {
	i, ok := j.fleet.Index[fleet.DeviceKey(u.Labels)]
	if !ok {
		return nil, false
	}
	return &j.fleet.Devices[i], true
}

// hour returns what an hour of a device costs under the labels of a row, without energy.
func (j *judge) hour(row query.Labels) (float64, bool) {
	if j.o.Price == nil {
		return 0, false
	}
	price, ok := j.o.Price(row, j.to)
	return price.Device, ok
}

// save fills in what advice about some units saves: the part of each device that it leaves to others, and the money per hour of
// each, given what the device costs.
func (j *judge) save(a *Advice, list []*unit, part float64, saves func(u *unit, hour float64) (float64, bool)) {
	perDay, priced := 0.0, true
	for _, u := range list {
		a.Hours += u.Held.Hours() * part
		hour, known := j.hour(u.Labels)
		saved, ok := saves(u, hour)
		priced = priced && known && ok && u.now > 0
		perDay += u.now * 24 * saved
	}
	if priced {
		a.PerDay = optional.Of(perDay)
	}
}
