package training

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// recorded is a training of bench/training on an H200 with PyTorch 2.11: the launches of each kernel at each
// reading, the last one at the end, and the steps that it said it made.
type recorded struct {
	What     string              `json:"what"`
	Steps    uint64              `json:"steps"`
	Seconds  []float64           `json:"seconds"` // since the process began
	Launches map[string][]uint64 `json:"launches"`
}

// Real counts have what no simulated loop has: kernels that fill tensors at the start, names that several
// kernels share, readings in the middle of an update, evaluations.
func TestRecordedTrainings(t *testing.T) {
	text, err := os.ReadFile("testdata/h200.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []recorded
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		for every := 1; every <= 4; every++ { // longer intervals are readings left out
			for first := range every {
				t.Run(fmt.Sprintf("%s/%d/%d", x.What, every, first), func(t *testing.T) { x.replay(t, every, first) })
			}
		}
	}
}

func (x *recorded) replay(t *testing.T, every, first int) {
	const once = "at::native::lpnorm_cleanup<c10::BFloat16, (at::native::NormType)1, c10::BFloat16, true, float>"
	o, s := New(), &sum{}
	for i := first; i < len(x.Seconds); i++ {
		ended := i == len(x.Seconds)-1
		if (i-first)%every != 0 && !ended {
			continue
		}
		p := tracer.Process{PID: 7, Since: noon, Ended: ended, Launches: map[string]uint64{}}
		for name := range maps.Keys(x.Launches) {
			if n := x.Launches[name][i]; n > 0 {
				p.Launches[name] = n
			}
		}
		for _, g := range o.Observe(&tracer.Snapshot{Time: at(x.Seconds[i]), Processes: []tracer.Process{p}}, func(uint32) Facts { return Facts{Workload: "job"} }) {
			s.add(&g)
		}
		// The gradients are clipped before the update, by a kernel that runs once in a step.
		if clipped := x.Launches[once][i]; s.told && s.steps != clipped && s.steps+1 != clipped {
			t.Errorf("reading %d: %d steps are counted, it made %d", i, s.steps, clipped)
		}
	}
	if s.told && s.steps != x.Steps || !s.told && (len(x.Seconds)-first)/every > 5 {
		t.Errorf("%d steps are counted, it made %d", s.steps, x.Steps)
	}
}
