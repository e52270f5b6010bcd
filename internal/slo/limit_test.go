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
	seen := func(edit func(*serving.Row)) *serving.Row {
		s := serving.Row{FirstToken: p95(3)} // the objective is missed by twice its threshold
		edit(&s)
		return &s
	}
	only := seen(func(*serving.Row) {})
	slow := seen(func(s *serving.Row) { s.PerToken = p95(0.1) }) // by once its threshold
	busy := func(f Facts) Facts { f.Running, f.SM, f.Utilization = of(20), of(0.9), of(1); return f }
	calm := func(f Facts) Facts { f.Running, f.SM, f.Utilization = of(20), of(0.4), of(1); return f }
	idle := func(f Facts) Facts { f.Running, f.SM, f.Utilization = of(20), of(0.1), of(0.2); return f }
	with := func(f Facts, edit func(*Facts)) Facts { edit(&f); return f }
	queued := Facts{FirstToken: of(10), Queue: of(8), Prefill: of(2), Waits: of(0.9), Full: of(1), Room: of(0)}
	room := queued
	room.Full, room.Room = of(0), of(1)
	prompts := Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Waits: of(0)}
	front := func(v float64) Front { return Front{Name: "dynamo", Mean: of(v)} }
	for _, c := range []struct {
		name   string
		served *serving.Row
		facts  Facts
		missed []Objective
		want   string
	}{
		{"nothing is missed and nothing waits", only, busy(prompts), nil, ""},
		{"nothing is known", &serving.Row{}, Facts{}, nil, ""},
		{"a request waits for a moment", only, busy(Facts{Waits: of(0.05), Full: of(1), Room: of(0)}), nil, ""},
		{"requests fail", only, busy(queued), []Objective{failures}, "kv_cache 100 %"}, // they also wait
		{"requests fail, none waits", only, busy(prompts), []Objective{failures}, ""},
		{"the cache is full, and prompts are long", only, busy(queued), []Objective{ttft}, "kv_cache 80 %, prefill 20 %"},
		{"requests wait, nothing is missed", only, busy(queued), nil, "kv_cache 100 %"},
		{"the cache is full for half of the time", only, calm(Facts{Waits: of(1), Full: of(0.5), Room: of(0.5)}), nil, "kv_cache 50 %, queue_limit 50 %"},
		{"requests wait, and the cache has room", only, calm(room), []Objective{ttft}, "queue_limit 80 %, unexplained 20 %"},
		{"the same while the GPU computes", only, busy(room), []Objective{ttft}, "prefill 20 %, unexplained 80 %"},
		{"the same while the GPU is idle", only, idle(room), nil, "unexplained 100 %"},
		{"requests wait, none runs", only, with(idle(room), func(f *Facts) { f.Running, f.SM, f.Utilization = of(0), optional.Float{}, optional.Float{} }), nil, "unexplained 100 %"},
		{"requests wait, and the cache is neither full nor empty", only, calm(Facts{Waits: of(1), Full: of(0.3), Room: of(0)}), nil, "kv_cache 30 %, unexplained 70 %"},
		{"requests wait, and the cache is unknown", only, calm(Facts{Waits: of(1)}), nil, "unexplained 100 %"},
		{"long prompts", only, busy(prompts), []Objective{ttft}, "prefill 100 %"},
		{"long prompts, SM activity is unknown", only, with(busy(prompts), func(f *Facts) { f.SM = optional.Float{} }), []Objective{ttft}, "prefill 100 %"},
		{"long prompts, and the GPU computes little", only, calm(prompts), []Objective{ttft}, "unexplained 100 %"},
		{"long prompts on an idle GPU", only, idle(prompts), []Objective{ttft}, "host 100 %"},
		{"nothing runs on an idle GPU", only, prompts, []Objective{ttft}, "unexplained 100 %"},
		{"neither queue nor prefill", only, busy(Facts{FirstToken: of(10), Queue: of(1), Prefill: of(2), Waits: of(0.5), Full: of(1), Room: of(0)}), []Objective{ttft}, "prefill 20 %, kv_cache 10 %, unexplained 70 %"},
		{"an engine without times of queue and prefill", only, busy(Facts{FirstToken: of(4), Waits: of(1), Full: of(1)}), []Objective{ttft}, "unexplained 100 %"},
		{"an engine without times of prefill", only, busy(Facts{FirstToken: of(4), Queue: of(1), Waits: of(1), Full: of(1), Room: of(0)}), []Objective{ttft}, "prefill 75 %, kv_cache 25 %"},
		{"a queue that nobody saw", only, busy(Facts{FirstToken: of(4), Queue: of(4), Waits: of(0), Full: of(0), Room: of(0)}), []Objective{ttft}, "unexplained 100 %"},
		{"a power cap", only, busy(Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(1), Clock: of(0.7)}), []Objective{ttft}, "prefill 70 %, power_cap 30 %"},
		{"power and heat", only, busy(Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(1), Thermal: of(1), Clock: of(0.6)}), []Objective{ttft}, "prefill 60 %, power_cap 20 %, thermal 20 %"},
		{"heat for half of the time", only, busy(Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Thermal: of(0.5), Clock: of(0.8)}), []Objective{ttft}, "prefill 90 %, thermal 10 %"},
		{"a lower clock without a reason", only, busy(Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(0), Thermal: of(0), Clock: of(0.5)}), []Objective{ttft}, "prefill 100 %"},
		{"a power cap without a lower clock", only, busy(Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), Power: of(1), Clock: of(1)}), []Objective{ttft}, "prefill 100 %"},
		{"tokens at the limit of the memory", slow, calm(Facts{DRAM: of(0.8), Power: of(1), Clock: of(0.5)}), []Objective{tpot}, "decode 100 %"},
		{"tokens, and the memory is not busy", slow, calm(Facts{DRAM: of(0.3)}), []Objective{tpot}, "unexplained 100 %"},
		{"tokens, and the memory is unknown", slow, calm(Facts{}), []Objective{tpot}, "unexplained 100 %"},
		{"tokens, throttled", slow, calm(Facts{DRAM: of(0.3), Thermal: of(1), Clock: of(0.6)}), []Objective{tpot}, "thermal 40 %, unexplained 60 %"},
		{"tokens on an idle GPU", slow, idle(Facts{DRAM: of(0.1)}), []Objective{tpot}, "host 100 %"},
		{"prompts and tokens", slow, busy(Facts{FirstToken: of(4), Queue: of(0), Prefill: of(4), DRAM: of(0.7)}), []Objective{ttft, tpot, whole}, "prefill 67 %, decode 33 %"},
		{"a long request", seen(func(s *serving.Row) { s.Request = serving.Quantiles{P99: of(20)} }), busy(Facts{Request: of(10), FirstToken: of(3), Queue: of(2), Waits: of(1), Full: of(1), Room: of(0), DRAM: of(0.7)}), []Objective{whole}, "decode 70 %, kv_cache 20 %, prefill 10 %"},
		{"a long request without parts", only, busy(Facts{Request: of(10)}), []Objective{whole}, "unexplained 100 %"},
		{"shares below a hundredth", only, busy(Facts{FirstToken: of(1000), Queue: of(995), Prefill: of(5), Waits: of(1), Full: of(1), Room: of(0)}), []Objective{ttft}, "kv_cache 100 %"},
		{"a slow frontend", only, with(busy(queued), func(f *Facts) { f.FrontFirstToken = front(40) }), []Objective{ttft}, "network 75 %, kv_cache 20 %, prefill 5 %"},
		{"a frontend that takes no time", only, with(busy(queued), func(f *Facts) { f.FrontFirstToken = front(9) }), []Objective{ttft}, "kv_cache 80 %, prefill 20 %"},
		{"a frontend, requests wait and nothing is missed", only, with(busy(queued), func(f *Facts) { f.FrontFirstToken = front(40) }), nil, "kv_cache 100 %"},
		{"a slow frontend of an engine without parts", only, Facts{Request: of(10), FrontRequest: front(20)}, []Objective{whole}, "network 50 %, unexplained 50 %"},
		{"tokens behind a slow frontend", slow, with(calm(Facts{DRAM: of(0.8)}), func(f *Facts) { f.FrontFirstToken = front(40) }), []Objective{tpot}, "decode 100 %"},
		{"a frontend much slower than tokens", slow, with(busy(Facts{FirstToken: of(1), Queue: of(0), Prefill: of(1), DRAM: of(0.7)}), func(f *Facts) {
			f.FrontFirstToken = Front{"smg", of(2), p95(5)} // by four times the threshold, tokens by once theirs
		}), []Objective{ttft, tpot}, "network 40 %, prefill 40 %, decode 20 %"},
	} {
		got, sum := "", 0.0
		list := Limit(c.served, c.facts, c.missed)
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
	s := serving.Row{FirstToken: serving.Quantiles{P95: of(194)}}
	missed := []Objective{{Kind: FirstToken, Target: 0.95, Threshold: 2 * time.Second}}
	for want, f := range map[string]Facts{
		"KV cache full 96 % (queue 120.0 s of 125.0 s to the first token, requests waited in 98 % of the hour, in 100 % of that with at least 95 % of the KV cache in use), " +
			"Prefill 4 % (prefill 5.0 s of 125.0 s to the first token, SM activity 93 %)": {
			FirstToken: of(125), Queue: of(120), Waits: of(0.98), Full: of(1), Room: of(0), Running: of(20), SM: of(0.93), Utilization: of(1),
		},
		"Frontend and network 75 % (2.0 s to the first token at dynamo, 500 ms in the engines), Host 25 % (prefill 500 ms of 500 ms to the first token, utilization 20 % while requests ran, 2.5 at a time)": {
			FirstToken: of(0.5), Queue: of(0), Utilization: of(0.2), Running: of(2.5), FrontFirstToken: Front{Name: "dynamo", Mean: of(2)},
		},
		"Unexplained 100 % (the engine does not say how much of the time to the first token is queue; " +
			"the network is in no number: a router or gateway in front of just these engines would tell, if it was read)": {FirstToken: of(4)},
	} {
		if diff := cmp.Diff(want, Sentence(Limit(&s, f, missed))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
