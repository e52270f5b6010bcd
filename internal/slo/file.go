package slo

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// File has the objectives of a fleet.
type File struct {
	Window  time.Duration // of error budgets
	Entries []Entry
}

// Entry has the objectives of the models and workloads that it matches.
type Entry struct {
	Model, Workload, Team, Namespace, Cluster string // patterns with * and ?; empty: any

	Objectives []Objective

	match []matcher
}

// matcher is a pattern for a label.
type matcher struct {
	label string
	glob  *regexp.Regexp
}

// Limits of a file.
const (
	defaultWindow = 30 * 24 * time.Hour
	minWindow     = 24 * time.Hour
	maxWindow     = 90 * 24 * time.Hour
	maxThreshold  = 24 * time.Hour
	maxEntries    = 10_000
	maxPattern    = 1000 // characters
)

var (
	fileKeys = []string{"window", "objectives"}
	// scopes are the keys of an entry that select what it is about, with their labels.
	scopes = []struct{ key, label string }{
		{"model", fleet.LabelServedModel}, {"workload", fleet.LabelWorkload}, {"team", fleet.LabelTeam}, {"namespace", fleet.LabelNamespace}, {"cluster", fleet.LabelCluster},
	}
	entryKeys = []string{"model", "workload", "team", "namespace", "cluster", string(FirstToken), string(PerToken), string(Duration), string(Errors), string(Availability)}

	decimalText = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)
	daysText    = regexp.MustCompile(`^[0-9]{1,4}d$`)
)

// Empty returns a file without objectives.
func Empty() *File { return &File{Window: defaultWindow} }

// Parse parses a file of objectives.
func Parse(text []byte) (*File, error) {
	f := Empty()
	root, ok, err := open(text)
	if err != nil {
		return nil, fmt.Errorf("cannot parse the objectives: %w", err)
	}
	if !ok {
		return f, nil
	}
	if err := root.mapping(fileKeys, f.read); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) read(key string, v value) (err error) {
	if key == "window" {
		f.Window, err = v.window()
		return err
	}
	list, err := v.list()
	if err != nil {
		return err
	}
	if len(list) > maxEntries {
		return v.fail("more than %d", maxEntries)
	}
	seen := map[[5]string]int{}
	for _, one := range list {
		e, err := one.entry()
		if err != nil {
			return err
		}
		about := [5]string{e.Model, e.Workload, e.Team, e.Namespace, e.Cluster}
		if line, ok := seen[about]; ok {
			return one.fail("the entry in line %d is about the same: the objectives of a model are in one entry", line)
		}
		seen[about] = one.node.Line
		f.Entries = append(f.Entries, e)
	}
	return nil
}

// entry reads one entry.
func (v value) entry() (Entry, error) {
	var e Entry
	err := v.mapping(entryKeys, func(key string, v value) error {
		for i, to := range []*string{&e.Model, &e.Workload, &e.Team, &e.Namespace, &e.Cluster} {
			if key == scopes[i].key {
				m, text, err := v.pattern(scopes[i].label)
				*to, e.match = text, append(e.match, m)
				return err
			}
		}
		list, err := v.objectives(Kind(key))
		e.Objectives = append(e.Objectives, list...)
		return err
	})
	switch {
	case err != nil:
		return e, err
	case e.Model == "":
		return e, v.fail(`a model is required, or a pattern such as "*"`)
	case len(e.Objectives) == 0:
		return e, v.fail("an objective is required: one of ttft, tpot, duration, errors, availability")
	}
	return e, nil
}

// pattern reads a pattern for a label.
func (v value) pattern(label string) (matcher, string, error) {
	text, err := v.text()
	if err != nil {
		return matcher{}, "", err
	}
	if len(text) > maxPattern {
		return matcher{}, "", v.fail("the pattern exceeds %d characters", maxPattern)
	}
	glob := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(text))
	return matcher{label, regexp.MustCompile(`^(?s:` + glob + `)$`)}, text, nil
}

