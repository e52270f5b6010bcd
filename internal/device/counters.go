package device

import "slices"

// less reports whether a counter decreased. An absent counter did not.
func less(now, before Value) bool {
	n, ok := now.Get()
	b, known := before.Get()
	return ok && known && n < b
}

func anyLess(now, before []ErrorCount) bool {
	for _, a := range now {
		for _, b := range before {
			if a.Type == b.Type && less(a.Count, b.Count) {
				return true
			}
		}
	}
	return false
}

// Counts reports whether the runtime counts anything.
func (r *Runtime) Counts() bool {
	return r.Operations.OK() || len(r.Latencies) > 0 || slices.ContainsFunc(r.Executions, func(e ErrorCount) bool { return e.Count.OK() })
}

// Restarted reports whether the runtime has started over since prev: a counter is lower
// than in prev, or prev had none. A runtime lives as long as its workload.
func (r *Runtime) Restarted(prev *Runtime) bool {
	if !prev.Counts() {
		return r.Counts()
	}
	if less(r.Operations, prev.Operations) || anyLess(r.Executions, prev.Executions) {
		return true
	}
	for i := range r.Latencies {
		a := &r.Latencies[i]
		for j := range prev.Latencies {
			b := &prev.Latencies[j]
			if a.Operation == b.Operation && a.Detail == b.Detail && a.Count < b.Count {
				return true
			}
		}
	}
	return false
}
