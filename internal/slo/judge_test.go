package slo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
)

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// world writes series minute by minute, up to noon.
type world struct {
	t      *testing.T
	store  *hub.Store
	series []*worldSeries
}

type worldSeries struct {
	labels labels.Labels
	value  func(ago time.Duration) (v float64, ok bool) // of a gauge, or the growth of a counter
	grows  bool
	sum    float64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &world{t: t, store: s}
}

func (w *world) put(name string, l query.Labels, grows bool, value func(ago time.Duration) (float64, bool), more ...string) {
	l = maps.Clone(l)
	l[fleet.LabelName] = name
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	w.series = append(w.series, &worldSeries{labels: labels.FromMap(l), value: value, grows: grows})
}

// requests adds a histogram. The requests of a minute are spread over bounds as parts says.
func (w *world) requests(histogram string, l query.Labels, perMinute float64, there func(ago time.Duration) bool, parts func(ago time.Duration) map[string]float64) {
	texts := map[string]bool{}
	for ago := time.Duration(0); ago < 4*day; ago += time.Hour {
		for text := range parts(ago) {
			texts[text] = true
		}
	}
	for text := range texts {
		w.put(fleet.Buckets(histogram), l, true, func(ago time.Duration) (float64, bool) {
			part, ok := parts(ago)[text]
			return perMinute * part, ok && there(ago)
		}, fleet.LabelBucket, text)
	}
}

func (w *world) write(span time.Duration) {
	w.t.Helper()
	for ago := span; ago >= 0; ago -= time.Minute {
		a := w.store.Appender(w.t.Context())
		for _, s := range w.series {
			v, ok := s.value(ago)
			if !ok {
				continue
			}
			if s.grows {
				s.sum += v
				v = s.sum
			}
			a.Gauge(s.labels, noon.Add(-ago).UnixMilli(), v)
		}
		if _, err := a.Commit(); err != nil {
			w.t.Fatal(err)
		}
	}
}

func always(time.Duration) bool { return true }

func constant(v float64) func(time.Duration) (float64, bool) {
	return func(time.Duration) (float64, bool) { return v, true }
}

func engine(id, model, workload string, more ...string) query.Labels {
	l := query.Labels{
		fleet.LabelHost: "n1", fleet.LabelEngine: id, fleet.LabelProvider: "vllm", fleet.LabelServedModel: model, fleet.LabelKind: "deployment",
		fleet.LabelWorkload: workload, fleet.LabelTeam: "team-" + workload,
	}
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	return l
}

// look returns the report as text: bad parts, burn rates and budgets in percent of what is allowed.
func look(t *testing.T, j *Judge, store query.Store, at time.Time) map[string]string {
	t.Helper()
	r, err := j.Look(t.Context(), store, at)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, row := range r.Rows {
		name := row.Model + " " + row.Owner.Name
		for i := range row.Results {
			x := &row.Results[i]
			text := "burn"
			for w := range x.Burn {
				text += " -"
				if v, ok := x.Burn[w].Get(); ok {
					text = text[:len(text)-1] + fmt.Sprintf("%.1f", v+1e-9)
				}
			}
			if v, ok := x.Budget.Get(); ok {
				text += fmt.Sprintf(", budget %.2f", v+1e-9)
			}
			if below, above := x.Bad.Bounds(); below.OK() {
				text += fmt.Sprintf(", bounds %v %v", below.Default(0), above.Default(inf))
			}
			out[name+" "+x.Name] = text
		}
		if of, ok := row.Goodput.Of.Get(); ok {
			text := fmt.Sprintf("of %.2f", of)
			if v, ok := row.Goodput.Low.Get(); ok {
				text += fmt.Sprintf(" from %.2f", v)
			}
			if v, ok := row.Goodput.High.Get(); ok {
				text += fmt.Sprintf(" to %.2f", v)
			}
			out[name+" goodput"] = text
		}
		if row.Limits != nil {
			out[name+" limits"] = ""
			for _, s := range row.Limits {
				out[name+" limits"] += fmt.Sprintf("%s %.0f %% ", s.Cause, 100*s.Share)
			}
		}
	}
	return out
}

