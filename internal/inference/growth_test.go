package inference

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// second is a moment of the tests. The engine would have been found since second 0.
func second(n int) time.Time { return time.Unix(1_700_000_000+int64(n), 0) }

// follow reads pages ten seconds apart and returns the counters and histograms of each, with the second
// in which they were zero.
func follow(watched time.Time, pages ...string) []string {
	g := &Growth{Watched: watched}
	var out []string
	for i, page := range pages {
		r := Read(promtext.Scan([]byte(page)), "m")
		if err := g.Follow(r, second(10+10*i), time.Time{}); err != nil {
			out = append(out, fmt.Sprintf("%d: %v", i, err))
			continue
		}
		for j := range r.Points {
			p := &r.Points[j]
			if p.Metric.Kind != Counter && p.Metric.Kind != Histogram {
				continue
			}
			since := "?"
			if !p.Since.IsZero() {
				since = fmt.Sprint(p.Since.Sub(second(0)).Seconds())
			}
			name, value := p.Metric.Name[strings.LastIndexByte(p.Metric.Name, '.')+1:], fmt.Sprint(p.Value)
			if o := p.Get(AttrOutcome); o != "" {
				name = o
			}
			if p.Buckets != nil {
				value = fmt.Sprint(p.Counts, " ", p.Sum)
			}
			out = append(out, fmt.Sprintf("%d: %s %s since %s", i, name, value, since))
		}
	}
	return out
}

