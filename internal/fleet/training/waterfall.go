package training

import (
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/quantity"
)

// Part is a part of the time that was allocated to a workload.
type Part struct {
	Name string        `json:"name"`
	Time fleet.Seconds `json:"seconds"`
}

// The parts of a waterfall, in its order.
const (
	Stepping   = "step"            // steps that lasted
	Data       = "data_wait"       // waits for input
	Collective = "collective_wait" // waits for other ranks
	Checkpoint = "checkpoint"      // writes that delay steps
	Other      = "other"           // evaluation, compilation
	Starting   = "startup"         // before the first step
	Lost       = "lost"            // to restarts: until the first step after them, and steps that were made again
	Idle       = "idle"            // no launch, or no process that trains
)

var order = []string{Stepping, Data, Collective, Checkpoint, Other, Starting, Lost, Idle}

// Waterfall is where allocated time went. Its parts add up to it.
type Waterfall struct {
	Allocated fleet.Seconds `json:"allocated_seconds"`
	Parts     []Part        `json:"parts"` // all of them, in order
}

// Goodput returns the part of the allocated time that was steps.
func (w *Waterfall) Goodput() optional.Float {
	if w.Allocated <= 0 || len(w.Parts) == 0 {
		return optional.Float{}
	}
	return optional.Of(float64(w.Parts[0].Time) / float64(w.Allocated))
}

// Divide divides allocated time among its parts. spent is the time of the processes by activity, and redone the
// part of their steps that was lost. What they do not account for is idle. They can account for more than was
// allocated, where processes share devices: then each part is as much smaller. An activity that is not known counts
// as other.
func Divide(allocated fleet.Seconds, spent map[string]fleet.Seconds, redone fleet.Seconds) Waterfall {
	allocated = max(0, allocated)
	parts := map[string]fleet.Seconds{}
	for activity, d := range spent {
		if d <= 0 {
			continue
		}
		switch activity {
		case Stepping, Data, Collective, Checkpoint, Starting, Idle:
			parts[activity] += d
		case "restart":
			parts[Lost] += d
		default:
			parts[Other] += d
		}
	}
	redone = min(max(0, redone), parts[Stepping])
	parts[Stepping] -= redone
	parts[Lost] += redone
	var all fleet.Seconds
	for _, d := range parts {
		all += d
	}
	w := Waterfall{Allocated: allocated, Parts: make([]Part, 0, len(order))}
	var before, given fleet.Seconds
	for _, name := range order {
		d := parts[name]
		if all > allocated { // what ends at a place ends at its share of the time: no rounding is left over
			before += d
			end := fleet.Seconds(quantity.Portion(int64(allocated), uint64(before), uint64(all)))
			d = end - given
			given = end
		}
		w.Parts = append(w.Parts, Part{name, d})
	}
	if all < allocated {
		w.Parts[len(w.Parts)-1].Time += allocated - all
	}
	return w
}