// objectives reads the objectives of a kind.
func (v value) objectives(kind Kind) ([]Objective, error) {
	switch kind {
	case Errors:
		bad, err := v.percent()
		return []Objective{{Name: string(kind), Kind: kind, Target: part(100 - bad), Allowed: part(bad)}}, err
	case Availability:
		good, err := v.percent()
		return []Objective{{Name: string(kind), Kind: kind, Target: part(good), Allowed: part(100 - good)}}, err
	}
	var out []Objective
	err := v.mapping(nil, func(key string, v value) error {
		digits, ok := strings.CutPrefix(key, "p")
		percent, err := strconv.ParseFloat(digits, 64)
		if !ok || err != nil || !decimalText.MatchString(digits) || percent <= 0 || percent >= 100 {
			return v.fail("%.20q is no percentile such as p95 or p99.9", key)
		}
		limit, err := v.threshold()
		if err != nil {
			return err
		}
		o := Objective{Name: string(kind) + "_" + key, Kind: kind, Target: part(percent), Allowed: part(100 - percent), Threshold: limit}
		for _, other := range out {
			low, high := &other, &o
			if low.Target > high.Target {
				low, high = high, low
			}
			if low.Target == high.Target || low.Threshold > high.Threshold {
				return v.fail("contradicts %s: a higher percentile needs the longer time", other.Name)
			}
		}
		out = append(out, o)
		return nil
	})
	if err == nil && len(out) == 0 {
		err = v.fail("a percentile is required, such as {p95: 500ms}")
	}
	slices.SortFunc(out, func(a, b Objective) int { return cmp.Compare(a.Target, b.Target) })
	return out, err
}

// part converts percent. It rounds, because the error budget of 99.9 is 0.1.
func part(percent float64) float64 { return math.Round(percent*1e10) / 1e12 }

// percent reads a percentage above 0 and below 100. The sign is required: errors of 0.1 may mean 10 %.
func (v value) percent() (float64, error) {
	text, err := v.text()
	if err != nil {
		return 0, err
	}
	digits, ok := strings.CutSuffix(text, "%")
	digits = strings.TrimSpace(digits)
	p, err := strconv.ParseFloat(digits, 64)
	switch {
	case !ok || err != nil || !decimalText.MatchString(digits):
		return 0, v.fail("%.40q must be a percentage such as 0.1%%", text)
	case p <= 0 || p >= 100:
		return 0, v.fail("must be above 0%% and below 100%%, is %.40s: an objective needs an error budget", text)
	}
	return p, nil
}

// threshold reads the duration up to which a request is good.
func (v value) threshold() (time.Duration, error) {
	text, err := v.text()
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, v.fail("%.40q must be a duration such as 500ms or 30s", text)
	}
	if d < time.Microsecond || d > maxThreshold {
		return 0, v.fail("must be from 1µs to 24h, is %s", text)
	}
	return d, nil
}

// window reads the time over which error budgets count.
func (v value) window() (time.Duration, error) {
	text, err := v.text()
	if err != nil {
		return 0, err
	}
	if !daysText.MatchString(text) {
		return 0, v.fail("%.40q must be in days, such as 30d", text)
	}
	days, _ := strconv.Atoi(strings.TrimSuffix(text, "d")) // four digits at most
	d := time.Duration(days) * 24 * time.Hour
	if d < minWindow || d > maxWindow {
		return 0, v.fail("must be from 1d to 90d, is %s", text)
	}
	return d, nil
}

// Matches reports whether an entry is about the model of a workload with these labels.
func (e *Entry) Matches(model string, l query.Labels) bool {
	for _, m := range e.match {
		text := l[m.label]
		if m.label == fleet.LabelServedModel {
			text = model
		}
		if !m.glob.MatchString(text) {
			return false
		}
	}
	return true
}

// find returns the objectives of the model of a workload: those of the first entry that is about it.
func (f *File) find(model string, l query.Labels) []Objective {
	for i := range f.Entries {
		if f.Entries[i].Matches(model, l) {
			return f.Entries[i].Objectives
		}
	}
	return nil
}

// has reports whether an entry has an objective of a kind.
func (f *File) has(kind Kind) bool {
	return slices.ContainsFunc(f.Entries, func(e Entry) bool {
		return slices.ContainsFunc(e.Objectives, func(o Objective) bool { return o.Kind == kind })
	})
}
