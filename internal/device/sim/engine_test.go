package sim

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	vocabulary "github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

func servant(container string) Pod {
	return Pod{Namespace: "inference", Name: container + "-0", UID: container, Container: container, Kind: "deployment", Owner: container}
}

// engineConfig has a healthy engine on two GPUs and one whose cache is full, which start later than the node.
func engineConfig() Config {
	const from, until = 95 * time.Minute, 50 * time.Hour
	return Config{Seed: 3, Start: boot, Groups: []Group{
		{Model: "h100", Devices: 1, Role: "inference", Serves: "meta-llama/Llama-3.3-70B-Instruct", Stays: []Stay{{From: from, Until: until, Pod: servant("vllm")}}},
		{Model: "h100", Devices: 1, Role: "inference", Serves: "meta-llama/Llama-3.3-70B-Instruct", Stays: []Stay{{From: from, Until: until, Pod: servant("vllm")}}},
		{Model: "mi300x", Devices: 2, Role: "saturated", Serves: "mistralai/Mistral-Large-Instruct-2411", Stays: []Stay{{From: from, Until: until, Pod: servant("sglang")}}},
		{Model: "h100", Devices: 1, Role: "inference", Stays: []Stay{{Pod: servant("server")}}},
	}}
}

func engines(t testing.TB, cfg Config) []*Engine {
	t.Helper()
	list, err := Engines(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// scan reads a page, which must be without fault.
func scan(t *testing.T, e *Engine, up time.Duration) *promtext.Text {
	t.Helper()
	text := promtext.Scan(e.Page(boot.Add(up)))
	if text.Bad > 0 || !text.Whole || len(text.Samples) == 0 {
		t.Fatalf("%s at %s: %d samples, %d bad lines, %v", e.ID, up, len(text.Samples), text.Bad, text.Err)
	}
	return text
}

// metric returns the only value of a metric on a page, with an attribute if it has one.
func metric(t *testing.T, r *vocabulary.Reading, name string, attr ...string) *vocabulary.Point {
	t.Helper()
	for i := range r.Points {
		p := &r.Points[i]
		if p.Metric.Name == name && (attr == nil || p.Get(attr[0]) == attr[1]) {
			return p
		}
	}
	t.Fatalf("the page has no %s %v", name, attr)
	return nil
}

// Catches an engine that is missed, that nobody has, or that is divided among its devices.
func TestEngines(t *testing.T) {
	type engine struct {
		ID, Kind, Model string
		PID             uint32
		Port            int
		Devices         []string
		Stay            Stay
	}
	brief := func(list []*Engine) (out []engine) {
		for _, e := range list {
			out = append(out, engine{e.ID, e.Kind, e.Model, e.PID, e.Port, e.Devices, e.Stay})
		}
		return out
	}
	cfg := engineConfig()
	n, _ := newNode(t, cfg)
	want := []engine{
		{"vllm-8000", "vllm", "meta-llama/Llama-3.3-70B-Instruct", firstPID, 8000, []string{n.gpus[0].id.UUID, n.gpus[1].id.UUID}, cfg.Groups[0].Stays[0]},
		{"sglang-30000", "sglang", "mistralai/Mistral-Large-Instruct-2411", firstPID + 200, 30000, []string{n.gpus[2].id.UUID, n.gpus[3].id.UUID}, cfg.Groups[2].Stays[0]},
	}
	if d := cmp.Diff(want, brief(engines(t, cfg))); d != "" {
		t.Errorf("engines of groups (-want +got):\n%s", d)
	}
	n, _ = newNode(t, Config{GPUs: 16})
	want = nil
	for i, slot := range []int{3, 11} {
		want = append(want, engine{
			fmt.Sprintf("vllm-%d", 8000+i), "vllm", defaultNetwork, uint32(n.gpus[slot].pid()), 8000 + i,
			[]string{n.gpus[slot].id.UUID},
			Stay{Pod: podOf(roleInference, "nvidia", slot)},
		})
	}
	if d := cmp.Diff(want, brief(engines(t, Config{GPUs: 16}))); d != "" {
		t.Errorf("engines of a node without groups (-want +got):\n%s", d)
	}
}

// Catches an engine on a device that cannot hold its model, or whose speed is unknown.
func TestEveryDeviceCanServe(t *testing.T) {
	for _, name := range uniform() {
		m := models[name]
		if m.cut {
			continue // its tenants have cores
		}
		if speeds[m.name] == 0 {
			t.Errorf("the speed of %s is unknown", m.name)
		}
		if room := chat.empty * (m.memory - m.reserved); networks[defaultNetwork].weights > room {
			t.Errorf("%s has room for %v bytes of weights", m.name, room)
		}
	}
	for _, e := range engines(t, engineConfig()) {
		g := e.gpus[0]
		if room := float64(len(e.gpus)) * e.service.empty * (g.model.memory - g.model.reserved); e.network.weights > room {
			t.Errorf("%s has room for %v bytes of weights", e.ID, room)
		}
	}
}

// Catches a page of an engine that does not run, and one that says that it runs for longer than it does.
func TestEngineRunsDuringItsStay(t *testing.T) {
	for _, e := range engines(t, engineConfig()) {
		for _, up := range []time.Duration{-time.Hour, 0, e.From - 1, e.Until, e.Until + time.Hour} {
			if page := e.Page(boot.Add(up)); page != nil {
				t.Errorf("%s has a page %s after boot", e.ID, up)
			}
		}
		for _, s := range scan(t, e, e.From).Samples { // all counters begin at 0
			if s.Name == "vllm:prompt_tokens_total" || strings.HasSuffix(s.Name, "_count") {
				if s.Value != 0 {
					t.Errorf("%s begins with %s %v", e.ID, s.Name, s.Value)
				}
			}
		}
		r := vocabulary.Read(scan(t, e, e.Until-1), "")
		want := map[string]float64{"vllm": float64(boot.Add(e.From).Unix()), "sglang": 0} // SGLang does not say
		if r.Started != want[e.Kind] {
			t.Errorf("%s started at %v, want %v", e.ID, r.Started, want[e.Kind])
		}
	}
}

// Catches a name, a label or a form of a page that the reader of real pages does not understand. What it
// leaves out is what the vocabulary has no name for.
func TestEnginePagesAreRead(t *testing.T) {
	want := map[string][]string{
		"vllm": {
			"engine_sleep_state", "num_requests_waiting_by_reason",
			"request_max_num_generation_tokens", "request_params_max_tokens", "request_params_n", "request_prefill_kv_computed_tokens",
		},
		"sglang": {
			"cache_hit_rate", "decode_sum_seq_lens", "full_token_usage", "fwd_occupancy", "gen_throughput", "is_cuda_graph",
			"kv_available_tokens", "kv_cache_memory_usage_gb", "kv_evictable_tokens", "mamba_usage", "new_token_ratio", "num_pages",
			"num_retracted_input_tokens", "num_retracted_output_tokens", "num_retracted_reqs", "page_size", "realtime_tokens",
			"startup_available_gpu_memory_gb", "swa_token_usage", "uncached_prompt_tokens_histogram", "utilization", "weight_memory_usage_gb",
		},
	}
	for _, e := range engines(t, engineConfig()) {
		text := scan(t, e, 30*time.Hour)
		whole := vocabulary.Read(text, "")
		if whole.Rejected > 0 || !slices.Equal(whole.Providers, []string{e.Kind}) {
			t.Errorf("%s: %d rejected samples, providers %v", e.ID, whole.Rejected, whole.Providers)
		}
		var unmapped []string
		for name := range text.Types {
			without := &promtext.Text{Samples: slices.DeleteFunc(slices.Clone(text.Samples), func(s promtext.Sample) bool {
				part, ok := strings.CutPrefix(s.Name, name)
				return ok && slices.Contains([]string{"", "_bucket", "_sum", "_count"}, part)
			})}
			if len(without.Samples) == len(text.Samples) {
				t.Errorf("%s has a family %s without samples", e.ID, name)
			}
			if !strings.HasSuffix(name, "_created") && vocabulary.Read(without, "").Unmapped < whole.Unmapped {
				unmapped = append(unmapped, strings.TrimSuffix(strings.TrimPrefix(name, e.Kind+":"), "_total"))
			}
		}
		slices.Sort(unmapped)
		if d := cmp.Diff(want[e.Kind], unmapped); d != "" {
			t.Errorf("%s: families without a name (-want +got):\n%s", e.ID, d)
		}
	}
}

// key identifies a series of a page.
func key(s *promtext.Sample) string { return fmt.Sprint(s.Name, s.Labels) }

// Catches a counter that falls, a request that changes its bucket, and a page that depends on earlier pages.
func TestEngineCountersGrow(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var moments []time.Duration
	for range 300 {
		moments = append(moments, 95*time.Minute+time.Duration(random.Int64N(int64(40*time.Hour))))
	}
	slices.Sort(moments)
	for range 100 { // close together
		moments = append(moments, moments[len(moments)-1]+time.Duration(random.Int64N(int64(2*time.Second))))
	}
	for n, e := range engines(t, engineConfig()) {
		before := map[string]float64{}
		for _, up := range moments {
			text := scan(t, e, up)
			bucket := 0.0
			for i := range text.Samples {
				s := &text.Samples[i]
				k, v := key(s), s.Value
				family := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(s.Name, "_bucket"), "_count"), "_sum")
				if text.Types[s.Name] != "counter" && text.Types[family] != "histogram" {
					continue
				}
				if v < before[k] {
					t.Fatalf("%s at %s: %s fell from %v to %v", e.ID, up, k, before[k], v)
				}
				before[k] = v
				if s.Get("le") == "" {
					bucket = 0
					continue
				}
				if own := v - bucket; own < before["own "+k] {
					t.Fatalf("%s at %s: what is only in %s fell from %v to %v", e.ID, up, k, before["own "+k], own)
				}
				before["own "+k] = v - bucket
				bucket = v
				if s.Get("le") == "+Inf" {
					bucket = 0
				}
			}
		}
		last := moments[len(moments)-1]
		if again := engines(t, engineConfig())[n]; !bytes.Equal(again.Page(boot.Add(last)), e.Page(boot.Add(last))) {
			t.Errorf("%s: the page depends on what was read before", e.ID)
		}
	}
}