// Catches a request that counts twice, once for each way to the store, an engine that is gone and whose requests do not count, bounds that changed
// in an upgrade and make all earlier requests bad, aborts that count as errors, errors of an engine that does not
// count them, telemetry of an application, an outage without a trace, and a row of a workload without objectives.
func TestLook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good := map[string]float64{"0.4": 1, "0.6": 1, "1": 1, "+Inf": 1}
	slow := map[string]float64{"0.4": 0.6, "0.6": 0.8, "1": 0.9, "+Inf": 1} // 30 % are above 0.5 s
	lately := func(ago time.Duration) map[string]float64 {
		if ago < 2*time.Hour {
			return slow
		}
		return good
	}
	for _, way := range []string{"push", "scrape"} {
		a := engine("a", "llama", "chat", "job", way)
		w.requests(fleet.HistogramFirstToken, a, 60, always, lately)
		w.put(fleet.SeriesFinished, a, true, constant(50), fleet.LabelOutcome, "success")
		w.put(fleet.SeriesFinished, a, true, constant(10), fleet.LabelOutcome, "abort")
		w.put(fleet.SeriesFinished, a, true, func(ago time.Duration) (float64, bool) {
			if ago < 30*time.Minute {
				return 1, true // of 51
			}
			return 0, true
		}, fleet.LabelOutcome, "error")
	}
	// Until a day ago another engine had half of the requests, with other bounds. A fifth of its requests were slow.
	w.requests(fleet.HistogramFirstToken, engine("gone", "llama", "chat"), 60, func(ago time.Duration) bool { return ago > day },
		func(time.Duration) map[string]float64 { return map[string]float64{"0.5": 0.8, "2": 1, "+Inf": 1} })
	w.requests(fleet.HistogramFirstToken, engine("", "llama", "chat"), 600, always, // of an application
		func(time.Duration) map[string]float64 { return map[string]float64{"0.5": 0, "+Inf": 1} })

	// All requests take 0.25 s or less. The engine got other bounds between three and six hours ago.
	up := engine("u", "qwen", "batch", fleet.LabelProvider, "sglang")
	w.requests(fleet.HistogramFirstToken, up, 60, always, func(ago time.Duration) map[string]float64 {
		if ago < 4*time.Hour {
			return map[string]float64{"0.25": 1, "0.5": 1, "8": 1, "+Inf": 1}
		}
		return map[string]float64{"0.4": 1, "0.6": 1, "8": 1, "+Inf": 1}
	})
	w.put(fleet.SeriesFinished, up, true, constant(60), fleet.LabelOutcome, "success")
	page := maps.Clone(up)
	delete(page, fleet.LabelServedModel)
	w.put(fleet.SeriesEngineUp, page, false, func(ago time.Duration) (float64, bool) {
		switch {
		case ago < 10*time.Minute: // its process has ended, but the workload holds a device
			return 0, false
		case ago < 30*time.Minute:
			return 0, true
		}
		return 1, true
	})
	w.put(fleet.SeriesAllocation, query.Labels{fleet.LabelUUID: "G1", fleet.LabelKind: "deployment", fleet.LabelWorkload: "batch", fleet.LabelTeam: "team-batch"}, false, constant(1))
	// Nobody could read this engine in the last eight hours, and its workload still holds a device.
	dead := engine("d", "phi", "dead")
	w.put(fleet.SeriesFinished, dead, true, func(ago time.Duration) (float64, bool) { return 60, ago > 8*time.Hour }, fleet.LabelOutcome, "success")
	w.put(fleet.SeriesEngineUp, dead, false, func(ago time.Duration) (float64, bool) { return 1, ago > 8*time.Hour })
	w.put(fleet.SeriesAllocation, query.Labels{fleet.LabelUUID: "G2", fleet.LabelKind: "deployment", fleet.LabelWorkload: "dead", fleet.LabelTeam: "team-dead"}, false, constant(1))
	other := engine("o", "llama", "other")
	w.put(fleet.SeriesFinished, other, true, constant(60), fleet.LabelOutcome, "success")
	w.write(4 * day)

	file, err := Parse([]byte(`window: 4d
objectives:
  - {model: llama, workload: chat, ttft: {p95: 500ms}, errors: 1%}
  - {model: qwen, ttft: {p50: 200ms, p95: 9s}, tpot: {p95: 1s}, errors: 1%, availability: 99%}
  - {model: phi, availability: 50%}
`))
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(file)
	want := map[string]string{
		// 30 % of the last two hours; 20 % of the other engine's requests in three of four days, two of three days.
		"llama chat ttft_p95": "burn 6.0 6.0 6.0 2.0 1.7, budget -0.79, bounds 0.4 0.6",
		// 2 % of the last half hour.
		"llama chat errors":  "burn 2.0 2.0 1.0 0.2 0.0, budget 0.99",
		"llama chat goodput": "of 0.85 from 0.58 to 0.59",
		// A fifth of what is between 0 and 0.25, and what is above 8, which it had all the time.
		// The days before the change have another nearest bound, 0.4; the day of the change does not count.
		"qwen batch ttft_p50":     "burn 0.4 0.4 0.4 - -, budget 0.00, bounds 0 0.4",
		"qwen batch ttft_p95":     "burn 0.0 0.0 0.0 0.0 0.0, budget 1.00, bounds 8 +Inf",
		"qwen batch tpot_p95":     "burn - - - - -",
		"qwen batch errors":       "burn - - - - -",
		"qwen batch availability": "burn 100.0 100.0 50.0 8.3 0.7, budget 0.49",
		"qwen batch goodput":      "of 1.00 to 1.00",
		"llama chat limits":       "unexplained 100 % ",
		"phi dead availability":   "burn 2.0 2.0 2.0 2.0 0.2, budget 0.83",
	}
	if diff := cmp.Diff(want, look(t, j, w.store, noon)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Between two looks at the long windows.
	if diff := cmp.Diff(want, look(t, j, w.store, noon.Add(time.Second))); diff != "" {
		t.Errorf("again (-want +got):\n%s", diff)
	}
}