// Catches tokens that are counted twice, or not at all, when an engine starts, restarts, or has workers
// that come and go.
func TestGrowth(t *testing.T) {
	t.Parallel()
	begin := func(n int) string { return fmt.Sprintf("process_start_time_seconds %d\n", second(n).Unix()) }
	own := func(n int) string { return fmt.Sprintf("vllm:generation_tokens_total{model_name=\"m\"} %d\n", n) }
	out := func(worker string, n int) string {
		return fmt.Sprintf("ray_vllm_generation_tokens_total{model_name=\"m\",WorkerId=%q} %d\n", worker, n)
	}
	ttft := func(bound string, below, all int) string {
		const name = "vllm:time_to_first_token_seconds"
		return fmt.Sprintf("%s_bucket{le=%q} %d\n%s_bucket{le=\"+Inf\"} %d\n%s_count %d\n%s_sum %d\n", name, bound, below, name, all, name, all, name, all)
	}
	for _, tt := range []struct {
		name    string
		watched time.Time
		pages   []string
		want    []string
	}{
		{"it ran before the agent did", second(0), []string{begin(-5) + own(7), begin(-5) + own(9)}, []string{"0: output 7 since ?", "1: output 9 since ?"}},
		{"it began under the agent's eyes", second(0), []string{begin(4) + own(7), begin(4) + own(9)}, []string{"0: output 7 since 4", "1: output 9 since 4"}},
		{"its clock is ahead", second(0), []string{begin(100) + own(7)}, []string{"0: output 7 since ?"}},
		{"it restarts and says so", second(0), []string{begin(4) + own(7), begin(15) + own(9)}, []string{"0: output 7 since 4", "1: output 9 since 15"}},
		{"it restarts and does not say so", second(0), []string{own(7), own(2), own(3)}, []string{"0: output 0 since 10", "1: output 2 since 10", "2: output 3 since 10"}},
		{"a worker ends", second(0), []string{begin(-5) + out("a", 1000) + out("b", 1000), begin(-5) + out("a", 1005), begin(-5) + out("a", 1005)}, []string{"0: output 0 since 10", "1: output 5 since 10", "2: output 5 since 10"}},
		{"a worker begins", second(0), []string{begin(-5) + out("a", 1000), begin(-5) + out("a", 1000) + out("c", 3)}, []string{"0: output 0 since 10", "1: output 3 since 10"}},
		{"a page without the family", second(0), []string{begin(-5) + own(1000), begin(-5) + "vllm:x 1\n", begin(-5) + own(1001)}, []string{"0: output 1000 since ?", "2: output 1001 since ?"}},
		{
			"a family that appears with its first value", second(0),
			[]string{begin(-5) + own(1), begin(-5) + own(1) + "vllm:num_preemptions_total 5\n"},
			[]string{"0: output 1 since ?", "1: output 1 since ?", "1: preemptions 5 since 10"},
		},
		{
			"a copy of another rank counts", second(0),
			[]string{
				begin(-5) + "sglang:generation_tokens_total{tp_rank=\"0\"} 10\nsglang:generation_tokens_total{tp_rank=\"1\"} 9\n",
				begin(-5) + "sglang:generation_tokens_total{tp_rank=\"0\"} 11\nsglang:generation_tokens_total{tp_rank=\"1\"} 12\n",
			},
			[]string{"0: output 10 since ?", "1: output 12 since ?"},
		},
		{
			"a difference that falls", second(0),
			[]string{
				begin(-5) + "sglang:num_requests_total 10\nsglang:num_aborted_requests_total 2\n", begin(-5) + "sglang:num_requests_total 10\nsglang:num_aborted_requests_total 3\n",
				begin(-5) + "sglang:num_requests_total 12\nsglang:num_aborted_requests_total 3\n",
			},
			[]string{"0: success 8 since ?", "0: abort 2 since ?", "1: success 8 since ?", "1: abort 3 since ?", "2: success 9 since ?", "2: abort 3 since ?"},
		},
		{
			"two families that add up", second(0),
			[]string{
				begin(-5) + "llamacpp:prompt_tokens_total 100\nllamacpp:prompt_tokens_cached_total 30\n", begin(-5) + "llamacpp:prompt_tokens_total 110\nllamacpp:prompt_tokens_cached_total 31\n",
			},
			[]string{"0: input 130 since ?", "0: queries 130 since ?", "0: hits 30 since ?", "1: input 141 since ?", "1: queries 141 since ?", "1: hits 31 since ?"},
		},
		{
			"lookups that are shown with the first hit", second(0),
			[]string{
				begin(-5) + "sglang:prompt_tokens_total 100\n", begin(-5) + "sglang:prompt_tokens_total 110\nsglang:cached_tokens_total 3\n",
				begin(-5) + "sglang:prompt_tokens_total 120\nsglang:cached_tokens_total 5\n",
			},
			[]string{
				"0: input 100 since ?", "1: input 110 since ?", "1: queries 110 since ?", "1: hits 3 since 10",
				"2: input 120 since ?", "2: queries 120 since ?", "2: hits 5 since 10",
			},
		},
		{
			"lookups of an engine that does not say when it began", second(0),
			[]string{"sglang:prompt_tokens_total 100\n", "sglang:prompt_tokens_total 110\nsglang:cached_tokens_total 3\n"},
			[]string{"0: input 0 since 10", "1: input 10 since 10", "1: queries 10 since 10", "1: hits 3 since 10"},
		},
		{
			"an engine that has served nothing", second(0),
			[]string{begin(-5) + "# TYPE request_predict_seconds histogram\n", begin(-5) + "request_predict_seconds_bucket{le=\"+Inf\"} 2\nrequest_predict_seconds_sum 3\n"},
			[]string{"1: duration [2] 3 since 10"},
		},
		{
			"a replica that ends", second(0),
			[]string{
				begin(-5) + "ray_vllm_generation_tokens_total{ReplicaId=\"a\"} 1000\nray_vllm_generation_tokens_total{ReplicaId=\"b\"} 1000\n",
				begin(-5) + "ray_vllm_generation_tokens_total{ReplicaId=\"b\"} 1005\n",
			},
			[]string{"0: output 0 since 10", "1: output 5 since 10"},
		},
		{"histograms", second(0), []string{begin(-5) + ttft("1", 5, 6), begin(-5) + ttft("1.0", 7, 9), begin(-5) + ttft("1", 1, 2)}, []string{
			"0: time_to_first_token [5 1] 6 since ?", "1: time_to_first_token [7 2] 9 since ?", "2: time_to_first_token [8 3] 11 since ?",
		}},
		{"histograms of an engine that does not say when it began", second(0), []string{ttft("1", 5, 6), ttft("1.0", 7, 9), ttft("1", 1, 2)}, []string{
			"0: time_to_first_token [0 0] 0 since 10", "1: time_to_first_token [2 1] 3 since 10", "2: time_to_first_token [3 2] 5 since 10",
		}},
		{"an upgrade that changes the bounds", second(0), []string{begin(-5) + ttft("1", 5, 6), begin(-5) + ttft("2", 7, 9)}, []string{
			"0: time_to_first_token [5 1] 6 since ?", "1: time_to_first_token [7 2] 9 since 10",
		}},
		{
			"two versions that answer in turn, without a word of their processes", second(0),
			[]string{begin(-5) + ttft("1", 5, 6), begin(-5) + ttft("2", 7, 9), begin(-5) + ttft("1", 5, 7), begin(-5) + ttft("2", 7, 9)},
			[]string{
				"0: time_to_first_token [5 1] 6 since ?", "1: time_to_first_token [7 2] 9 since 10", "2: time_to_first_token [0 0] 0 since 30", "3: time_to_first_token [0 0] 0 since 40",
			},
		},
		{
			"two processes that answer in turn", second(0),
			[]string{begin(-5) + own(1000), begin(-900) + own(900), begin(-5) + own(1005), begin(-900) + own(905), begin(-5) + own(1010)},
			[]string{"0: output 1000 since ?", "1: output 900 since 10", "2: " + ErrAlternates.Error(), "3: output 905 since 10", "4: " + ErrAlternates.Error()},
		},
		{
			"a clock that is set and set back", second(0),
			[]string{begin(-5) + own(10), begin(-905) + own(11), begin(-5) + own(12), begin(-5) + own(13), begin(-5) + own(14), begin(-5) + own(15)},
			[]string{"0: output 10 since ?", "1: output 11 since 10", "2: " + ErrAlternates.Error(), "3: " + ErrAlternates.Error(), "4: output 0 since 50", "5: output 1 since 50"},
		},
		{
			"a start that is rounded anew each time", second(0),
			[]string{begin(-5) + own(10), begin(-4) + own(11), begin(-6) + own(12), begin(-5) + own(13)},
			[]string{"0: output 10 since ?", "1: output 11 since ?", "2: output 12 since ?", "3: output 13 since ?"},
		},
		{
			"starts that are none", second(0),
			[]string{"process_start_time_seconds NaN\n" + own(10), "process_start_time_seconds NaN\n" + own(11), "process_start_time_seconds +Inf\n" + own(12), "process_start_time_seconds -1\n" + own(13)},
			[]string{"0: output 0 since 10", "1: output 1 since 10", "2: output 2 since 10", "3: output 3 since 10"},
		},
		{
			"counters that fall below zero or are no numbers", second(0),
			[]string{begin(-5) + own(10), begin(-5) + own(-3), begin(-5) + "vllm:generation_tokens_total{model_name=\"m\"} NaN\n", begin(-5) + "vllm:generation_tokens_total{model_name=\"m\"} +Inf\n", begin(-5) + own(12)},
			[]string{"0: output 10 since ?", "4: output 12 since ?"},
		},
	} {
		if diff := cmp.Diff(tt.want, follow(tt.watched, tt.pages...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Catches tokens that are counted once under the old labels of a workload and again under the new ones.
func TestRelabel(t *testing.T) {
	t.Parallel()
	const page = "process_start_time_seconds %d\nvllm:generation_tokens_total %d\nray_vllm_prompt_tokens_total{WorkerId=\"a\"} %d\n"
	g := &Growth{Watched: second(0)}
	var got []string
	for i := range 4 {
		if i == 2 {
			g.Relabel()
		}
		r := Read(promtext.Scan(fmt.Appendf(nil, page, second(5).Unix(), 100+i, 200+i)), "m")
		if err := g.Follow(r, second(10+10*i), time.Time{}); err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Points {
			since := "?"
			if !p.Since.IsZero() {
				since = p.Since.Sub(second(0)).String()
			}
			got = append(got, fmt.Sprint(p.Metric.Name, " ", p.Value, " since ", since))
		}
	}
	want := []string{
		"inference.token.input 200 since 5s", "inference.token.output 100 since 5s", "inference.token.input 201 since 5s", "inference.token.output 101 since 5s",
		"inference.token.input 0 since 30s", "inference.token.output 102 since ?", "inference.token.input 1 since 30s", "inference.token.output 103 since ?",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches workers that come and go for months and are remembered, or whose tokens are forgotten.
func TestGrowthForgets(t *testing.T) {
	t.Parallel()
	g := &Growth{}
	var last *Point
	for i := range 3000 {
		page := fmt.Sprintf("ray_vllm_generation_tokens_total{WorkerId=\"%d\"} 1\n", i)
		r := Read(promtext.Scan([]byte(page)), "m")
		if err := g.Follow(r, second(i), time.Time{}); err != nil {
			t.Fatal(err)
		}
		last = &r.Points[0]
	}
	if last.Value != 2999 {
		t.Errorf("%v tokens of 3000 workers, the first of which was there already", last.Value)
	}
	if n := len(g.points[last.Key()].parts); n > forget+2 {
		t.Errorf("%d parts are remembered", n)
	}
}

// Catches tokens that count twice because the clock was set: a page tells when its process began by a clock, and the
// machine knows that it is the same process.
func TestProcessIsTheSame(t *testing.T) {
	t.Parallel()
	g := &Growth{Watched: second(0)}
	var got []string
	for i, start := range []int{5, 3605, 5, 5, 5, 8} {
		r := Read(promtext.Scan(fmt.Appendf(nil, "process_start_time_seconds %d\nvllm:generation_tokens_total %d\n", second(start).Unix(), 10+i)), "m")
		process := second(5)
		if i == 5 {
			process = second(8) // another process
		}
		err := g.Follow(r, second(10+10*i), process)
		got = append(got, fmt.Sprint(r.Points[0].Value, " ", err == nil))
	}
	if diff := cmp.Diff([]string{"10 true", "11 true", "12 false", "13 false", "0 true", "15 true"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches tokens that count twice because an engine that is listed is found anew some time after its restart.
func TestRestartIsFoundLate(t *testing.T) {
	t.Parallel()
	g := &Growth{Watched: second(0)}
	var got []float64
	for i, now := range []struct{ page, process, tokens int }{{5, 5, 100}, {15, 5, 3}, {15, 15, 5}, {15, 15, 6}} {
		r := Read(promtext.Scan(fmt.Appendf(nil, "process_start_time_seconds %d\nvllm:generation_tokens_total %d\n", second(now.page).Unix(), now.tokens)), "m")
		if err := g.Follow(r, second(10+10*i), second(now.process)); err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Points[0].Value)
	}
	if diff := cmp.Diff([]float64{100, 103, 105, 106}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a total that began after the reading that has it, when the clock was set back.
func TestClockIsSetBack(t *testing.T) {
	t.Parallel()
	g := &Growth{}
	read := func(page string, at int) *Reading {
		r := Read(promtext.Scan([]byte(page)), "m")
		if err := g.Follow(r, second(at), time.Time{}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	read("vllm:generation_tokens_total 1\n", 1000)
	r := read("vllm:generation_tokens_total 1\nvllm:num_preemptions_total 2\n", 10)
	for _, p := range r.Points {
		if p.Metric == preemptions && p.Since.After(second(10)) {
			t.Errorf("%s at second 10 since %v", p.Metric.Name, p.Since.Sub(second(0)))
		}
	}
}

// Catches a page with other labels in each reading that takes all memory in the end.
func TestGrowthIsBounded(t *testing.T) {
	t.Parallel()
	g := &Growth{}
	for i := range 6 {
		var b strings.Builder
		for j := range maxPoints {
			fmt.Fprintf(&b, "tgi_request_failure{err=\"%d-%d\"} 1\n", i, j)
		}
		for j := range maxParts {
			fmt.Fprintf(&b, "ray_vllm_generation_tokens_total{WorkerId=\"%d-%d\"} 1\n", i, j)
		}
		r := Read(promtext.Scan([]byte(b.String())), "m")
		rejected := r.Rejected
		if err := g.Follow(r, second(i), time.Time{}); err != nil {
			t.Fatal(err)
		}
		if i == 5 && (r.Rejected == rejected || len(r.Points) > 1) {
			t.Errorf("%d points beyond the limit were rejected, %d were not", r.Rejected-rejected, len(r.Points))
		}
	}
	parts := 0
	for _, total := range g.points {
		parts += len(total.parts)
	}
	if len(g.points) > maxTotals+maxPoints || parts > len(g.points)+2*maxParts {
		t.Errorf("%d totals with %d parts are remembered", len(g.points), parts)
	}
}

// Catches pages whose labels and workers are others in each reading: neither the totals nor the parts of each are too
// many, but their product is. What was counted stays counted.
func TestGrowthOfManyPartsOfManyTotals(t *testing.T) {
	t.Parallel()
	histogram := func(b *strings.Builder, labels string) {
		for bound := range maxBounds {
			fmt.Fprintf(b, "vllm:time_to_first_token_seconds_bucket{%s,le=\"%d\"} 1\n", labels, bound)
		}
		fmt.Fprintf(b, "vllm:time_to_first_token_seconds_bucket{%s,le=\"+Inf\"} 1\n", labels)
	}
	for name, of := range map[string]func(b *strings.Builder, reading, i int){
		"numbers": func(b *strings.Builder, reading, i int) {
			fmt.Fprintf(b, "vllm:request_success_total{finished_reason=\"%d\",WorkerId=\"%d\"} 1\n", i, reading)
		},
		"histograms": func(b *strings.Builder, reading, i int) {
			if i%100 == 0 {
				histogram(b, fmt.Sprintf("model_name=\"%d\",WorkerId=\"%d\"", i%1000, i*reading))
			}
		},
		"histograms of other models": func(b *strings.Builder, reading, i int) {
			if i%100 == 0 {
				histogram(b, fmt.Sprintf("model_name=\"%d-%d\"", i, reading))
			}
		},
	} {
		g := &Growth{}
		sum := 0.0
		for reading := range 40 {
			var b strings.Builder
			for i := range maxPoints {
				of(&b, reading, i)
			}
			b.WriteString("vllm:generation_tokens_total 1\n")
			r := Read(promtext.Scan([]byte(b.String())), "m")
			if err := g.Follow(r, second(reading), time.Time{}); err != nil {
				t.Fatal(err)
			}
			sum = 0
			for _, p := range r.Points {
				if sum += p.Value; p.Buckets != nil {
					sum += float64(p.Count)
				}
			}
			values := 0
			for _, total := range g.points {
				values += len(total.parts) * max(1, total.width)
			}
			if values != g.values || values > maxValues+2*maxPoints {
				t.Fatalf("%s: %d values are remembered after reading %d, %d are known", name, values, reading, g.values)
			}
		}
		if name == "numbers" && sum != 39*(maxPoints-1) {
			t.Errorf("%s: %v were counted", name, sum)
		}
	}
}

// Catches totals that fall, or fall below what there was when they began, whatever a page does from one reading to the
// next.
func FuzzFollow(f *testing.F) {
	const h = "vllm:time_to_first_token_seconds"
	f.Add("process_start_time_seconds 5\nvllm:generation_tokens_total 7\n", "vllm:generation_tokens_total 3\n", "process_start_time_seconds 9\nvllm:generation_tokens_total 1\n")
	f.Add(h+"_bucket{le=\"1\"} 1\n"+h+"_bucket{le=\"+Inf\"} 2\n"+h+"_sum NaN\n", h+"_bucket{le=\"+Inf\"} 2\n", h+"_bucket{le=\"1\"} 0\n"+h+"_bucket{le=\"+Inf\"} 0\n")
	f.Add("ray_vllm_generation_tokens_total{WorkerId=\"a\"} 5\n", "ray_vllm_generation_tokens_total{WorkerId=\"b\"} 5\n", "ray_vllm_generation_tokens_total{WorkerId=\"a\"} 4\n")
	f.Add("sglang:num_requests_total 10\nsglang:num_aborted_requests_total 2\n", "sglang:num_requests_total 9\nsglang:num_aborted_requests_total 5\n", "sglang:num_requests_total 1\n")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		g := &Growth{Watched: second(0)}
		before := map[string]Point{}
		for i, page := range []string{a, b, c, a, c, b, a} {
			if i == 4 {
				g.Relabel()
				clear(before)
			}
			r := Read(promtext.Scan([]byte(page)), "m")
			if g.Follow(r, second(10*i), time.Time{}) != nil {
				continue
			}
			for _, p := range r.Points {
				if p.Metric.Kind != Counter && p.Metric.Kind != Histogram {
					continue
				}
				key := p.Key() + p.Since.String()
				if p.Buckets != nil {
					key += fmt.Sprint(p.Bounds)
				}
				old, ok := before[key]
				before[key] = p
				switch {
				case !ok:
				case p.Buckets == nil && p.Value < old.Value:
					t.Errorf("reading %d: %s fell from %v to %v", i, key, old.Value, p.Value)
				case p.Buckets != nil && (p.Count < old.Count || p.below(old.Buckets)):
					t.Errorf("reading %d: %s fell from %v to %v", i, key, old.Counts, p.Counts)
				}
				if p.Since.After(second(10 * i)) {
					t.Errorf("reading %d: %s began at %v", i, key, p.Since)
				}
			}
		}
	})
}
