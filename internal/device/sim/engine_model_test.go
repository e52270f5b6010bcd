package sim

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	vocabulary "github.com/gpumeter/gpumeter/internal/inference"
)

// near reports whether a is within a ratio of b.
func near(a, b, ratio float64) bool { return math.Abs(a-b) <= ratio*math.Abs(b) }

// Catches tokens that do not follow the utilization of the devices, over an hour and over a day.
func TestTokensFollowUtilization(t *testing.T) {
	for _, e := range engines(t, engineConfig()) {
		for _, span := range []time.Duration{time.Hour, 24 * time.Hour} {
			const from = 3*time.Hour + 1234*time.Millisecond
			busy := 0.0
			for _, g := range e.gpus {
				_, before := g.at(from)
				_, after := g.at(from + span)
				busy += after.busy - before.busy
			}
			tokens := 0.0
			for i, up := range []time.Duration{from, from + span} {
				r := vocabulary.Read(scan(t, e, up), "")
				v := metric(t, r, "inference.token.input").Value + metric(t, r, "inference.token.output").Value
				tokens += float64(2*i-1) * v
			}
			if want := busy * capacity(e.gpus[0].id.Model, e.network); !near(tokens, want, 0.01) {
				t.Errorf("%s: %v tokens in %s, want %v", e.ID, tokens, span, want)
			}
		}
	}
}

// Catches a cache that is not what the devices hold in memory beyond the weights.
func TestCacheIsUsedMemory(t *testing.T) {
	n, clock := newNode(t, engineConfig())
	for _, e := range engines(t, engineConfig()) {
		for clock.up = 2 * time.Hour; clock.up < 3*time.Hour; clock.up += 97 * time.Second {
			r := vocabulary.Read(scan(t, e, clock.up), "")
			cache := metric(t, r, "inference.kv_cache.utilization").Value * metric(t, r, "inference.kv_cache.limit").Value * e.network.cache
			held := 0.0
			for _, g := range n.gpus {
				if !slices.Contains(e.Devices, g.id.UUID) {
					continue
				}
				s := read(t, g)
				held += value(s.Memory.Used) - e.service.empty*(g.model.memory-g.model.reserved)
			}
			if math.Abs(cache-held) > 1.5*gib || held < 0 {
				t.Errorf("%s at %s: %v bytes are in the cache, the devices hold %v", e.ID, clock.up, cache, held)
			}
		}
	}
}

// seen is what a page says of a moment.
type seen struct {
	running, waiting, cache, preempted, aborted float64
	first, answers                              float64 // seconds to the first tokens of how many requests
}

func watchEngine(t *testing.T, e *Engine, up time.Duration) seen {
	t.Helper()
	r := vocabulary.Read(scan(t, e, up), "")
	first := metric(t, r, "gen_ai.server.time_to_first_token")
	return seen{
		first: first.Sum, answers: float64(first.Count),
		running: metric(t, r, "inference.request.count", vocabulary.AttrState, "running").Value,
		waiting: metric(t, r, "inference.request.count", vocabulary.AttrState, "waiting").Value,
		cache:   metric(t, r, "inference.kv_cache.utilization").Value, preempted: metric(t, r, "inference.request.preemptions").Value,
		aborted: metric(t, r, "inference.request.finished", vocabulary.AttrOutcome, vocabulary.Abort).Value,
	}
}

