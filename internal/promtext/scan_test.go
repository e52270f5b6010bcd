package promtext

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Catches real habits of other programs that cost more than one line: no line break at the end, a family
// that is declared twice, OpenMetrics, text without escapes, CRLF, and names that the old format did
// not allow.
func TestScan(t *testing.T) {
	t.Parallel()
	f := func(page string, want Text) {
		t.Helper()
		if want.Types == nil {
			want.Types = map[string]string{}
		}
		got := Scan([]byte(page))
		if diff := cmp.Diff(&want, got, cmpopts.IgnoreFields(Text{}, "Err"), cmpopts.EquateEmpty(), cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", page, diff)
		}
		if (got.Err != nil) != (got.Bad > 0) {
			t.Errorf("%q: %d bad lines, %v", page, got.Bad, got.Err)
		}
	}
	sample := func(name string, value float64, labels ...string) Sample {
		s := Sample{Name: name, Value: value}
		for i := 0; i < len(labels); i += 2 {
			s.Labels = append(s.Labels, Label{labels[i], labels[i+1]})
		}
		return s
	}
	f("", Text{})
	f("a 1", Text{Samples: []Sample{sample("a", 1)}})
	f("a 1\r\n\r\n  b\t2 1395066363000\n", Text{Samples: []Sample{sample("a", 1), sample("b", 2)}, Whole: true})
	f("# TYPE a counter\na 1\n# TYPE a gauge\n# HELP a x\na{x=\"y\"} 2\n", Text{
		Samples: []Sample{sample("a", 1), sample("a", 2, "x", "y")}, Types: map[string]string{"a": "counter"}, Whole: true,
	})
	f("# TYPE vllm:x Histogram\nvllm:x_bucket{le=\"+Inf\",} 3 # {trace_id=\"a b\"} 0.5 1.2\n# EOF\nafter 1\n", Text{
		Samples: []Sample{sample("vllm:x_bucket", 3, "le", "+Inf")}, Types: map[string]string{"vllm:x": "histogram"}, Whole: true,
	})
	f(`a{m="}, \"x\" {",n="C:\dir\n",k="ü" } NaN`, Text{Samples: []Sample{sample("a", math.NaN(), "m", `}, "x" {`, "n", "C:\\dir\n", "k", "ü")}})
	f("a{b = \"1\" , c=\"\"} -Inf\n{\"my metric\", \"my label\"=\"1\"} 2\nmy.metric-1{a.b=\"c\"} 1e400\n", Text{
		Samples: []Sample{sample("a", math.Inf(-1), "b", "1", "c", ""), sample("my metric", 2, "my label", "1"), sample("my.metric-1", math.Inf(1), "a.b", "c")}, Whole: true,
	})
	f("<html>\na{b=\"c} 1\na{b} 1\na{=\"c\"} 1\na{b=c} 1\na one\na\n{} 1\n{b=\"c\"} 1\n9a 1\ngood 1\na{b=\"\\", Text{Samples: []Sample{sample("good", 1)}, Bad: 11})
	f("a{b=\"\xff\"} 1\n", Text{Samples: []Sample{sample("a", 1, "b", "\uFFFD")}, Whole: true})
}

// Catches a real page that is not read to its last line.
func TestScanRealPages(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..", "shared", "fixtures")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the shared fixtures are absent:", err)
	}
	bad := map[string]int{ // no pages, and pages with such a line
		"triton_docs_histogram_summary_excerpt.txt": 1, "vllm_design_doc_excerpt.txt": 1, "vllm_v0.26.0_family_names_types.txt": 36,
		"slurm_26.05.5_real_index.txt": 6, "slurm_26.05.5_real_response_headers.txt": 3,
	}
	pages := 0
	for _, pattern := range []string{"inference/*/*.txt", "schedulers/*/*.txt", "schedulers/*/*/*.txt"} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range list {
			name := filepath.Base(path)
			if name == "SOURCE.txt" {
				continue
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			got := Scan(b)
			if got.Bad != bad[name] {
				t.Errorf("%s: %d lines were not read, want %d: %v", name, got.Bad, bad[name], got.Err)
			}
			lines := 0
			for line := range bytes.Lines(b) {
				if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
					lines++
				}
			}
			if len(got.Samples)+got.Bad != lines {
				t.Errorf("%s: %d samples of %d lines", name, len(got.Samples), lines)
			}
		}
	}
	if pages < 60 {
		t.Errorf("%d pages", pages)
	}
}

// Catches a page that ends the process, and one that takes more memory than a multiple of its size.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		"a{b=\"c\",d=\"\\\"\"} 1\n", "{\"a\"} 1 2\n", "# TYPE \"a b\" gauge\n# EOF", "a{b=\"\\", "a{,,,} 1", "a{b=\"c\"", "a 0x1p-2\n", "\xff{\xff=\"\xff\"} \xff\n", "#\n# TYPE\n# TYPE a\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, page string) {
		got := Scan([]byte(page))
		if lines := strings.Count(page, "\n") + 1; len(got.Samples)+got.Bad > lines || len(got.Types) > lines {
			t.Errorf("%d samples, %d types and %d bad lines in %d lines", len(got.Samples), len(got.Types), got.Bad, lines)
		}
		for _, s := range got.Samples {
			if s.Name == "" {
				t.Error("a sample without a name")
			}
			for _, l := range s.Labels {
				if l.Name == "" {
					t.Errorf("%s has a label without a name", s.Name)
				}
			}
		}
	})
}

// BenchmarkScan reads a page with the size of an engine's.
func BenchmarkScan(b *testing.B) {
	var page bytes.Buffer
	for page.Len() < 60<<10 {
		page.WriteString("vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.25\",model_name=\"meta-llama/Llama-3.1-70B-Instruct\"} 17807.0\n")
	}
	b.SetBytes(int64(page.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if Scan(page.Bytes()).Bad > 0 {
			b.Fatal("a line was not read")
		}
	}
}
