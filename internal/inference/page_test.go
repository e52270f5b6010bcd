package inference

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Catches a histogram that no store takes, or whose unknown sum is shown as zero.
func TestStrangeHistograms(t *testing.T) {
	t.Parallel()
	const name = "vllm:time_to_first_token_seconds"
	page := func(bound, sum string) string {
		if sum != "" {
			sum = name + "_sum " + sum + "\n"
		}
		return fmt.Sprintf("%s_bucket{le=\"%s\"} 1\n%s_bucket{le=\"1\"} 2\n%s_bucket{le=\"+Inf\"} 3\n%s%s_count 3\n", name, bound, name, name, sum, name)
	}
	whole := func(sum string) []string {
		return []string{"gen_ai.server.time_to_first_token{name=vllm model=m} count 3 sum " + sum + " bounds 2 0.5 to 1", "rejected 0"}
	}
	for _, tt := range []struct {
		name, page string
		want       []string
	}{
		{"whole", page("0.5", "4"), whole("4")},
		{"without a sum", page("0.5", ""), whole("NaN")},
		{"a sum that is no number", page("0.5", "NaN"), whole("NaN")},
		{"an infinite sum", page("0.5", "+Inf"), whole("NaN")},
		{"a bound that is no number", page("NaN", "4"), []string{"rejected 5"}},
		{"a bound below all numbers", page("-Inf", "4"), []string{"rejected 5"}},
		{"a bound twice", page("1.0", "4"), []string{"rejected 5"}},
		{"a count that is not that of the buckets", strings.ReplaceAll(page("0.5", "4"), "_count 3", "_count 4"), []string{"rejected 5"}},
		{"a count that is no number", strings.ReplaceAll(page("0.5", "4"), "} 2", "} NaN"), []string{"rejected 5"}},
		{"buckets without the name of a bucket", strings.ReplaceAll(page("0.5", "4"), "_bucket", ""), []string{"rejected 3"}},
		{"tokens of a histogram without a sum", "tgi_request_input_length_bucket{le=\"+Inf\"} 3\n", []string{
			"inference.request.token{name=tgi model=m type=input} count 3 sum NaN bounds 0", "rejected 1",
		}},
	} {
		r := Read(promtext.Scan([]byte(tt.page)), "m")
		if diff := cmp.Diff(tt.want, append(lines(r), fmt.Sprint("rejected ", r.Rejected))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Catches a histogram with a thousand buckets, or one that loses values with them.
func TestThin(t *testing.T) {
	t.Parallel()
	b := &Buckets{Count: 1025, Sum: 1}
	for i := range 1024 {
		b.Bounds, b.Counts = append(b.Bounds, float64(i+1)), append(b.Counts, 1)
	}
	b.Counts = append(b.Counts, 1)
	want := &Buckets{Bounds: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}, Counts: []uint64{1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1}, Count: 1025, Sum: 1}
	if diff := cmp.Diff(want, b.thin()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, bound := range map[string]func(i int) float64{
		"no power of two":           func(i int) float64 { return float64(3 * (i + 1)) },
		"few":                       func(i int) float64 { return 100 + float64(i)/10 },
		"nothing but powers of two": func(i int) float64 { return math.Ldexp(1, i-500) },
	} {
		for i := range b.Bounds {
			b.Bounds[i] = bound(i)
		}
		got := b.thin()
		if n := len(got.Bounds); n < maxBounds/2 || n > maxBounds || got.Bounds[n-1] != b.Bounds[1023] || len(got.Counts) != n+1 || got.Counts[n-1] != 8 || got.Counts[n] != 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Catches a histogram that counts as rejected once for each metric that is made of it.
func TestRejectedOnce(t *testing.T) {
	t.Parallel()
	r := Read(promtext.Scan([]byte("tgi_request_input_length_bucket{le=\"1\"} 1\ntgi_request_input_length_sum 1\ntgi_request_input_length_count 1\n")), "")
	if r.Rejected != 3 || len(r.Points) > 0 {
		t.Errorf("%d samples are rejected, points %v", r.Rejected, lines(r))
	}
}
