package fleet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/otlptranslator"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/query"
)

// names returns the constants whose name begins with prefix, by their value: those of names.go, and of the package queue.
func names(t *testing.T, prefix string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, file := range []string{"names.go", "queue/names.go"} {
		collect(t, file, prefix, out)
	}
	return out
}

func collect(t *testing.T, file, prefix string, out map[string]string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		out[value] = strings.TrimPrefix(filepath.Dir(file)+"."+spec.Names[0].Name, "..")
		return true
	})
}

// ours are the series that the hub writes itself.
var ours = []string{SeriesQuotaUsed, SeriesQuotaLimit, SeriesFinding, SeriesBurnRate, SeriesBudgetLeft, SeriesObjective, SeriesThreshold}

// Catches a series that is queried but that no agent exports by default: a metric that was
// renamed, changed its unit or was disabled.
func TestSeriesAreExported(t *testing.T) {
	exported, histogram := map[string]bool{}, map[string]bool{}
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	files, err := filepath.Glob("../../receiver/*/metadata.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no metadata.yaml", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Metrics map[string]struct {
				Enabled bool
				Unit    string
				Sum     *struct{ Monotonic bool }
			}
		}
		if err := yaml.Unmarshal(text, &m); err != nil {
			t.Fatal(file, err)
		}
		for name, metric := range m.Metrics {
			var kind otlptranslator.MetricType = otlptranslator.MetricTypeGauge
			if metric.Sum != nil && metric.Sum.Monotonic {
				kind = otlptranslator.MetricTypeMonotonicCounter
			}
			prom, err := namer.Build(otlptranslator.Metric{Name: name, Unit: metric.Unit, Type: kind})
			if err != nil {
				t.Fatal(name, err)
			}
			exported[prom] = exported[prom] || metric.Enabled
		}
	}
	vocabulary(t, func(name, unit, kind string) {
		prom, err := namer.Build(otlptranslator.Metric{Name: name, Unit: unit, Type: map[string]otlptranslator.MetricType{
			"Counter": otlptranslator.MetricTypeMonotonicCounter, "UpDown": otlptranslator.MetricTypeNonMonotonicCounter,
			"Gauge": otlptranslator.MetricTypeGauge, "Histogram": otlptranslator.MetricTypeHistogram,
		}[kind]})
		if err != nil {
			t.Fatal(name, err)
		}
		exported[prom], histogram[prom] = true, kind == "Histogram"
	})
	// mdatagen knows no histograms: those of schedulers are named in the receiver.
	for _, file := range []string{"words.go", "node.go"} {
		text, err := os.ReadFile("../../receiver/schedulerreceiver/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(scheduler[a-z._]*\.duration)"`).FindAllStringSubmatch(string(text), -1) {
			histogram[strings.ReplaceAll(m[1], ".", "_")+"_seconds"] = true
		}
	}
	for name, constant := range names(t, "Histogram") {
		if !histogram[name] {
			t.Errorf("%s: no receiver has a histogram that becomes %s", constant, name)
		}
	}
	for series, constant := range names(t, "Series") {
		if histogram[series] {
			t.Errorf("%s: %s is a histogram, which has no series of its own name", constant, series)
		}
		if enabled, known := exported[series]; !slices.Contains(ours, series) && !enabled {
			t.Errorf("%s: no receiver exports %s by default (known: %v)", constant, series, known)
		}
	}
}

// vocabulary calls each for the metrics of inference engines, which are in no metadata.yaml.
func vocabulary(t *testing.T, each func(name, unit, kind string)) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../inference/vocabulary.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	text := func(e ast.Expr) string {
		s, err := strconv.Unquote(e.(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ast.Inspect(f, func(node ast.Node) bool {
		lit, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if name, ok := lit.Type.(*ast.Ident); ok && name.Name == "Metric" {
			n++
			each(text(lit.Elts[0]), text(lit.Elts[1]), lit.Elts[2].(*ast.Ident).Name)
		}
		return true
	})
	if n < 40 {
		t.Fatalf("the vocabulary has %d metrics", n)
	}
}

// Catches a label that is queried but that no series has.
func TestLabelsAreExported(t *testing.T) {
	var all strings.Builder
	for _, pattern := range []string{"../../receiver/*/metadata.yaml", "../../receiver/gpureceiver/*.go", "../[^f]*/*.go", "../workload/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	for label, constant := range names(t, "Label") {
		if label == LabelName || label == LabelRack { // set by the operator
			continue
		}
		if label == LabelObjective || label == LabelBurnWindow || label == LabelBurnSeverity { // set by the hub
			continue
		}
		// Attributes use dots.
		attribute := regexp.MustCompile(`\b` + strings.ReplaceAll(regexp.QuoteMeta(label), "_", "[._]") + `\b`)
		if !attribute.MatchString(all.String()) {
			t.Errorf("%s: nothing sets the attribute of %s", constant, label)
		}
	}
}

// Catches a package of the reading side that spells the name of a series or label itself: renaming
// a metric would miss it, and one question would have two answers. Receivers name attributes, and
// metadata.yaml is their source.
func TestNamesAreSpelledHereOnly(t *testing.T) {
	known := names(t, "Series")
	for name, constant := range names(t, "Histogram") {
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			known[name+suffix] = constant
		}
	}
	for label, constant := range names(t, "Label") {
		if strings.Contains(label, "_") && label != LabelName {
			known[label] = constant
		}
	}
	words := regexp.MustCompile(`[a-z0-9]+(?:_[a-z0-9]+)+`)
	root := "../.."
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, file)
		if d.IsDir() {
			skip := rel != "." && strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"testdata", "node_modules", "bench", "e2e", "tools"}, d.Name()) || slices.Contains([]string{"internal/fleet", "receiver"}, rel)
			if skip {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		tokens := token.NewFileSet()
		f, err := parser.ParseFile(tokens, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		tags := map[*ast.BasicLit]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				if n.Tag != nil {
					tags[n.Tag] = true // keys of a file or a response
				}
			case *ast.BasicLit:
				if n.Kind != token.STRING || tags[n] || spells[rel] {
					return true
				}
				for _, word := range words.FindAllString(n.Value, -1) {
					if constant, ok := known[word]; ok {
						t.Errorf("%s: %s is %s of internal/fleet", tokens.Position(n.Pos()), word, constant)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// spells are the files that may spell names because they are not about series in a store.
var spells = map[string]bool{
	"processor/workloadprocessor/config.go": true, // attributes of arbitrary other exporters
	"internal/agent/config.go":              true, // keys of a Collector's configuration
	"internal/hub/rules/watch.go":           true, // attributes, some spelled like labels
	"processor/reservedprocessor/names.go":  true, // what an agent reserves, before it is in a store
}

// Catches jobs in no queue because their agent is older than the label.
func TestQueueOf(t *testing.T) {
	f := func(l query.Labels, want string) {
		t.Helper()
		if got := QueueOf(l); got != want {
			t.Errorf("%v: queue %q, want %q", l, got, want)
		}
	}
	f(query.Labels{LabelWorkloadQueue: "gold"}, "gold")
	f(query.Labels{LabelSlurmPartition: "gpu"}, "gpu")
	f(query.Labels{LabelWorkloadQueue: "gpu", LabelSlurmPartition: "gpu"}, "gpu")
	f(query.Labels{LabelNamespace: "ml"}, "")
}
