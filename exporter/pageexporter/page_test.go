package pageexporter

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

var update = flag.Bool("update", false, "rewrite the golden pages in testdata")

// fixture is a batch of every kind of metric, two resources and two scopes.
func fixture(t testing.TB) pmetric.Metrics {
	t.Helper()
	data, err := os.ReadFile("testdata/batch.json")
	if err != nil {
		t.Fatal(err)
	}
	md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(data)
	if err != nil {
		t.Fatal(err)
	}
	return md
}

func defaultLabels() []string { return createDefaultConfig().(*Config).ResourceLabels }

func render(t testing.TB, md pmetric.Metrics, openMetrics bool) string {
	t.Helper()
	var b bytes.Buffer
	if err := Render(&b, md, defaultLabels(), openMetrics); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// golden compares a whole page with a file, or rewrites the file with -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// Any visible change of a name, a label, an order, an escape or a number shows up here.
func TestGoldenPages(t *testing.T) {
	golden(t, "testdata/page.txt", render(t, fixture(t), false))
	golden(t, "testdata/page.openmetrics", render(t, fixture(t), true))
}

// The page must be valid for Prometheus' own tools too.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if strings.Contains(os.Getenv("GPUMETER_REQUIRE"), "promtool") {
			t.Fatal("GPUMETER_REQUIRE asks for promtool, which is not installed")
		}
		t.Skip("promtool is not installed")
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(render(t, fixture(t), false))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

const textFormat = expfmt.TypeTextPlain

// Conflicts: the first by resource and scope is shown regardless of arrival, the other is
// counted, and nothing else is lost.
func TestConflicts(t *testing.T) {
	f := func(want string, fill ...func(md pmetric.Metrics)) {
		t.Helper()
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			md := pmetric.NewMetrics()
			for _, i := range order {
				fill[i](md)
			}
			if diff := cmp.Diff(want, shown(render(t, md, false))); diff != "" {
				t.Errorf("order %v (-want +got):\n%s", order, diff)
			}
		}
	}
	gauge := func(host, scopeName, name string, v float64) func(pmetric.Metrics) {
		return func(md pmetric.Metrics) { addGauge(scope(md, host, scopeName), name, v) }
	}

	// The same series from two scopes.
	f(`# TYPE x gauge
x{host_name="h"} 1
gpumeter_page_dropped_total{reason="series_conflict"} 1
`, gauge("h", "a", "x", 1), gauge("h", "b", "x", 2))

	// Two resources that differ only in attributes that are not labels.
	other := func(id string, v float64) func(pmetric.Metrics) {
		return func(md pmetric.Metrics) {
			addGauge(scope(md, "h", "s"), "x", v)
			md.ResourceMetrics().At(md.ResourceMetrics().Len()-1).Resource().Attributes().PutStr("service.instance.id", id)
		}
	}
	f(`# TYPE x gauge
x{host_name="h"} 1
gpumeter_page_dropped_total{reason="series_conflict"} 1
`, other("1", 1), other("2", 2))

	// One name, two types.
	f(`# TYPE x_total gauge
x_total{host_name="h"} 1
gpumeter_page_dropped_total{reason="name_conflict"} 1
`, gauge("h", "a", "x.total", 1), func(md pmetric.Metrics) { addSum(scope(md, "h", "b"), "x", 2) })

	// A gauge with the name of a histogram's line, and vice versa.
	f(`# TYPE x_count gauge
x_count{host_name="h"} 1
gpumeter_page_dropped_total{reason="name_conflict"} 1
`, gauge("h", "a", "x.count", 1), func(md pmetric.Metrics) { addHistogram(scope(md, "h", "b"), "x") })
	f(`# TYPE x summary
x{host_name="h",quantile="0.5"} 1
x_sum{host_name="h"} 3
x_count{host_name="h"} 2
gpumeter_page_dropped_total{reason="name_conflict"} 1
`, func(md pmetric.Metrics) { addSummary(scope(md, "h", "a"), "x") }, gauge("h", "b", "x.sum", 2))

	// In OpenMetrics the counter x_total is called x.
	f(`# TYPE x_total counter
x_total{host_name="h"} 1
gpumeter_page_dropped_total{reason="name_conflict"} 1
`, func(md pmetric.Metrics) { addSum(scope(md, "h", "a"), "x", 1) }, gauge("h", "b", "x", 2))

	// Our own name.
	f(`# TYPE x gauge
x{host_name="h"} 1
gpumeter_page_dropped_total{reason="name_conflict"} 1
`, gauge("h", "a", "x", 1), func(md pmetric.Metrics) { addSum(scope(md, "h", "b"), "gpumeter.page.dropped", 2) })

	// Two descriptions: both series stay.
	described := func(host, help string, v float64) func(pmetric.Metrics) {
		return func(md pmetric.Metrics) {
			ms := scope(md, host, "s")
			addGauge(ms, "x", v)
			ms.At(0).SetDescription(help)
		}
	}
	f(`# HELP x one
# TYPE x gauge
x{host_name="a"} 1
x{host_name="b"} 2
gpumeter_page_dropped_total{reason="help_conflict"} 1
`, described("a", "one", 1), described("b", "two", 2))

	// No conflict: one resource and scope in two parts of one call.
	f(`# TYPE x gauge
x{host_name="h"} 1
# TYPE y gauge
y{host_name="h"} 2
`, gauge("h", "s", "x", 1), gauge("h", "s", "y", 2))
}