// Catches a queue without a reason: requests that wait though the cache has room, or a full cache without
// its consequences.
func TestSaturatedEngine(t *testing.T) {
	e := engines(t, engineConfig())[1]
	before := watchEngine(t, e, 3*time.Hour)
	begin, most, grew, relieved := before, 0.0, 0, 0
	tokens := e.service.prompt + e.service.output/2 // of a request that is half done
	for up := 3*time.Hour + 10*time.Second; up <= 4*time.Hour; up += 10 * time.Second {
		now := watchEngine(t, e, up)
		if now.waiting > before.waiting {
			grew++
			if now.cache < 0.98 {
				t.Errorf("at %s the queue grew to %v, the cache is at %v", up, now.waiting, now.cache)
			}
		}
		if now.waiting == 0 && now.cache < 0.95 {
			relieved++
			if first := (now.first - before.first) / (now.answers - before.answers); before.waiting == 0 && first > 5 {
				t.Errorf("at %s nobody waits, but the first token takes %v s", up, first)
			}
		}
		if room := e.rates.pool / tokens; now.running > 1.02*room || now.running < 0.8*room {
			t.Errorf("at %s %v requests run, there is room for %v", up, now.running, room)
		}
		most, before = max(most, now.waiting), now
	}
	if most < 115 || most > 120 || grew < 200 || relieved < 20 || before.preempted-begin.preempted < 50 || before.aborted-begin.aborted < 200 {
		t.Errorf("at most %v wait, the queue grew %d times, %d times of relief, from %+v to %+v", most, grew, relieved, begin, before)
	}
}

// Catches an engine that is healthy by its load, but not by its page.
func TestHealthyEngine(t *testing.T) {
	e := engines(t, engineConfig())[0]
	var lowest, highest float64
	for up := 3 * time.Hour; up < 4*time.Hour; up += 10 * time.Second {
		now := watchEngine(t, e, up)
		if now.waiting > 0 || now.cache > 0.9 || now.preempted > 20 {
			t.Errorf("at %s: %+v", up, now)
		}
		if highest = max(highest, now.running); lowest == 0 || now.running < lowest {
			lowest = now.running
		}
	}
	if lowest > 10 || highest < 20 || highest > 60 {
		t.Errorf("%v to %v requests run: that is no load in waves", lowest, highest)
	}
}

// p95 returns the 95th percentile of what a histogram got in a time.
func p95(t *testing.T, e *Engine, name string, from, until time.Duration) float64 {
	t.Helper()
	a, b := metric(t, vocabulary.Read(scan(t, e, from), ""), name), metric(t, vocabulary.Read(scan(t, e, until), ""), name)
	left := 0.95 * float64(b.Count-a.Count)
	for i, bound := range b.Bounds {
		n := float64(b.Counts[i] - a.Counts[i])
		if n >= left {
			low := 0.0
			if i > 0 {
				low = b.Bounds[i-1]
			}
			return low + (bound-low)*left/n
		}
		left -= n
	}
	return math.Inf(1)
}

// Catches latencies that do not tell the engines apart: users of the saturated one wait for their first
// token, but then it comes as fast as the others.
func TestEngineLatencies(t *testing.T) {
	list := engines(t, engineConfig())
	type bounds struct{ low, high float64 }
	for i, want := range []map[string]bounds{
		{"gen_ai.server.time_to_first_token": {0.2, 1}, "inference.inter_token.latency": {0.02, 0.06}, "gen_ai.server.request.duration": {5, 30}},
		{"gen_ai.server.time_to_first_token": {60, 300}, "inference.inter_token.latency": {0.05, 0.12}, "gen_ai.server.request.duration": {120, 500}},
	} {
		for name, b := range want {
			got := p95(t, list[i], name, 3*time.Hour, 4*time.Hour)
			t.Logf("%s %s: p95 %.3f s", list[i].ID, name, got)
			if got < b.low || got > b.high {
				t.Errorf("%s: the 95th percentile of %s is %v, want %v to %v", list[i].ID, name, got, b.low, b.high)
			}
		}
	}
}

