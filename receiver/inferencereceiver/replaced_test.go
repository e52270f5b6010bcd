package inferencereceiver

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
)

// Catches an engine that is killed and replaced between two scans: it is never read again, or its tokens count
// twice, because its clock puts its start before the last reading of the one before.
func TestReplaced(t *testing.T) {
	t.Parallel()
	p := serve(t, "vllm:generation_tokens_total{model_name=\"m\"} 100\nvllm:num_preemptions_total{model_name=\"m\"} 1\n")
	a, b := p.engine(t, "e:8000", nil), p.engine(t, "e:8000", nil)
	b.Target.Client = inference.NewClient(http.DefaultTransport, time.Second)
	a.Started, b.Started = noon.Add(5*time.Second), noon.Add(19*time.Second)
	m, sink := start(t, createDefaultConfig().(*Config), func(tick *node.Tick) []discover.Engine {
		switch second := tick.Time.Sub(noon).Seconds(); {
		case second == 0:
			return nil
		case second < 30:
			return []discover.Engine{a}
		}
		return []discover.Engine{b}
	})
	for i := range 3 {
		m.tick(10 * i)
	}
	next(t, sink, 2)
	p.set("vllm:generation_tokens_total{model_name=\"m\"} 7\n", 0)
	m.tick(30)
	want := []string{
		"inference.request.preemptions{engine=e:8000 model=m provider=vllm} ended", "inference.scrape.up{engine=e:8000} 1",
		"inference.token.output{engine=e:8000 model=m provider=vllm} 7 since 20s",
	}
	if diff := cmp.Diff(want, next(t, sink, 3)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches pages that are read twice as often as they should be where ticks are fast.
func TestPace(t *testing.T) {
	t.Parallel()
	p := serve(t, fmt.Sprintf(tokens, 1, 0))
	cfg := createDefaultConfig().(*Config)
	cfg.Targets = []TargetConfig{{URL: p.URL + "/metrics"}}
	m, sink := start(t, cfg, nil)
	for i := range 41 {
		m.tick(i)
	}
	m.tick(0) // the clock was set back
	m.tick(1)
	next(t, sink, 6)
	if n := len(sink.AllMetrics()); n != 6 {
		t.Errorf("%d readings of 40 s and one after the clock was set back", n)
	}
}
