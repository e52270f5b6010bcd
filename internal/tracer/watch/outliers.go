package watch

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Thresholder is a source that tells single calls apart.
type Thresholder interface {
	Watch(pid uint32, op string, over time.Duration) error
}

const (
	// enough calls say what is usual.
	enough = 1000
	// a call is an outlier if it takes so many times what all but a thousandth do, and at
	// least the least.
	outlying  = 8
	leastLong = 10 * time.Millisecond
)

// Outliers asks for an event of each call that takes far longer than is usual for its
// operation and process: the kernel looks at each, and tells only those.
type Outliers struct {
	asked map[uint32]map[string]time.Duration
}

// Ask sets the thresholds anew where what is usual has changed much. Refusals are not told:
// outliers are more than what is needed.
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
