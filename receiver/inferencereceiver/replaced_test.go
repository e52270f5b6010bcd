package inferencereceiver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
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

// Catches tokens of hours that count as those of the last reading: of an engine that takes the ID of another, or of a
// process that closes its port and opens it again. Each has counted what it has since it began.
func TestTakesThePlace(t *testing.T) {
	t.Parallel()
	token := "inference.token.output{engine=%s model=m provider=vllm} %s"
	for _, tt := range []struct {
		name   string
		before func(a, b discover.Engine) []discover.Engine
		after  func(a, b discover.Engine) []discover.Engine
		change int // batches of the tick of the change, with the end of what is gone
		want   [][]string
	}{
		{
			"the ID of another",
			func(a, b discover.Engine) []discover.Engine { b.ID += "@2"; return []discover.Engine{a, b} },
			func(_, b discover.Engine) []discover.Engine { return []discover.Engine{b} },
			2,
			[][]string{{fmt.Sprintf(token, "e:8000", "1005"), fmt.Sprintf(token, "e:8000", "ended"), fmt.Sprintf(token, "e:8000@2", "ended")}, {fmt.Sprintf(token, "e:8000", "1007")}},
		},
		{
			"the ID of another that lives on",
			func(a, _ discover.Engine) []discover.Engine { return []discover.Engine{a} },
			func(a, b discover.Engine) []discover.Engine { a.ID = "pod/1"; return []discover.Engine{a, b} },
			2,
			[][]string{{fmt.Sprintf(token, "e:8000", "1005 since 2s"), fmt.Sprintf(token, "e:8000", "ended"), fmt.Sprintf(token, "pod/1", "105")}, {fmt.Sprintf(token, "e:8000", "1007 since 2s"), fmt.Sprintf(token, "pod/1", "107")}},
		},
		{
			"its own port",
			func(a, _ discover.Engine) []discover.Engine { return []discover.Engine{a} },
			func(a, _ discover.Engine) []discover.Engine {
				a.Target.Client = inference.NewClient(http.DefaultTransport, time.Minute)
				return []discover.Engine{a}
			},
			1,
			[][]string{{fmt.Sprintf(token, "e:8000", "105 since 1s")}, {fmt.Sprintf(token, "e:8000", "107 since 1s")}},
		},
	} {
		page := "vllm:generation_tokens_total{model_name=\"m\"} %d\n"
		p, q := serve(t, ""), serve(t, "")
		a, b := p.engine(t, "e:8000", nil), q.engine(t, "e:8000", nil)
		a.Started, b.Started = noon.Add(time.Second), noon.Add(2*time.Second)
		before, after := tt.before(a, b), tt.after(a, b)
		m, sink := start(t, createDefaultConfig().(*Config), func(tick *node.Tick) []discover.Engine {
			switch second := tick.Time.Sub(noon).Seconds(); {
			case second == 0:
				return nil
			case second < 30:
				return before
			}
			return after
		})
		m.tick(0)
		n := 0
		var got [][]string
		for i := range 4 {
			p.set(fmt.Sprintf(page, 101+2*i), 0)
			q.set(fmt.Sprintf(page, 1001+2*i), 0)
			m.tick(10 * (i + 1))
			batches := map[bool]int{true: len(before), false: len(after)}[i < 2]
			if i == 2 {
				batches = tt.change
			}
			n += batches
			await.True(t, "the batches", func() bool { return len(sink.AllMetrics()) >= n })
			if i < 2 {
				continue
			}
			var said []string
			for _, md := range sink.AllMetrics()[n-batches : n] {
				for _, l := range lines(t, md) {
					if strings.HasPrefix(l, "inference.token") {
						said = append(said, l)
					}
				}
			}
			slices.Sort(said)
			got = append(got, said)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
