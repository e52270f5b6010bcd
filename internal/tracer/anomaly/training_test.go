package anomaly

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/tracer/training"
)

// Of the shapes of work, exactly those that train are taken for training: a server that counts steps would
// have a goodput, and restarts.
func TestShapesThatTrain(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			trains := strings.HasPrefix(s.name, "training") || strings.HasSuffix(s.name, "training") || s.name == "reinforcement learning" || s.name == "notebook"
			for seed := range uint64(2) {
				w := newWorld(seed, s.begin)
				o := training.New()
				var steps uint64
				told := false
				for w.now < 3600 {
					w.turn(func(x Window) {
						p := &x.Snapshot.Processes[0]
						p.Launches = map[string]uint64{}
						for i := range p.Kernels {
							p.Launches[p.Kernels[i].Name] = p.Kernels[i].Count
						}
						for _, g := range o.Observe(&x.Snapshot, func(uint32) training.Facts { return training.Facts{} }) {
							told = true
							for _, n := range g.Steps {
								steps += n.Count
							}
						}
					})
				}
				if told && !trains {
					t.Errorf("seed %d: it is taken for training, with %d steps", seed, steps)
				}
				if !told && trains && s.name != "notebook" {
					t.Errorf("seed %d: it trains, but is not taken for training", seed)
				}
				// These worlds spread the launches of a step evenly over it. Only where gradients are accumulated the length
				// of a step cannot be told then, and the evaluation has losses, too.
				if loss := slices.Index(w.kernels, "nll_loss"); trains && !strings.Contains(s.name, "accumulation") && !strings.Contains(s.name, "evaluation") && s.name != "notebook" {
					if made := w.launched[loss]; math.Abs(made-float64(steps)) > 2 {
						t.Errorf("seed %d: %d steps are counted, it made %.1f", seed, steps, made)
					}
				}
			}
		})
	}
}