// Catches a hub that asks for everything although it has no engine, and a limit that only models with objectives get.
func TestLookWithoutObjectives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := look(t, NewJudge(Empty()), w.store, noon); len(got) != 0 {
		t.Errorf("%v", got)
	}
	a := engine("a", "llama", "chat")
	w.put(fleet.SeriesEngineUp, a, false, constant(1))
	w.put(fleet.SeriesRequests, a, false, constant(30), fleet.LabelState, "waiting")
	w.put(fleet.SeriesRequests, a, false, constant(20), fleet.LabelState, "running")
	w.put(fleet.SeriesKVCache, a, false, func(ago time.Duration) (float64, bool) {
		if ago < 15*time.Minute {
			return 0.5, true
		}
		return 0.99, true
	}, fleet.LabelTier, fleet.TierGPU)
	w.put(fleet.SeriesKVCache, a, false, constant(1), fleet.LabelTier, "cpu")
	b := engine("b", "llama", "calm")
	w.put(fleet.SeriesEngineUp, b, false, constant(1))
	w.put(fleet.SeriesRequests, b, false, constant(0), fleet.LabelState, "waiting")
	w.write(2 * time.Hour)
	want := map[string]string{"llama chat limits": "kv_cache 75 % queue_limit 25 % "}
	if diff := cmp.Diff(want, look(t, NewJudge(Empty()), w.store, noon)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// recorder is a store that records which days are asked for, by their end.
type recorder struct {
	query.Store
	days map[string]bool
}

func (r *recorder) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if strings.Contains(expr, "["+query.Duration(day)+"]") {
		r.days[at.UTC().Format("Jan 2")] = true
	}
	return r.Store.Instant(ctx, expr, at)
}

// Catches days that are read again every ten minutes, and a day that is read before its last samples are there.
func TestLookReadsDaysOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(fleet.SeriesFinished, engine("a", "llama", "chat"), true, constant(60), fleet.LabelOutcome, "error")
	w.write(time.Hour)
	file, err := Parse([]byte("window: 7d\nobjectives: [{model: llama, errors: 1%}]"))
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(file)
	f := func(at time.Time, want ...string) {
		t.Helper()
		r := &recorder{w.store, map[string]bool{}}
		if _, err := j.Look(t.Context(), r, at); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(r.days))); diff != "" {
			t.Errorf("days read at %s (-want +got):\n%s", at, diff)
		}
	}
	f(noon, "Nov 10", "Nov 11", "Nov 12", "Nov 13", "Nov 14", "Nov 15")
	f(noon.Add(time.Minute))
	f(noon.Add(11*time.Minute), "Nov 15") // it ended at midnight, and samples may be a day late
	f(noon.Add(12*time.Hour), "Nov 15", "Nov 16")
	f(noon.Add(13*time.Hour), "Nov 16")
}

// Catches objectives of a team that have the requests, the availability or the limits of another team whose workload has the same
// name, and of a user those of another user's process.
func TestLookKeepsTeamsApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for team, failed := range map[string]float64{"red": 0, "blue": 6} {
		l := engine(team, "llama", "chat", fleet.LabelTeam, team)
		w.put(fleet.SeriesFinished, l, true, constant(60-failed), fleet.LabelOutcome, "success")
		w.put(fleet.SeriesFinished, l, true, constant(failed), fleet.LabelOutcome, "error")
		w.put(fleet.SeriesEngineUp, l, false, constant(1-min(failed, 1)))
		w.put(fleet.SeriesRequests, l, false, constant(failed), fleet.LabelState, "waiting")
	}
	for user, failed := range map[string]float64{"ann": 0, "bob": 30} {
		l := engine(user, "phi", "python", fleet.LabelTeam, "", fleet.LabelKind, "process", fleet.LabelUser, user)
		delete(l, fleet.LabelTeam)
		w.put(fleet.SeriesFinished, l, true, constant(60-failed), fleet.LabelOutcome, "success")
		w.put(fleet.SeriesFinished, l, true, constant(failed), fleet.LabelOutcome, "error")
	}
	w.write(time.Hour)
	file, err := Parse([]byte(`{window: 1d, objectives: [{model: "*", errors: 10%, availability: 50%}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewJudge(file).Look(t.Context(), w.store, noon)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, row := range r.Rows {
		name := strings.Join([]string{row.Model, row.Owner.Name, row.Owner.Team, row.Owner.User}, " ")
		for _, x := range row.Results {
			v, ok := x.Burn[halfHour].Get()
			got[name] += fmt.Sprintf("%.1f %v, ", v, ok)
		}
		got[name] += fmt.Sprintf("%.1f/s", row.Goodput.Of.Default(0))
		for _, s := range row.Limits {
			got[name] += ", " + string(s.Cause)
		}
	}
	want := map[string]string{
		"llama chat red ":  "0.0 true, 0.0 true, 1.0/s",
		"llama chat blue ": "1.0 true, 2.0 true, 1.0/s, unexplained",
		"phi python  ann":  "0.0 true, 0.0 false, 1.0/s",
		"phi python  bob":  "5.0 true, 0.0 false, 1.0/s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
