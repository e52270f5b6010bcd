//go:build linux

package demo

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Catches a fleet without its inference engines, or with engines where nobody generates text.
func TestDemoEngines(t *testing.T) {
	t.Parallel()
	type engine struct {
		Host, Kind, Model, Owner string
		Devices                  int
	}
	var got []engine
	for _, m := range Fleet() {
		list, err := sim.Engines(sim.Config{Groups: m.Groups, Seed: hash(m.Host), Start: testNow.Add(-Age)})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			got = append(got, engine{m.Host, e.Kind, e.Model, e.Pod.Owner, len(e.Devices)})
		}
	}
	want := []engine{
		{"h100-01", "vllm", "meta-llama/Llama-3.3-70B-Instruct", "chat-api", 2},
		{"mi300x-01", "sglang", "mistralai/Mistral-Large-Instruct-2411", "summarizer", 2},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("engines of the fleet (-want +got):\n%s", d)
	}
}

// Catches a full cache that cannot be seen: half an hour of any time has a long queue in front of it.
func TestDemoFullCache(t *testing.T) {
	t.Parallel()
	for _, m := range Fleet() {
		if m.Host != "mi300x-01" {
			continue
		}
		list, err := sim.Engines(sim.Config{Groups: m.Groups, Seed: hash(m.Host), Start: testNow.Add(-Age)})
		if err != nil {
			t.Fatal(err)
		}
		queue, full := 0.0, 0
		for at := testNow.Add(-30 * time.Minute); at.Before(testNow); at = at.Add(time.Minute) {
			r := inference.Read(promtext.Scan(list[0].Page(at)), "")
			for _, p := range r.Points {
				switch {
				case p.Metric.Name == "inference.request.count" && p.Get(inference.AttrState) == "waiting":
					queue = max(queue, p.Value)
				case p.Metric.Name == "inference.kv_cache.utilization" && p.Value > 0.98:
					full++
				}
			}
		}
		if queue < 100 || full < 20 {
			t.Errorf("at most %v requests wait, and the cache is full for %d minutes of 30", queue, full)
		}
	}
}
