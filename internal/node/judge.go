package node

import (
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Episode is a time during which something reduced the clocks of a device.
type Episode struct {
	Device  device.ID      `json:"device"`
	Cause   string         `json:"cause"`
	Buckets device.Buckets `json:"buckets"`
	Begin   time.Time      `json:"begin"`
	// End is when the episode ended, zero while it is active. It is reported with a delay,
	// so that a cause that comes and goes is one episode.
	End       time.Time           `json:"end,omitzero"`
	Workloads []workload.Workload `json:"workloads,omitempty"` // that held the device when the episode began

	last time.Time // when the cause was last active
}

// quiet is how long a cause must be inactive before its episode ends.
const quiet = 30 * time.Second

// Upper bounds on what is tracked.
const (
	maxEpisodes = 1024
	maxTenures  = 4096
)

// judge determines what is wrong with the devices of a tick, and what began and ended since
// the previous tick. It reports whether any of that must be persisted.
func (v *View) judge(t *Tick) (news bool) {
	if t.Paused {
		return false // devices were not read
	}
	t.Changes = v.health.Observe(moment(t), v.happened(t))
	t.Findings = v.health.Findings()
	t.Episodes = v.episodes(t)
	t.Tenures = v.tenures(t)
	return len(t.Changes)+len(t.Episodes)+len(t.Tenures) > 0
}

// moment converts a tick to the input of the health rules.
func moment(t *Tick) health.Moment {
	m := health.Moment{Time: t.Time, Devices: make([]health.Device, 0, len(t.Readings))}
	for i := range t.Readings {
		r := &t.Readings[i]
		d := health.Device{Sample: r.Sample, Up: r.Up, Problem: r.Problem, Lost: r.Lost, Reset: r.NeedsReset, Since: r.Since, Holders: present(r)}
		for _, x := range r.XIDs {
			d.XIDs = append(d.XIDs, health.XIDSeen{Code: x.Code, Count: x.Count})
		}
		m.Devices = append(m.Devices, d)
	}
	return m
}

// present returns the workloads that hold the device now.
func present(r *Reading) []workload.Workload {
	var out []workload.Workload
	for i := range r.Holders {
		if h := &r.Holders[i]; !h.Ended && !isRest(h.Kind) {
			out = append(out, h.Workload)
		}
	}
	return out
}

// happened returns the events of a tick with the affected workloads, which it also adds to
// the tick.
func (v *View) happened(t *Tick) []health.Event {
	out := make([]health.Event, 0, len(t.Events))
	for _, e := range t.Events {
		h := health.Event{Event: e}
		if w, ok := v.runner(e.PID); ok {
			h.Workloads = []workload.Workload{w}
		} else if e.Device != "" {
			id := v.identify(e.Device, "")
			for i := range t.Readings {
				if r := &t.Readings[i]; r.ID.UUID == id.Physical() {
					h.Workloads = v.had(r, id, e.Time)
				}
			}
		}
		out = append(out, h)
		t.Hit = append(t.Hit, h.Workloads)
	}
	return out
}

// had returns the workloads that held a device, or one of its partitions, at the given
// time, excluding later ones.
func (v *View) had(r *Reading, id device.ID, at time.Time) []workload.Workload {
	var out []workload.Workload
	for i := range r.Holders {
		h := &r.Holders[i]
		since := h.Since
		n := tenant{Device: r.ID, Unit: h.Partition, Workload: h.Workload}
		if at, known := slices.BinarySearchFunc(v.state.Tenants, n, tenant.compare); known {
			since = v.state.Tenants[at].Since
		}
		if h.Ended || isRest(h.Kind) || since.After(at.Add(v.cfg.Interval)) || id.Parent != "" && h.Partition != id.UUID {
			continue
		}
		out = append(out, h.Workload)
	}
	return out
}

func (v *View) runner(pid uint32) (workload.Workload, bool) {
	if pid == 0 || v.cfg.Owners == nil {
		return workload.Workload{}, false
	}
	return v.cfg.Owners.Process(pid)
}

// episodes returns the episodes that began or ended.
func (v *View) episodes(t *Tick) []Episode {
	var news []Episode
	for i := range t.Readings {
		r := &t.Readings[i]
		for _, th := range r.Throttles {
			if !th.Active || th.Buckets == 0 || r.ID.Parent != "" {
				continue
			}
			at := slices.IndexFunc(v.state.Episodes, func(e *Episode) bool { return e.Device.UUID == r.ID.UUID && e.Cause == th.Cause })
			if at < 0 && len(v.state.Episodes) < maxEpisodes {
				e := &Episode{Device: r.ID, Cause: th.Cause, Buckets: th.Buckets, Begin: t.Time, Workloads: present(r), last: t.Time}
				v.state.Episodes = append(v.state.Episodes, e)
				news = append(news, *e)
			} else if at >= 0 {
				v.state.Episodes[at].last = t.Time
			}
		}
	}
	v.state.Episodes = slices.DeleteFunc(v.state.Episodes, func(e *Episode) bool {
		if e.last.IsZero() { // restored from the state file: it was active when the file was written
			e.last = t.Time
		}
		if t.Time.Sub(e.last) < quiet && !t.Time.Before(e.last) {
			return false
		}
		over := *e
		over.End = e.last.Add(v.cfg.Interval) // the cause ended some time within the interval
		news = append(news, over)
		return true
	})
	return news
}

// tenures returns the workloads that arrived and left.
func (v *View) tenures(t *Tick) []Tenure {
	if v.question.Devices == nil {
		return nil // the owners were not queried yet
	}
	var news []Tenure
	now := make([]tenant, 0, len(v.state.Tenants))
	ended := map[[3]string]Holder{}
	for i := range t.Readings {
		r := &t.Readings[i]
		for _, h := range r.Holders {
			n := tenant{Device: r.ID, Unit: h.Partition, Workload: h.Workload, Since: t.Time}
			switch {
			case isRest(h.Kind):
			case h.Ended:
				key := [3]string{n.Device.UUID, n.Unit, n.Workload.ID}
				if _, newer := ended[key]; !newer {
					ended[key] = h
				}
			case len(now) < maxTenures:
				at, known := slices.BinarySearchFunc(v.state.Tenants, n, tenant.compare)
				if known { // also one that left and is back before its departure was reported
					n = n.continues(v.state.Tenants[at])
				} else {
					news = append(news, Tenure{r.ID, t.Time, h})
				}
				n.observe(h.MemoryUsed)
				now = append(now, n)
			}
		}
	}
	slices.SortFunc(now, tenant.compare)
	var kept []tenant
	for _, was := range v.state.Tenants {
		if _, there := slices.BinarySearchFunc(now, was, tenant.compare); there {
			continue
		}
		if !v.counts(was.Device.UUID, t) { // it is unknown whether the workload left
			kept = append(kept, was)
			continue
		}
		book := v.state.Devices[was.Device.UUID].Ledger
		owes := slices.ContainsFunc(book.tenantAccounts(was), (*account).owes)
		if was.Left.IsZero() {
			was.Left = t.Time
			if owes {
				v.lastSlow = time.Time{} // read the energy counter at the next tick
			}
		}
		if owes && t.Time.Sub(was.Left) < keepEnded { // a device that does not answer may never settle
			kept = append(kept, was)
			continue
		}
		h, ok := ended[[3]string{was.Device.UUID, was.Unit, was.Workload.ID}]
		if !ok { // it left while the agent was not running
			h = Holder{Workload: was.Workload, Partition: was.Unit}
		}
		news = append(news, book.leave(was, h))
	}
	now = append(now, kept[:min(len(kept), maxTenures-len(now))]...) // decodeState would reject more
	v.state.Tenants = now
	slices.SortFunc(v.state.Tenants, tenant.compare)
	return news
}

// counts reports whether the holders of a device are known at a tick: the device has
// answered since the agent started.
func (v *View) counts(uuid string, t *Tick) bool {
	a := v.state.Devices[uuid]
	return a != nil && a.Ledger != nil && a.Ledger.resumed && slices.ContainsFunc(t.Readings, func(r Reading) bool { return r.ID.UUID == uuid })
}
