package slo

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// Catches rules that Prometheus refuses, or that differ from what the hub computes, and one for a model that an
// earlier entry is about.
func TestRecordingRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, part := range map[string]float64{"chat": 0.7, "other": 0.1} {
		l := engine(name, "llama", name)
		w.requests(fleet.HistogramFirstToken, l, 60, always, func(time.Duration) map[string]float64 {
			return map[string]float64{"0.4": part, "0.6": part + 0.1, "+Inf": 1}
		})
		w.put(fleet.SeriesFinished, l, true, constant(59), fleet.LabelOutcome, "success")
		w.put(fleet.SeriesFinished, l, true, constant(1), fleet.LabelOutcome, "error")
		w.put(fleet.SeriesFinished, l, true, constant(9), fleet.LabelOutcome, "abort")
		w.put(fleet.SeriesTokensOut, l, true, constant(9))
	}
	w.write(7 * time.Hour)
	file, err := Parse([]byte(`objectives:
  - {model: llama, workload: "ch?t", ttft: {p95: 500ms}, errors: 1%, availability: 99%}
  - {model: mistral, errors: 1%}
  - {model: "*", ttft: {p95: 450ms}}
`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := file.RecordingRules()
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), nil)
	if len(errs) > 0 {
		t.Fatalf("%v\n%s", errs, text)
	}
	got, want := map[string]string{}, map[string]string{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			list, err := w.store.Instant(t.Context(), r.Expr, noon)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range list {
				got[r.Record+" "+x.Labels[fleet.LabelWorkload]+" "+r.Labels[fleet.LabelObjective]+" "+r.Labels[fleet.LabelBurnWindow]] = fmt.Sprintf("%.6f", x.Value)
			}
		}
	}
	report, err := NewJudge(file).Look(t.Context(), w.store, noon)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range report.Rows {
		for _, x := range row.Results {
			for i, burn := range x.Burn {
				if v, ok := burn.Get(); ok {
					want[fleet.SeriesBurnRate+" "+row.Owner.Name+" "+x.Name+" "+WindowName(i)] = fmt.Sprintf("%.6f", v)
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 15 {
		t.Errorf("burn rates (-hub +rules):\n%s\n%s", diff, text)
	}
}
