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

// Catches rules that Prometheus refuses, or that differ from what the hub computes, one for a model that an
// earlier entry is about, also of an engine that has no output or that has ended, a rate of errors that counts only replicas that failed,
// and rules whose values are gone before the next evaluation.
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
	// Three replicas. One of them failed, and two never did; SGLang does not count failures.
	for _, id := range []string{"r1", "r2", "r3", "r4"} {
		l := engine(id, "bert", "embed", fleet.LabelProvider, map[string]string{"r4": "sglang"}[id])
		if id != "r4" {
			l[fleet.LabelProvider] = "tei"
		}
		w.put(fleet.SeriesFinished, l, true, constant(58), fleet.LabelOutcome, "success")
		if id == "r1" {
			w.put(fleet.SeriesFinished, l, true, constant(6), fleet.LabelOutcome, "error")
		}
	}
	ended := engine("e", "bert", "ended")
	for outcome, n := range map[string]float64{"success": 9, "error": 1} {
		w.put(fleet.SeriesFinished, ended, true, func(ago time.Duration) (float64, bool) { return n, ago > 20*time.Minute }, fleet.LabelOutcome, outcome)
	}
	w.write(7 * time.Hour)
	file, err := Parse([]byte(`objectives:
  - {model: llama, workload: "ch?t", ttft: {p95: 500ms}, errors: 1%, availability: 99%}
  - {model: bert, errors: 2%}
  - {model: mistral, errors: 1%}
  - {model: "*", ttft: {p95: 450ms}, errors: 50%}
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
		if lookback := 5 * time.Minute; time.Duration(g.Interval) > lookback/2 {
			t.Errorf("%s: every %s, and a query sees a value for %s", g.Name, g.Interval, lookback)
		}
		for _, r := range g.Rules {
			list, err := w.store.Instant(t.Context(), r.Expr, noon)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range list {
				name := r.Record + " " + x.Labels[fleet.LabelWorkload] + " " + r.Labels[fleet.LabelObjective] + " " + r.Labels[fleet.LabelBurnWindow]
				if got[name] != "" {
					t.Errorf("two rules write %s", name)
				}
				got[name] = fmt.Sprintf("%.6f", x.Value)
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
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 29 || want[fleet.SeriesBurnRate+" embed errors 1h"] != "1.666667" { // 6 of 180
		t.Errorf("burn rates (-hub +rules):\n%s\n%s", diff, text)
	}
}
