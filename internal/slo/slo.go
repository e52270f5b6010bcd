// Package slo judges inference by objectives: how much of the error budget of a model is left, how fast
// it burns, how many requests met every objective, and which resource is the limit while they do not.
//
// An objective holds for a model of a workload, the unit in which engines are shown and billed. All numbers
// come from PromQL on any query.Store; what the store does not know is absent, never good and never bad.
//
//   - Parse reads the file of objectives;
//   - Judge.Look asks the store and returns a Report;
//   - Result.Alert says whether the budget burns too fast;
//   - Limit is a hint which resource is the limit.
package slo

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Kind is what an objective is about.
type Kind string

// Kinds of objectives.
const (
	FirstToken   Kind = "ttft"         // time to the first token
	PerToken     Kind = "tpot"         // time per output token of a request
	Duration     Kind = "duration"     // time from the arrival of a request to its end
	Errors       Kind = "errors"       // requests that failed, of those that finished; aborts do not count
	Availability Kind = "availability" // time in which an engine could be read
)

// histograms are the kinds that are judged by a histogram of requests.
var histograms = map[Kind]string{FirstToken: fleet.HistogramFirstToken, PerToken: fleet.HistogramPerToken, Duration: fleet.HistogramRequest}

// Objective is a part of requests, or of time, that must be good.
type Objective struct {
	Name      string // such as ttft_p95 or errors
	Kind      Kind
	Target    float64       // the part that must be good, 0 to 1
	Allowed   float64       // the part that may be bad: the error budget, above 0
	Threshold time.Duration // of latencies: a request is good up to it
}

// Text returns the objective for people.
func (o *Objective) Text() string {
	percent := func(v float64) string { return strconv.FormatFloat(math.Round(v*1e10)/1e8, 'f', -1, 64) + " %" }
	switch o.Kind {
	case Errors:
		return "errors at most " + percent(o.Allowed)
	case Availability:
		return "available " + percent(o.Target)
	}
	return strings.ToUpper(string(o.Kind)) + " within " + o.Threshold.String() + " for " + percent(o.Target)
}

// Windows are the times before a moment over which burn rates are computed, as in the SRE workbook.
var Windows = []time.Duration{5 * time.Minute, 30 * time.Minute, time.Hour, 6 * time.Hour, 72 * time.Hour}

// Names of Windows, as values of a label.
var windowNames = []string{"5m", "30m", "1h", "6h", "3d"}

// WindowName returns the name of one of Windows.
func WindowName(i int) string { return windowNames[i] }

// Positions in Windows.
const (
	fiveMinutes = iota
	halfHour
	oneHour
	sixHours
	threeDays
	windows // number of them
)

// Report is how the objectives of a file are met at a moment.
type Report struct {
	At     time.Time
	Window time.Duration // of the error budgets
	Rows   []Row         // in order of models and workloads

	Unread  [windows]bool // Windows of which something could not be read: absent burn rates may be high
	Partial bool          // it could not be read which engines there were: rows may be missing
}

// Row is a model of a workload that has objectives or a limit.
type Row struct {
	Model   string
	Owner   fleet.Owner  // zero if it is unknown
	Labels  query.Labels // of the workload
	Results []Result     // in the order of the file
	Goodput Goodput      // over the last five minutes
	Limits  []Share      // over the last hour; nil if it misses nothing and nothing waits
}

// Result is how an objective is met.
type Result struct {
	Objective

	Bad tally // over the window of the file
	// Burn is, for each of Windows, the bad part divided by the allowed part. At 1 the budget lasts exactly
	// as long as the window of the file.
	Burn [windows]optional.Float
	// Budget is the part of the error budget that is left, below 0 if it is overspent.
	Budget optional.Float
}

// Ok reports whether an objective is met over the window of the file, and whether that is known.
func (r *Result) Ok() (ok, known bool) {
	left, known := r.Budget.Get()
	return known && left >= 0, known
}

// finish computes what follows from bad parts.
func (r *Result) finish(bad [windows]optional.Float) {
	for i, b := range bad {
		if v, ok := b.Get(); ok {
			r.Burn[i] = optional.Of(v / r.Allowed)
		}
	}
	if v, ok := r.Bad.Ratio().Get(); ok {
		r.Budget = optional.Of(1 - v/r.Allowed)
	}
}
