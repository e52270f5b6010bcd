package slo

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// RecordingRules returns the burn rates of a file as recording rules for Prometheus 3.4 or later, which has histogram_fraction
// for histograms with bounds. Engines of one workload need the same bounds there: unlike the hub, a rule adds up the
// buckets before it interpolates. Availability is left out, because it needs the history of the workload.
func (f *File) RecordingRules() ([]byte, error) {
	type rule struct {
		Record string            `yaml:"record"`
		Labels map[string]string `yaml:"labels"`
		Expr   string            `yaml:"expr"`
	}
	type group struct {
		Name     string `yaml:"name"`
		Interval string `yaml:"interval"`
		Rules    []rule `yaml:"rules"`
	}
	var file struct {
		Groups []group `yaml:"groups"`
	}
	for w, name := range windowNames {
		g := group{Name: "gpumeter_objectives_" + name, Interval: "1m"}
		if Windows[w] >= Windows[sixHours] {
			g.Interval = "2m" // queries see a value for five minutes
		}
		for i := range f.Entries {
			for _, o := range f.Entries[i].Objectives {
				if expr := f.expr(i, &o, name); expr != "" {
					g.Rules = append(g.Rules, rule{
						fleet.SeriesBurnRate, map[string]string{fleet.LabelObjective: o.Name, fleet.LabelBurnWindow: name}, expr,
					})
				}
			}
		}
		if len(g.Rules) > 0 {
			file.Groups = append(file.Groups, g)
		}
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(file); err != nil {
		return nil, fmt.Errorf("cannot write the rules: %w", err)
	}
	return out.Bytes(), e.Close()
}

// expr returns the burn rate of an objective of an entry, empty if no rule can have it.
func (f *File) expr(entry int, o *Objective, window string) string {
	e := &f.Entries[entry]
	rate := func(series string, more ...string) string {
		return fleet.Once(fleet.Over("rate", fleet.Select(series, nil, append(more, e.matchers()...)...), window))
	}
	var bad, series string
	switch o.Kind {
	case Availability:
		return ""
	case Errors:
		series = fleet.SeriesFinished
		match := func(outcomes ...string) string { return fleet.LabelOutcome + `=~"` + strings.Join(outcomes, "|") + `"` }
		failed, all := rate(series, match(fleet.OutcomeError)), rate(series, match(fleet.OutcomeSuccess, fleet.OutcomeError))
		// Replicas are alike: if one of them counts failures, the others had none.
		replicas := "sum by (" + rowLabels + ", " + fleet.LabelProvider + ") "
		bad = "sum by (" + rowLabels + ") " + failed + " / sum by (" + rowLabels + ") (" + replicas + all + " and " + replicas + failed + ")"
	default:
		series = fleet.Buckets(histograms[o.Kind])
		bad = "1 - histogram_fraction(0, " + decimals(o.Threshold.Seconds()) + ", sum by (" + rowLabels + ", " + fleet.LabelBucket + ") " + rate(series) + ")"
	}
	expr := "(" + bad + ") / " + decimals(o.Allowed)
	for i := range f.Entries[:entry] { // the first entry that matches counts
		if earlier := &f.Entries[i]; earlier.overlaps(e) {
			own := fleet.Over("last_over_time", fleet.Select(series, nil, earlier.matchers()...), window)
			expr += " unless on (" + rowLabels + ") group by (" + rowLabels + ") (" + own + ")"
		}
	}
	return expr
}

// decimals returns a number as PromQL has it.
func decimals(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// patterns returns the patterns of an entry in the order of scopes.
func (e *Entry) patterns() []string {
	return []string{e.Model, e.Workload, e.Team, e.Namespace, e.Cluster}
}

// matchers select the series that an entry is about.
func (e *Entry) matchers() []string {
	out := []string{fleet.OfEngines, fleet.LabelServedModel + `!=""`}
	for i, p := range e.patterns() {
		switch {
		case p == "" || p == "*":
		case strings.ContainsAny(p, "*?"):
			glob := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(p))
			out = append(out, scopes[i].label+"=~"+strconv.Quote(glob))
		default:
			out = append(out, fleet.Equals(scopes[i].label, p))
		}
	}
	return out
}

// overlaps reports whether two entries may be about the same. Two names that differ cannot.
func (e *Entry) overlaps(o *Entry) bool {
	other := o.patterns()
	for i, p := range e.patterns() {
		q := other[i]
		if p != "" && q != "" && p != q && !strings.ContainsAny(p+q, "*?") {
			return false
		}
	}
	return true
}