// Catches a sum of a histogram that its buckets cannot have, and histograms of the same requests that
// count differently.
func TestEngineHistogramsAgree(t *testing.T) {
	for _, e := range engines(t, engineConfig()) {
		for _, up := range []time.Duration{96 * time.Minute, 2 * time.Hour, 30 * time.Hour} {
			r := vocabulary.Read(scan(t, e, up), "")
			answers := metric(t, r, "gen_ai.server.time_to_first_token").Count
			for _, p := range r.Points {
				if p.Buckets == nil {
					continue
				}
				low, high := 0.0, 0.0
				for i, n := range p.Counts {
					if i > 0 {
						low += float64(n) * p.Bounds[i-1]
					}
					bound := math.Inf(1)
					if i < len(p.Bounds) {
						bound = p.Bounds[i]
					}
					if n > 0 {
						high += float64(n) * bound
					}
				}
				if p.Sum < low*(1-1e-9) || p.Sum > high*(1+1e-9) {
					t.Errorf("%s at %s: the sum of %s %v is %v, its buckets say %v to %v", e.ID, up, p.Metric.Name, p.Attrs, p.Sum, low, high)
				}
				perRequest := !slices.Contains([]string{"inference.inter_token.latency", "inference.batch.token"}, p.Metric.Name) &&
					(p.Metric.Name != "gen_ai.server.request.duration" || e.Kind == "vllm") // SGLang also counts those that gave up
				if perRequest && p.Count != answers {
					t.Errorf("%s at %s: %s has %d values, %d requests got an answer", e.ID, up, p.Metric.Name, p.Count, answers)
				}
			}
			var ended float64
			for _, p := range r.Points {
				if p.Metric.Name == "inference.request.finished" {
					ended += p.Value
				}
			}
			if total := metric(t, r, "gen_ai.server.request.duration").Count; ended != float64(total) {
				t.Errorf("%s at %s: %v requests ended, %d have a duration", e.ID, up, ended, total)
			}
		}
	}
}
