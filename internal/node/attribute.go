package node

import (
	"errors"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// attribute determines the holders of the devices at a tick, and books what was used since
// the previous tick.
func (v *View) attribute(t *Tick, tier device.Tier) {
	if v.cfg.Owners == nil {
		return
	}
	if t.Paused { // devices are not read: the sole holder before and after is charged for the pause
		t.Attribution = v.attribution
		for _, a := range v.state.Devices {
			if a.Ledger != nil {
				a.Ledger.suspend()
			}
		}
		return
	}
	if r, ok := v.cfg.Owners.(interface{ Ready() bool }); ok && t.Time.Sub(v.started) < maxWait && !r.Ready() {
		return // a workload that is not named yet would become a different one later
	}
	before := v.owners
	v.question = v.ask(t.Readings)
	answer := v.cfg.Owners.Resolve(v.question)
	v.owners = owners{answer.Holdings, answer.Processes}
	t.Attribution = answer.Statuses
	v.sayAttribution(answer.Statuses)
	v.seek(answer.Unknown, t.Time)
	if tier < device.Slow && !sameGrants(before.holdings, v.owners.holdings) {
		v.lastSlow = time.Time{} // allocations changed during the read: read the energy counter at the next tick
	}
	for _, c := range cuts(t.Readings) {
		a := v.state.record(c.device.ID.UUID, t.Time)
		if a.Ledger == nil {
			a.Ledger = &ledger{}
		}
		a.Ledger.advance(t.Time, c, before, v.owners, tier >= device.Slow && !c.device.Late)
		c.device.Holders = a.Ledger.holders(c)
		c.own()
	}
}

// own sets the Owner of the device, or of each partition, that exactly one workload holds.
func (c cut) own() {
	readings := c.partitions
	if len(readings) == 0 {
		readings = []*Reading{c.device}
	}
	for _, r := range readings {
		partition := ""
		if r != c.device {
			partition = r.ID.UUID
		}
		var found []*workload.Workload
		for i := range c.device.Holders {
			h := &c.device.Holders[i]
			if !h.Ended && h.Partition == partition && h.Kind != workload.Unallocated {
				found = append(found, &h.Workload)
			}
		}
		if len(found) == 1 && !isRest(found[0].Kind) {
			r.Owner = found[0]
		}
	}
}

// regranted reports whether an allocation changed since the last tick. The energy counter
// is then read, so that each workload is charged for its own use.
func (v *View) regranted() bool {
	if v.cfg.Owners == nil {
		return false
	}
	q := workload.Question{Devices: v.question.Devices} // resolving the processes would cost more than it is worth
	return !sameGrants(v.cfg.Owners.Resolve(q).Holdings, v.owners.holdings)
}

// sameGrants reports whether both lists have the same allocations.
func sameGrants(a, b []workload.Holding) bool {
	given := func(list []workload.Holding) []workload.Holding {
		return slices.DeleteFunc(slices.Clone(list), func(h workload.Holding) bool { return h.Evidence == workload.ByProcess })
	}
	return slices.EqualFunc(given(a), given(b), func(a, b workload.Holding) bool {
		return a.Device == b.Device && a.Workload.ID == b.Workload.ID && a.Part == b.Part
	})
}

// ask returns the query about the devices of a tick. The processes of a device that does
// not answer stay on it as long as they live.
func (v *View) ask(readings []Reading) workload.Question {
	q := workload.Question{Processes: map[string][]uint32{}}
	for i := range readings {
		r := &readings[i]
		memory, known := r.Memory.Total.Get()
		if !known { // it does not answer: its memory did not change
			memory = v.memoryOf(r.ID.UUID)
		}
		q.Devices = append(q.Devices, workload.Device{ID: r.ID, Aliases: r.Aliases, Memory: memory})
		for _, p := range r.Processes {
			q.Processes[r.ID.UUID] = append(q.Processes[r.ID.UUID], p.PID)
		}
		if r.Up {
			continue
		}
		for _, pid := range v.question.Processes[r.ID.UUID] {
			if _, alive := v.cfg.Owners.Process(pid); alive {
				q.Processes[r.ID.UUID] = append(q.Processes[r.ID.UUID], pid)
			}
		}
	}
	return q
}

// memoryOf returns the memory that a device had at the last tick, 0 if that is not known.
func (v *View) memoryOf(uuid string) float64 {
	i := slices.IndexFunc(v.question.Devices, func(d workload.Device) bool { return d.ID.UUID == uuid })
	if i < 0 {
		return 0
	}
	return v.question.Devices[i].Memory
}

// sayAttribution notifies about each source whose reason changed. A source that is absent,
// or that was never in trouble, is not worth a notice.
func (v *View) sayAttribution(list []workload.Status) {
	for _, s := range list {
		heard := func(o workload.Status) bool { return o.Source == s.Source }
		same := func(o workload.Status) bool { return heard(o) && o.Reason == s.Reason }
		if s.Reason == workload.Absent || slices.ContainsFunc(v.attribution, same) || s.Reason == workload.OK && !slices.ContainsFunc(v.attribution, heard) {
			continue
		}
		n := Notice{Kind: Attribution, Source: s.Source, Text: string(s.Reason)}
		if s.Detail != "" {
			n.Err = errors.New(s.Detail)
		}
		v.cfg.Notify(n)
	}
	v.attribution = list
}
