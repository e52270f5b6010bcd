package node

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// named returns a function that returns the workload ID of a process, or
// workload.Unattributed if it is unknown. The sole holder of the whole unit is the only
// possible user; that covers processes that cannot be inspected or that exited meanwhile,
// and those of the next holder at a hand-over.
func (o owners) named(holdings []workload.Holding) func(pid uint32) string {
	sole := ""
	if len(holdings) == 1 && holdings[0].Part >= 1 {
		sole = holdings[0].Workload.ID
	}
	return func(pid uint32) string {
		if w, ok := o.processes[pid]; ok && sole == "" {
			return w.ID
		}
		return cmp.Or(sole, workload.Unattributed)
	}
}

// arrived returns the workloads with a process on the unit that do not hold it yet. They
// did some of its work since the last tick, but held nothing then.
func (o owners) arrived(u portion, list []share, named func(uint32) string) []workload.Workload {
	var out []workload.Workload
	for _, p := range u.reading.Processes {
		w, ok := o.processes[p.PID]
		here := func(s share) bool { return s.ID == w.ID }
		if !ok || named(p.PID) != w.ID || slices.ContainsFunc(list, here) || slices.ContainsFunc(out, func(o workload.Workload) bool { return o.ID == w.ID }) {
			continue
		}
		out = append(out, w)
	}
	return out
}

// running is what the driver reports about the processes of a unit.
type running struct {
	// values has the workloads with a process on the unit, and how much the processes of
	// each ran, if the driver reports it.
	values map[string]device.Value
	total  float64
}

// known reports whether the driver reports how much processes ran.
func (r running) known() bool {
	for _, v := range r.values {
		if v.OK() {
			return true
		}
	}
	return false
}

// complete reports whether it is known how much each workload ran: a process that has just
// started has no value yet.
func (r running) complete() bool {
	for _, v := range r.values {
		if !v.OK() {
			return false
		}
	}
	return true
}

// running returns how much each workload ran on the unit. Time and occupancy are not
// comparable: if one process has time, time is used for all.
func (u portion) running(named func(uint32) string) running {
	use := func(p device.Process) device.Value { return p.Occupancy }
	if slices.ContainsFunc(u.reading.Processes, func(p device.Process) bool { return p.Utilization.OK() }) {
		use = func(p device.Process) device.Value { return p.Utilization }
	}
	r := running{values: map[string]device.Value{}}
	for _, p := range u.reading.Processes {
		id := named(p.PID)
		r.values[id] = add(r.values[id], use(p))
		v, _ := use(p).Get()
		r.total += v
	}
	return r
}

// use sets how much of the unit's work each share does. A sole user does all of it, however
// old the values of its processes are. Several users divide it by the first available of
// per-process values, the partition's activity counters and the allocations. Per-process
// values that miss a user, or that say that nobody ran while the unit was busy, are older
// than the unit's own reading and divide nothing.
func (u portion) use(list []share, ran running) {
	activity, measured := u.activity.Get()
	counted := measured && u.reading.ID.Parent != ""
	var users []*share // the unallocated rest does nothing
	given := 0.0
	for i := range list {
		if list[i].Kind != workload.Unallocated {
			users = append(users, &list[i])
			given += list[i].alloc
		}
	}
	current := ran.known() && ran.complete() && (ran.total > 0 || activity == 0)
	for _, s := range users {
		switch {
		case ran.known() && (current || len(users) == 1):
			s.basis = ByProcess
		case counted:
			s.basis = ByActivity
		default:
			s.basis = ByGrant
		}
		switch v, _ := ran.values[s.ID].Get(); {
		case len(users) == 1 && measured:
			s.use = activity * u.size
		case s.basis == ByProcess && ran.total > 0: // within a partition its processes divide its activity
			s.use = v / ran.total * u.weight(activity, counted, ran.total)
		case s.basis == ByProcess: // nobody ran
		case counted:
			s.use = activity * u.size * ran.part(s, users, given)
		default:
			s.use = given * ran.part(s, users, given)
		}
	}
}

// part returns the part of the unit's work that s does by allocation. If the driver reports
// how much processes ran, only workloads with a process can have done any.
func (r running) part(s *share, users []*share, given float64) float64 {
	if !r.known() {
		if given == 0 {
			return 0
		}
		return s.alloc / given
	}
	alloc, n := 0.0, 0
	for _, o := range users {
		if _, runs := r.values[o.ID]; runs {
			alloc += o.alloc
			n++
		}
	}
	switch _, runs := r.values[s.ID]; {
	case !runs:
		return 0
	case alloc == 0:
		return 1 / float64(n)
	}
	return s.alloc / alloc
}

// weight is how much the processes of a unit count relative to other units.
func (u portion) weight(activity float64, counted bool, total float64) float64 {
	if counted {
		total = activity
	}
	return total * u.size
}
