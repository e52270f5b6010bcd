package promtext

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// Catches a page that ends the process, a page that is cut off and read as whole, and values
// that are lost or invented.
func TestParse(t *testing.T) {
	f := func(text string, want Page, wantErr string) {
		t.Helper()
		got, err := Parse(strings.NewReader(text), 200)
		if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("%q: error %v, want %q", text, err, wantErr)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	f("", Page{}, "")
	f("# TYPE c_total counter\nc_total{b=\"1\",a=\"2\"} 7\n# TYPE g gauge\ng -1.5\nu +Inf\n", Page{
		"c_total": {{Labels: []Label{{"b", "1"}, {"a", "2"}}, Value: 7}}, "g": {{Value: -1.5}}, "u": {{Value: math.Inf(1)}},
	}, "")
	f("# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_sum 3\nh_count 2\n# TYPE s summary\ns{quantile=\"0.5\"} 1\ns_sum 1\ns_count 1\ng 1\n", Page{"g": {{Value: 1}}}, "")
	f("{a=\"b\"} 1\n", nil, "line 1 has no metric name")
	f("g 1\n \t{} 2\n", nil, "line 2 has no metric name") // would set g to 2
	f("g{a=\"\n{\"} 2\n", nil, "line 1 has malformed labels")
	f("g 12", nil, "unexpected end")
	f("g one\n", nil, "line 1 has no number for a value")
	f("<html>not found</html>\n", nil, "line 1 has no metric name")
	f("g 1\n"+strings.Repeat("# a comment\n", 20), nil, "more than 200 bytes")
	f(strings.Repeat("x", 198)+" 1", nil, "unexpected end")
	f(strings.Repeat("x", 198)+" 12\n", nil, "more than 200 bytes")
	if _, err := Parse(iotest.ErrReader(errors.New("connection reset")), 200); err == nil || err.Error() != "connection reset" {
		t.Errorf("a broken connection: %v", err)
	}
	s := Series{Labels: []Label{{"a", "1"}}}
	if s.Get("a") != "1" || s.Get("b") != "" {
		t.Errorf("labels of %+v", s)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"{a=\"b\"} 1\n", "{} 1\n", "{\"a\",b=\"c\"} 1\n", "{\"a\"} 1 2\n", "# TYPE h histogram\nh_bucket{le=\"x\"} 2\n", "# TYPE\n# HELP a\n", "a{b=\"\\n\"} NaN\n",
		"# TYPE s summary\ns{quantile=\"x\"} 1\n", "a{__name__=\"b\"} 1\n", "# TYPE a gauge\na 1\n# TYPE a counter\na 2\n", "# HELP a \\\\x\na{} -Inf 1\n{b=",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		page, err := Parse(strings.NewReader(text), 1<<16)
		if (page == nil) != (err != nil) {
			t.Fatalf("page %v, error %v", page, err)
		}
		series := 0
		for name, list := range page {
			series += len(list)
			if name == "" || len(list) == 0 {
				t.Errorf("%d series of %q", len(list), name)
			}
		}
		if lines := strings.Count(text, "\n"); series > lines {
			t.Errorf("%d series in %d lines", series, lines)
		}
	})
}
