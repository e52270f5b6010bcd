//go:build linux

package demo

import (
	"context"
	"maps"
	"math"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/training"
	"github.com/gpumeter/gpumeter/internal/hub"
)

// The activities of a simulated training add up to the time that it has its devices, and nothing that it counts
// falls, whenever somebody looks.
func TestCourse(t *testing.T) {
	t.Parallel()
	for name, c := range courses {
		before := done{time: map[string]float64{}}
		for up := time.Duration(0); up < 30*time.Hour; up += 97 * time.Second {
			d := c.after(up, 7*time.Minute)
			sum := 0.0
			for activity, v := range d.time {
				if sum += v; v < before.time[activity]-1e-6 {
					t.Fatalf("%s: %s falls at %v", name, activity, up)
				}
			}
			if math.Abs(sum-up.Seconds()) > 1e-3 {
				t.Fatalf("%s: %v add up to %v s after %v", name, d.time, sum, up)
			}
			if d.steps < before.steps || d.saves < before.saves || d.restarts < before.restarts || d.redone < before.redone {
				t.Fatalf("%s: a counter falls at %v: %+v, %+v", name, up, before, d)
			}
			before = d
			before.time = maps.Clone(d.time)
		}
		if c.dies > 0 && (before.restarts != 1 || before.redone == 0) {
			t.Errorf("%s has no restart: %+v", name, before)
		}
	}
}

// The training that had to restart is in a hub with its steps, its restart and a waterfall: the names of the series are
// those that are read.
func TestDemoTraining(t *testing.T) {
	t.Parallel()
	store, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return testNow }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	to, err := Into(store)
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNode(Fleet()[0], testNow.Add(-Age), to, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	from := testNow.Add(-10 * time.Hour)
	for at := from; !at.After(testNow); at = at.Add(4 * time.Minute) {
		n.Tick(context.Background(), at)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	rows, err := training.Read(context.Background(), store, from, testNow, map[string]fleet.Seconds{"job/demo/research/llama-sft/": fleet.Seconds(4 * 10 * 3600e6)})
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v %+v", err, rows)
	}
	r := rows[0]
	t.Logf("%+v", r)
	took, _ := r.StepTime.Get()
	if mfu, ok := r.MFU.Get(); !ok || mfu <= 0.1 || r.Owner.Name != "llama-sft" || r.Restarts != 1 || r.Steps < 30_000 || math.Abs(took-0.92) > 0.01 || r.Checkpoints < 40 || r.CheckpointBytes != r.Checkpoints*24e9 {
		t.Errorf("%+v", r)
	}
	parts := map[string]float64{}
	sum := 0.0
	for _, p := range r.Waterfall.Parts {
		parts[p.Name] = p.Time.Float() / 3600
		sum += p.Time.Float() / 3600
	}
	if math.Abs(sum-40) > 1e-9 || parts[training.Stepping] < 32 || parts[training.Lost] < 4*11/60.0 || parts[training.Checkpoint] < 0.5 || parts[training.Idle] > 1 {
		t.Errorf("%v", parts)
	}
}
