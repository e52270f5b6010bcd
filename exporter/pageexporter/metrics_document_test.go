package pageexporter

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/inference"
)

// receiverMetadata is what the page needs of a metadata.yaml.
type receiverMetadata struct {
	Display string            `yaml:"display_name"`
	Metrics map[string]metric `yaml:"metrics"`
}

type metric struct {
	Enabled     bool   `yaml:"enabled"`
	Description string `yaml:"description"`
	Extended    string `yaml:"extended_documentation"`
	Unit        string `yaml:"unit"`
	Sum         *struct {
		Monotonic bool `yaml:"monotonic"`
	}
}

// data returns the metric as the Collector has it.
func (m *metric) data(name string) pmetric.Metric {
	out := pmetric.NewMetric()
	out.SetName(name)
	out.SetUnit(m.Unit)
	switch {
	case strings.HasPrefix(m.Extended, "Sent as a histogram"): // mdatagen has no histograms
		out.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	case m.Sum != nil:
		out.SetEmptySum().SetIsMonotonic(m.Sum.Monotonic)
		out.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	default:
		out.SetEmptyGauge()
	}
	return out
}

// vocabulary returns a metric of an inference engine as the Collector has it.
func vocabulary(m *inference.Metric) pmetric.Metric {
	out := pmetric.NewMetric()
	out.SetName(m.Name)
	out.SetUnit(m.Unit)
	const cumulative = pmetric.AggregationTemporalityCumulative
	switch m.Kind {
	case inference.Histogram:
		out.SetEmptyHistogram().SetAggregationTemporality(cumulative)
	case inference.Gauge:
		out.SetEmptyGauge()
	default:
		out.SetEmptySum().SetIsMonotonic(m.Kind == inference.Counter)
		out.Sum().SetAggregationTemporality(cumulative)
	}
	return out
}

// Catches a page of metrics that lacks one, or that has a name Prometheus does not show.
func TestMetricsDocument(t *testing.T) {
	files, err := filepath.Glob("../../receiver/*/metadata.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.WriteString("[comment]: <> (Written by go test -update from receiver/*/metadata.yaml. Do not edit.)\n\n# Metrics\n\n" +
		"Every metric by both of its names: the OpenTelemetry name is in OTLP and in configurations, the Prometheus name on the agent's page, in the hub and in PromQL. " +
		"Attributes become labels with `_` in place of `.`. A metric that is off is enabled with `metrics: {NAME: {enabled: true}}` of its receiver. " +
		"The histograms of job times are in the [scheduler receiver](../receiver/schedulerreceiver/README.md#histograms), " +
		"the metrics of the agent about itself in [operations](operations.md#watching-the-agent-itself).\n")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var meta receiverMetadata
		if err := yaml.Unmarshal(text, &meta); err != nil {
			t.Fatal(err)
		}
		if len(meta.Metrics) == 0 { // mdatagen has no histograms
			fmt.Fprintf(&b, "\n## %s\n\n[Which engine has what](engines.md), and [what it means](inference.md).\n\n| OpenTelemetry | Prometheus | unit | type | what |\n|---|---|---|---|---|\n", meta.Display)
			for _, m := range inference.Metrics() {
				data := vocabulary(m)
				prometheus, err := prometheusName(data)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", m.Name, prometheus, m.Unit, strings.ToLower(kindOf(data).prometheus.String()), m.Description)
			}
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n[Attributes](../%s) of each metric.\n\n| OpenTelemetry | Prometheus | unit | type | default | what |\n|---|---|---|---|---|---|\n",
			meta.Display, strings.TrimPrefix(filepath.Join(filepath.Dir(file), "documentation.md"), "../../"))
		for _, name := range slices.Sorted(maps.Keys(meta.Metrics)) {
			m := meta.Metrics[name]
			data := m.data(name)
			prometheus, err := prometheusName(data)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s |\n", name, prometheus, m.Unit, strings.ToLower(kindOf(data).prometheus.String()),
				map[bool]string{true: "on", false: "off"}[m.Enabled], strings.ReplaceAll(m.Description, "|", "\\|"))
		}
	}
	const path = "../../docs/metrics.md"
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, b.Bytes()) {
		t.Errorf("docs/metrics.md is out of date, rewrite it with make generate (%v)", err)
	}
}

var (
	reDocumented = regexp.MustCompile(`\| \x60([a-z0-9_]+)\x60 \|`)
	reMentioned  = regexp.MustCompile(`\b(?:gen_ai|gpu|inference|nccl|slurm|system)_[a-z0-9_]+_(?:amperes|bytes|celsius|hertz|joules|ratio|seconds|total|volts|watts)(?:_bucket|_count|_sum)?\b`)
	rePart       = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// jobTimes are the histograms that metadata.yaml does not have.
var jobTimes = []string{"slurm_job_run_duration_seconds", "slurm_job_suspended_duration_seconds", "slurm_job_wait_duration_seconds"}

// Catches documentation of a Prometheus name that no agent exports, such as one without its unit.
func TestDocumentedNamesExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range jobTimes {
		known[name] = true
	}
	for _, m := range reDocumented.FindAllSubmatch(page, -1) {
		known[string(m[1])] = true
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range reMentioned.FindAllString(string(text), -1) {
			if !known[name] && !known[rePart.ReplaceAllString(name, "")] {
				t.Errorf("%s: no metric is named %s", file, name)
			}
		}
	}
}