// Catches an engine in a plan that cannot be.
func TestBadEngines(t *testing.T) {
	f := func(g Group, want string) {
		t.Helper()
		if _, err := Engines(Config{Groups: []Group{g}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", g, err, want)
		}
	}
	f(Group{Model: "h100", Role: "inference", Serves: "gpt-2"}, `unknown model "gpt-2" of a simulated inference engine, want one of meta`)
	f(Group{Model: "h100", Role: "training", Serves: defaultNetwork}, "h100 devices with role training cannot serve a model")
	f(Group{Model: "h100", Role: "partitioned", Serves: defaultNetwork}, "cannot serve a model")
	f(Group{Model: "h100", Role: "inference", Serves: defaultNetwork, Stays: []Stay{{Pod: servant("tgi")}}}, `unknown simulated inference engine "tgi", want one of sglang, vllm`)
}

// Catches counts that are not those of the sequence of quantiles, or a quantile that comes too often.
func TestBelow(t *testing.T) {
	for _, bound := range []int{0, 1, 3, 511, 512, 700, 1023, 1024} {
		var want uint64
		for n := range uint64(3 * quantiles) {
			if got := below(n, bound); got != want {
				t.Fatalf("%d of the first %d are below %d, want %d", got, n, bound, want)
			}
			if quantile(n) < bound {
				want++
			}
		}
		if want != 3*uint64(bound) {
			t.Errorf("%d of %d are below %d", want, 3*quantiles, bound)
		}
	}
}

// Catches numbers and families in another form than that of the Prometheus client for Python, whose pages
// have these numbers.
func TestPageForm(t *testing.T) {
	for want, v := range map[string]float64{
		"0.0": 0, "1.0": 1, "0.005": 0.005, "0.19016313552856445": 0.19016313552856445, "5e-05": 0.00005, "10.950000000000001": 10.950000000000001,
		"999999.0": 999999, "1e+06": 1e6, "8.128902e+06": 8128902, "2.3518979474117756e+06": 2351897.9474117756, "1.7181405583e+09": 1718140558.3,
		"3.2505856e+010": 32505856000, "1e+20": 1e20,
	} {
		if got := string(appendNumber(nil, v)); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
	h := newHistogram([]float64{1, 2.5}, term{indexed(func(int) float64 { return 2 }), same(1)})
	write := func(w *pageWriter) string {
		w.labels = []label{{"engine", "0"}, {"model_name", "m"}}
		w.counter("x:a", "A.", 3, "reason", "b", "cause", "c")
		w.histogram("x:h", "H.", h, &counts{4, 1})
		w.gauge("x:g", "G.", 0.5)
		w.end()
		return string(w.b)
	}
	want := `# HELP x:a_total A.
# TYPE x:a_total counter
x:a_total{cause="c",engine="0",model_name="m",reason="b"} 3.0
# HELP x:a_created A.
# TYPE x:a_created gauge
x:a_created{cause="c",engine="0",model_name="m",reason="b"} 1.7181405583e+09
# HELP x:h H.
# TYPE x:h histogram
x:h_bucket{engine="0",le="1.0",model_name="m"} 0.0
x:h_bucket{engine="0",le="2.5",model_name="m"} 5.0
x:h_bucket{engine="0",le="+Inf",model_name="m"} 5.0
x:h_count{engine="0",model_name="m"} 5.0
x:h_sum{engine="0",model_name="m"} 10.0
# HELP x:h_created H.
# TYPE x:h_created gauge
x:h_created{engine="0",model_name="m"} 1.7181405583e+09
# HELP x:g G.
# TYPE x:g gauge
x:g{engine="0",model_name="m"} 0.5
`
	if d := cmp.Diff(want, write(&pageWriter{created: 1718140558.3})); d != "" {
		t.Errorf("a page of one process (-want +got):\n%s", d)
	}
	want = `# HELP x:a_total A.
# TYPE x:a_total counter
x:a_total{cause="c",engine="0",model_name="m",reason="b"} 3.0
# HELP x:h H.
# TYPE x:h histogram
x:h_sum{engine="0",model_name="m"} 10.0
x:h_bucket{engine="0",le="1.0",model_name="m"} 0.0
x:h_bucket{engine="0",le="2.5",model_name="m"} 5.0
x:h_bucket{engine="0",le="+Inf",model_name="m"} 5.0
x:h_count{engine="0",model_name="m"} 5.0
# HELP x:g G.
# TYPE x:g gauge
x:g{engine="0",model_name="m"} 0.5
`
	if d := cmp.Diff(want, write(&pageWriter{sumFirst: true})); d != "" {
		t.Errorf("a page of several processes (-want +got):\n%s", d)
	}
}

func BenchmarkPage(b *testing.B) {
	for _, e := range engines(b, engineConfig()) {
		b.Run(e.Kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e.Page(boot.Add(30 * time.Hour))
			}
		})
	}
}
