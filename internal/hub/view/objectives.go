package view

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/slo"
)

// judgement says how what is served meets its objectives.
type judgement struct {
	Objectives []objective `json:"objectives,omitempty"` // absent if it has none
	Goodput    *goodput    `json:"goodput,omitempty"`    // absent if it has none
	Limits     []limit     `json:"limits,omitempty"`     // over the last hour; absent if no objective is missed and no request waits
}

// objective is how one objective is met. Unknown is null.
type objective struct {
	Objective string `json:"objective"` // such as ttft_p95, tpot_p95, duration_p99, errors, availability
	Text      string `json:"text"`      // for people
	Target    number `json:"target"`    // the part that must be good, 0 to 1
	Threshold number `json:"threshold"` // seconds; null if it is no latency
	Window    int64  `json:"window"`    // of the error budget, in seconds
	Bad       number `json:"bad"`       // the part that was bad in the window
	// Histograms know at their bounds only how many were slower: bad is between the two, and interpolated.
	BadLow  number `json:"badLow"`
	BadHigh number `json:"badHigh"`
	Below   number `json:"below"` // the nearest bounds around the threshold, seconds; above is null beyond the last one
	Above   number `json:"above"`

	Burn   map[string]number `json:"burn"`            // bad part divided by the allowed part, by window: 5m, 30m, 1h, 6h, 3d
	Budget number            `json:"budget"`          // the part of the error budget that is left, below 0 if it is overspent
	Ok     *bool             `json:"ok"`              // whether the objective is met over the window
	Alert  string            `json:"alert,omitempty"` // page or ticket if the budget burns too fast
}

// goodput is how many requests per second met every objective, over the last five minutes.
type goodput struct {
	Low  number `json:"low"`
	High number `json:"high"`
	Of   number `json:"of"` // all that finished, without those that their clients canceled
}

// limit is a part of the lost time and what explains it.
type limit struct {
	Cause string `json:"cause"` // kv_cache, queue_limit, prefill, decode, host, power_cap, thermal, network or unexplained, which is last
	Name  string `json:"name"`  // for people
	Share number `json:"share"` // shares add up to 1
	Text  string `json:"text"`  // the numbers that it follows from
}

// servedKey identifies what is served. Workloads of two teams, and processes of two users, may have one ID.
type servedKey struct{ model, owner, team, user string }

func keyOf(model string, o *fleet.Owner) servedKey { return servedKey{model, o.ID, o.Team, o.User} }

// judge fills in the judgements of what is served now. If the objectives cannot be read, the rest of the page is still
// true: the hub logs why.
func (v *viewer) judge(ctx context.Context, at time.Time, now []serving.Row, rows []served) {
	if v.opts.Objectives == nil || len(now) == 0 {
		return
	}
	report, err := v.judged.get(ctx, at.Unix(), v.opts.Now(), time.Minute, func(ctx context.Context) (*slo.Report, error) { return v.opts.Objectives(ctx, at) })
	if err != nil {
		return
	}
	places := map[servedKey]*slo.Row{}
	for i := range report.Rows {
		places[keyOf(report.Rows[i].Model, &report.Rows[i].Owner)] = &report.Rows[i]
	}
	for i := range now {
		if row := places[keyOf(now[i].Model, &now[i].Owner)]; row != nil {
			rows[i].judgement = judgementOf(row, report.Window)
		}
	}
}

func judgementOf(row *slo.Row, window time.Duration) judgement {
	of := func(f optional.Float) number { return number(float(f)) }
	var out judgement
	for i := range row.Results {
		r := &row.Results[i]
		low, high := r.Bad.Range()
		below, above := r.Bad.Bounds()
		o := objective{
			Objective: r.Name, Text: r.Text(), Target: number(r.Target), Threshold: number(absent), Window: int64(window.Seconds()),
			Bad: of(r.Bad.Ratio()), BadLow: of(low), BadHigh: of(high), Below: of(below), Above: of(above), Burn: map[string]number{}, Budget: of(r.Budget),
		}
		if r.Threshold > 0 {
			o.Threshold = number(r.Threshold.Seconds())
		}
		for w, burn := range r.Burn {
			o.Burn[slo.WindowName(w)] = of(burn)
		}
		if ok, known := r.Ok(); known {
			o.Ok = &ok
		}
		if a, burns := r.Alert(); burns {
			o.Alert = string(a.Severity)
		}
		out.Objectives = append(out.Objectives, o)
	}
	if len(row.Results) > 0 {
		out.Goodput = &goodput{of(row.Goodput.Low), of(row.Goodput.High), of(row.Goodput.Of)}
	}
	for _, s := range row.Limits {
		out.Limits = append(out.Limits, limit{string(s.Cause), s.Cause.Name(), number(s.Share), s.Text})
	}
	return out
}
