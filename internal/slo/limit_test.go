package slo

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
)

// Catches a cause that the numbers do not show, time that is explained twice, and a hint where nothing is slow.
func TestLimit(t *testing.T) {
	t.Parallel()
	of := optional.Of
	ttft := Objective{Name: "ttft_p95", Kind: FirstToken, Target: 0.95, Allowed: 0.05, Threshold: time.Second}
	tpot := Objective{Name: "tpot_p95", Kind: PerToken, Target: 0.95, Allowed: 0.05, Threshold: 50 * time.Millisecond}
	whole := Objective{Name: "duration_p99", Kind: Duration, Target: 0.99, Allowed: 0.01, Threshold: 10 * time.Second}
	failures := Objective{Name: "errors", Kind: Errors, Target: 0.99, Allowed: 0.01}
	p95 := func(v float64) serving.Quantiles { return serving.Quantiles{P95: of(v)} }
	running := serving.Row{Running: of(20), FirstToken: p95(3)} // the objective is missed by twice its threshold
	with := func(s serving.Row, edit func(*serving.Row)) serving.Row {
		edit(&s)
		return s
	}
	busy := with(running, func(s *serving.Row) { s.SM, s.Utilization = of(0.9), of(1) })
	calm := with(running, func(s *serving.Row) { s.SM, s.Utilization = of(0.4), of(1) })
	idle := with(running, func(s *serving.Row) { s.SM, s.Utilization = of(0.1), of(0.2) })
	queued := Facts{FirstToken: of(10), Queue: of(8), Prefill: of(2), Waits: of(0.9), Full: of(1), Room: of(0)}
	room := queued
	room.Full, room.Room = of(0), of(1)
	prompts := Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Waits: of(0)}
	slow := with(calm, func(s *serving.Row) { s.PerToken = p95(0.1) }) // by once its threshold
	for _, c := range []struct {
		name   string
		served serving.Row
		facts  Facts
		missed []Objective
		want   string
	}{
		{"nothing is missed and nothing waits", busy, prompts, nil, ""},
		{"nothing is known", serving.Row{}, Facts{}, nil, ""},
		{"a request waits for a moment", busy, Facts{Waits: of(0.05), Full: of(1), Room: of(0)}, nil, ""},
		{"requests fail", busy, queued, []Objective{failures}, "kv_cache 100 %"}, // they also wait
		{"requests fail, none waits", busy, prompts, []Objective{failures}, ""},
		{"the cache is full, and prompts are long", busy, queued, []Objective{ttft}, "kv_cache 80 %, prefill 20 %"},
		{"requests wait, nothing is missed", busy, queued, nil, "kv_cache 100 %"},
		{"the cache is full for half of the time", calm, Facts{Waits: of(1), Full: of(0.5), Room: of(0.5)}, nil, "kv_cache 50 %, queue_limit 50 %"},
		{"requests wait, and the cache has room", calm, room, []Objective{ttft}, "queue_limit 80 %, unexplained 20 %"},
		{"the same while the GPU computes", busy, room, []Objective{ttft}, "prefill 20 %, unexplained 80 %"},
		{"the same while the GPU is idle", idle, room, nil, "unexplained 100 %"},
		{"requests wait, none runs", with(idle, func(s *serving.Row) { s.Running = of(0) }), room, nil, "unexplained 100 %"},
		{"requests wait, and the cache is neither full nor empty", calm, Facts{Waits: of(1), Full: of(0.3), Room: of(0)}, nil, "kv_cache 30 %, unexplained 70 %"},
		{"requests wait, and the cache is unknown", calm, Facts{Waits: of(1)}, nil, "unexplained 100 %"},
		{"long prompts", busy, prompts, []Objective{ttft}, "prefill 100 %"},
		{"long prompts, SM activity is unknown", with(running, func(s *serving.Row) { s.Utilization = of(1) }), prompts, []Objective{ttft}, "prefill 100 %"},
		{"long prompts, and the GPU computes little", calm, prompts, []Objective{ttft}, "unexplained 100 %"},
		{"long prompts on an idle GPU", idle, prompts, []Objective{ttft}, "host 100 %"},
		{"nothing runs on an idle GPU", with(idle, func(s *serving.Row) { s.Running = optional.Float{} }), prompts, []Objective{ttft}, "unexplained 100 %"},
		{"neither queue nor prefill", busy, Facts{FirstToken: of(10), Queue: of(1), Prefill: of(2), Waits: of(0.5), Full: of(1), Room: of(0)}, []Objective{ttft}, "prefill 20 %, kv_cache 10 %, unexplained 70 %"},
		{"an engine without times of queue and prefill", busy, Facts{FirstToken: of(4), Waits: of(1), Full: of(1)}, []Objective{ttft}, "unexplained 100 %"},
		{"an engine without times of prefill", busy, Facts{FirstToken: of(4), Queue: of(1), Waits: of(1), Full: of(1), Room: of(0)}, []Objective{ttft}, "prefill 75 %, kv_cache 25 %"},
		{"a queue that nobody saw", busy, Facts{FirstToken: of(4), Queue: of(4), Waits: of(0), Full: of(0), Room: of(0)}, []Objective{ttft}, "unexplained 100 %"},
		{"a power cap", busy, Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(1), Clock: of(0.7)}, []Objective{ttft}, "prefill 70 %, power_cap 30 %"},
		{"power and heat", busy, Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(1), Thermal: of(1), Clock: of(0.6)}, []Objective{ttft}, "prefill 60 %, power_cap 20 %, thermal 20 %"},
		{"heat for half of the time", busy, Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Thermal: of(0.5), Clock: of(0.8)}, []Objective{ttft}, "prefill 90 %, thermal 10 %"},
		{"a lower clock without a reason", busy, Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(0), Thermal: of(0), Clock: of(0.5)}, []Objective{ttft}, "prefill 100 %"},
		{"a power cap without a lower clock", busy, Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(1), Clock: of(1)}, []Objective{ttft}, "prefill 100 %"},
		{"tokens at the limit of the memory", slow, Facts{DRAM: of(0.8), Power: of(1), Clock: of(0.5)}, []Objective{tpot}, "decode 100 %"},
		{"tokens, and the memory is not busy", slow, Facts{DRAM: of(0.3)}, []Objective{tpot}, "unexplained 100 %"},
		{"tokens, and the memory is unknown", slow, Facts{}, []Objective{tpot}, "unexplained 100 %"},
		{"tokens, throttled", slow, Facts{DRAM: of(0.3), Thermal: of(1), Clock: of(0.6)}, []Objective{tpot}, "thermal 40 %, unexplained 60 %"},
		{"tokens on an idle GPU", with(slow, func(s *serving.Row) { s.Utilization = of(0.3) }), Facts{DRAM: of(0.1)}, []Objective{tpot}, "host 100 %"},
		{"prompts and tokens", with(slow, func(s *serving.Row) { s.SM = of(0.9) }), Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), DRAM: of(0.7)}, []Objective{ttft, tpot, whole}, "prefill 67 %, decode 33 %"},
		{"a long request", with(busy, func(s *serving.Row) { s.Request = serving.Quantiles{P99: of(20)} }), Facts{Request: of(10), FirstToken: of(3), Queue: of(2), Waits: of(1), Full: of(1), Room: of(0), DRAM: of(0.7)}, []Objective{whole}, "decode 70 %, kv_cache 20 %, prefill 10 %"},
		{"a long request without parts", busy, Facts{Request: of(10)}, []Objective{whole}, "unexplained 100 %"},
		{"shares below a hundredth", busy, Facts{FirstToken: of(1000), Queue: of(995), Prefill: of(5), Waits: of(1), Full: of(1), Room: of(0)}, []Objective{ttft}, "kv_cache 100 %"},
	} {
		got, sum := "", 0.0
		list := Limit(&c.served, c.facts, c.missed)
		for i, s := range list {
			if i > 0 {
				got += ", "
			}
			got += fmt.Sprintf("%s %.0f %%", s.Cause, 100*s.Share)
			sum += s.Share
			if s.Text == "" {
				t.Errorf("%s: %s without the numbers that it follows from", c.name, s.Cause)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if diff := cmp.Diff(of(1), of(sum), nearly); list != nil && diff != "" {
			t.Errorf("%s: shares add up to %v", c.name, sum)
		}
	}
}

// Catches a text without the numbers, and one that nobody can read.
func TestSentence(t *testing.T) {
	t.Parallel()
	of := optional.Of
	s := serving.Row{Running: of(20), SM: of(0.93), Utilization: of(1), FirstToken: serving.Quantiles{P95: of(194)}}
	f := Facts{FirstToken: of(125), Queue: of(120), Waits: of(0.98), Full: of(1), Room: of(0)}
	list := Limit(&s, f, []Objective{{Kind: FirstToken, Target: 0.95, Threshold: 2 * time.Second}})
	want := "96 % kv cache (queue 120.0 s of 125.0 s to the first token, requests waited in 98 % of the hour, in 100 % of that with at least 95 % of the KV cache in use), " +
		"4 % prefill (prefill 5.0 s of 125.0 s to the first token, SM activity 93 %)"
	if diff := cmp.Diff(want, Sentence(list)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
