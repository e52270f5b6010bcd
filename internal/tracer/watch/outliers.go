package watch

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Thresholder is a source that can report single slow calls.
type Thresholder interface {
	Watch(pid uint32, op string, over time.Duration) error
}

const (
	// enough calls establish a baseline.
	enough = 1000
	// A call is an outlier if it takes outlying times the 99.9th percentile, and at least
	// leastLong.
	outlying  = 8
	leastLong = 10 * time.Millisecond
)

// Outliers requests an event for each call that takes far longer than usual for its operation and
// process: the kernel checks each call and reports only those.
type Outliers struct {
	asked map[uint32]map[string]time.Duration
}

// Ask updates the thresholds where the baseline has changed substantially. It ignores refusals:
// outliers are best effort.
func (o *Outliers) Ask(s *tracer.Snapshot, of Thresholder) {
	now := map[uint32]map[string]time.Duration{}
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Ended {
			continue
		}
		all := map[string]tracer.Histogram{}
		for j := range p.Ops {
			all[p.Ops[j].Op] = all[p.Ops[j].Op].Add(p.Ops[j].Time)
		}
		now[p.PID] = map[string]time.Duration{}
		for op, h := range all {
			was := o.asked[p.PID][op]
			now[p.PID][op] = was
			if h.Count < enough {
				continue
			}
			over := max(leastLong, time.Duration(outlying*h.Quantile(0.999)*float64(time.Second)))
			if was != 0 && over < 2*was && over > was/2 {
				continue
			}
			if of.Watch(p.PID, op, over) == nil {
				now[p.PID][op] = over
			}
		}
	}
	o.asked = now
}
