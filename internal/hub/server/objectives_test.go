//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/slo"
)

// served has a store in which a model serves, and a hub that judges it.
type served struct {
	*Server
	t      *testing.T
	now    time.Time
	counts map[string]float64
}

func newServed(t *testing.T) *served {
	t.Helper()
	store, err := hub.Open(t.TempDir(), hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	// Long windows are read by days of UTC: everything happens on one day.
	now := time.Now().UTC().Add(-12 * time.Hour).Truncate(24 * time.Hour).Add(6 * time.Hour)
	return &served{&Server{log: zap.NewNop(), store: store}, t, now, map[string]float64{}}
}

func (s *served) minute(n int) time.Time { return s.now.Add(time.Duration(n) * time.Minute) }

// serve writes requests of some minutes.
func (s *served) serve(from, to int, good, bad float64) {
	s.t.Helper()
	for i := from; i <= to; i++ {
		a := s.store.Appender(s.t.Context())
		put := func(name string, n float64, more ...string) {
			key := name + strings.Join(more, " ")
			s.counts[key] += n
			a.Gauge(promlabels.FromStrings(append(more, "__name__", name, "host_name", "n1", "inference_engine_id", "e", "gen_ai_request_model", "llama",
				"gpu_workload_kind", "deployment", "gpu_workload_name", "chat", "gpu_workload_team", "red", "k8s_namespace_name", "prod")...), s.minute(i).UnixMilli(), s.counts[key])
		}
		for le, n := range map[string]float64{"0.5": good, "1": good, "+Inf": good + bad} {
			put("gen_ai_server_time_to_first_token_seconds_bucket", n, "le", le)
		}
		put("inference_request_finished_total", good+bad, "inference_outcome", "success")
		if _, err := a.Commit(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Catches an error budget that burns and is in no series, no alert and no event, a finding that never ends or that
// a restart of the hub forgets, and one of which nobody can tell whose it is.
func TestObjectivesAreTold(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	store, minute := s.store, s.minute
	file := filepath.Join(t.TempDir(), "objectives.yaml")
	put(t, file, "objectives: [{model: llama, ttft: {p95: 500ms}, errors: 1%}]")
	h := Options{Objectives: file}
	o, err := h.objectives(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	judge := func(o *objectives, at time.Time) {
		t.Helper()
		if err := s.judgeObjectives(t.Context(), store, o, at); err != nil {
			t.Fatal(err)
		}
	}
	s.serve(-180, -101, 10, 0)
	s.serve(-100, -30, 1, 9) // nine in ten are slow: at 18 times the rate
	judge(o, minute(-31))
	judge(o, minute(-30))
	want := rules.Finding{
		Rule: "fleet_slo_burn", Severity: "ERROR", Value: 18,
		Labels: map[string]string{
			"gen_ai_request_model": "llama", "gpumeter_slo_objective": "ttft_p95", "gpumeter_slo_severity": "page",
			"gpu_workload_kind": "deployment", "gpu_workload_name": "chat", "gpu_workload_team": "red", "k8s_namespace_name": "prod",
		},
		Reason: `llama of prod/chat misses its objective "TTFT within 500ms for 95 %": its 30-day error budget burns at 18x the sustainable rate over 1h, 18x over 5m; the time is lost to: ` +
			"Unexplained 100 % (the engine does not say how much of the time to the first token is queue; the network is in no number: a router or gateway in front of just these engines would tell, if it was read)",
		Action: "Look at the log of the engine, at its node, and at the network in front of it.",
	}
	var got []rules.Finding
	for _, c := range o.watch.Active() {
		c.Value = float64(int(c.Value + 0.5))
		got = append(got, c.Finding)
	}
	if diff := cmp.Diff([]rules.Finding{want}, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	series := func(at time.Time) []string {
		t.Helper()
		list, err := store.Instant(t.Context(), `{__name__=~"gpumeter_slo_.*|gpumeter_fleet_finding",gpu_workload_team="red"}`, at)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, x := range list {
			l := x.Labels
			out = append(out, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %.1f", l["__name__"], l["gpumeter_slo_objective"], l["gpumeter_slo_window"], l["gpumeter_slo_severity"], x.Value)), " "))
		}
		slices.Sort(out)
		return out
	}
	wantSeries := []string{
		"gpumeter_fleet_finding ttft_p95 page 1.0",
		"gpumeter_slo_budget_remaining_ratio ttft_p95 -7.5",
		"gpumeter_slo_burn_rate ttft_p95 1h 18.0", "gpumeter_slo_burn_rate ttft_p95 30m 18.0", "gpumeter_slo_burn_rate ttft_p95 3d 8.5",
		"gpumeter_slo_burn_rate ttft_p95 5m 18.0", "gpumeter_slo_burn_rate ttft_p95 6h 8.5",
		"gpumeter_slo_objective_ratio errors 1.0", "gpumeter_slo_objective_ratio ttft_p95 0.9", // 0.99 and 0.95
		"gpumeter_slo_threshold_seconds ttft_p95 0.5",
	}
	if diff := cmp.Diff(wantSeries, series(minute(-30))); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	if families, err := hub.NewRegistry(hub.Gauges(o.gauges)).Gather(); err != nil || len(families) != 4 {
		t.Errorf("/metrics: %v %v", families, err)
	}
	if o.watch.Alerts()[0].Annotations["finding"] == "" {
		t.Error("the alert has no ID")
	}

	// The hub starts again, and the requests are fast again.
	o, err = h.objectives(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.loader(&o.watch, func(rule string) bool { return rule == rules.BudgetBurns })(t.Context(), minute(-29)); err != nil {
		t.Fatal(err)
	}
	s.serve(-29, 0, 1000, 0)
	judge(o, minute(-1))
	judge(o, minute(0))
	list, err := store.Events(t.Context(), events.Query{Names: []string{"gpu.finding"}})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, e := range list {
		a := e.Attributes
		told = append(told, strings.Join([]string{a["gpu.finding.state"], a["gpu.finding.severity"], a["gpu.finding.key"], a["gen_ai.request.model"], a["gpumeter.slo.objective"], a["gpu.workload.team"]}, " "))
	}
	const key = " critical deployment///red//prod/chat//llama/ttft_p95/page llama ttft_p95 red"
	if diff := cmp.Diff([]string{"closed" + key, "open" + key}, told); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if list := o.watch.Alerts(); len(list) != 0 {
		t.Errorf("alerts: %v", list)
	}
	put(t, file, "objectives: [{model: llama, errors: 1%}]") // without the other one
	if err := o.read(); err != nil {
		t.Fatal(err)
	}
	s.serve(1, 1, 1000, 0)
	judge(o, minute(1))
	if diff := cmp.Diff([]string{"gpumeter_slo_objective_ratio errors 1.0"}, series(minute(1))); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// counting is a store that counts questions, and may be away.
type counting struct {
	query.Store
	away  func(expr string) bool
	asked atomic.Int64
}

func (c *counting) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if c.asked.Add(1); c.away != nil && c.away(expr) {
		return nil, errors.New("the store is away")
	}
	return c.Store.Instant(ctx, expr, at)
}

func (c *counting) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	if c.asked.Add(1); c.away != nil && c.away(expr) {
		return nil, errors.New("the store is away")
	}
	return c.Store.Range(ctx, expr, start, end, step)
}

// Catches a page that is resolved because the store cannot be read, all of it or only the last half hour, also if the hub starts meanwhile,
// a second finding for the same objective, and a page that stays when the store is back.
func TestFindingsOutliveTheirStore(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	file := filepath.Join(t.TempDir(), "objectives.yaml")
	put(t, file, "objectives: [{model: llama, ttft: {p95: 500ms}}]")
	h := Options{Objectives: file}
	o, err := h.objectives(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	s.serve(-180, -101, 10, 0)
	s.serve(-100, -30, 1, 9)
	all := func(string) bool { return true }
	lately := func(expr string) bool {
		return strings.Contains(expr, "[300000ms]") || strings.Contains(expr, "[1800000ms]")
	}
	judge := func(from, to int, away func(string) bool, want ...string) {
		t.Helper()
		for i := from; i <= to; i++ {
			err := s.judgeObjectives(t.Context(), &counting{Store: s.store, away: away}, o, s.minute(i))
			if (err != nil) != (away != nil) {
				t.Errorf("minute %d: %v", i, err)
			}
		}
		var got []string
		for _, c := range o.watch.Active() {
			got = append(got, c.Labels[fleet.LabelBurnSeverity]+" "+c.Reason[strings.Index(c.Reason, "burns"):strings.Index(c.Reason, ";")])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("minutes %d to %d: open findings (-want +got):\n%s", from, to, diff)
		}
	}
	const page = "page burns at 18x the sustainable rate over 1h, 18x over 5m"
	judge(-31, -30, nil, page)
	judge(-29, -26, all, page)
	s.serve(-29, -22, 1, 9)
	judge(-25, -22, lately, page)
	o, err = h.objectives(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.loader(&o.watch, func(string) bool { return true })(t.Context(), s.minute(-21)); err != nil {
		t.Fatal(err)
	}
	judge(-21, -19, all, page)
	s.serve(-21, 0, 1000, 0)
	judge(-18, 0, nil)
}

// Catches a page about the past that reads a month for it, one that waits for a hub that judges slowly, numbers of another time or
// another team, and a past without the objectives as they were then.
func TestObjectivesOfThePast(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	file := filepath.Join(t.TempDir(), "objectives.yaml")
	put(t, file, "objectives: [{model: llama, tpot: {p99.9: 20ms}, ttft: {p95: 500ms}, errors: 1%}]")
	h := Options{Objectives: file}
	o, err := h.objectives(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	s.serve(-180, -101, 10, 0)
	s.serve(-100, -60, 1, 9)
	if err := s.judgeObjectives(t.Context(), s.store, o, s.minute(-60)); err != nil {
		t.Fatal(err)
	}
	s.serve(-59, 0, 10, 0)
	if err := s.judgeObjectives(t.Context(), s.store, o, s.minute(0)); err != nil {
		t.Fatal(err)
	}
	ask := func(at time.Time, store query.Store, most int) []string {
		t.Helper()
		c := &counting{Store: store}
		r, err := o.at(t.Context(), c, at)
		if err != nil {
			t.Fatal(err)
		}
		if n := int(c.asked.Load()); n > most {
			t.Errorf("%d questions", n)
		}
		var out []string
		for _, row := range r.Rows {
			for i := range row.Results {
				x := &row.Results[i]
				low, _ := x.Bad.Range()
				hour, _ := x.Burn[2].Get()
				out = append(out, strings.TrimSpace(fmt.Sprintf("%s: %s, %.1f over 1h, %.2f bad, budget %.1f, %v", servedBy(&row), x.Text(), hour, x.Bad.Ratio().Default(-1), x.Budget.Default(-99), low.OK())))
			}
			for _, l := range row.Limits {
				out = append(out, string(l.Cause))
			}
		}
		return out
	}
	past := []string{
		`llama of prod/chat: TTFT within 500ms for 95 %, 12.5 over 1h, 0.31 bad, budget -5.1, false`,
		`llama of prod/chat: TPOT within 20ms for 99.9 %, 0.0 over 1h, -1.00 bad, budget -99.0, false`,
		`llama of prod/chat: errors at most 1 %, 0.0 over 1h, -1.00 bad, budget -99.0, false`, "unexplained",
	}
	if diff := cmp.Diff(past, ask(s.minute(-60), s.store, 40)); diff != "" {
		t.Errorf("an hour ago (-want +got):\n%s", diff)
	}
	if got := ask(s.minute(-60), hub.ScopedStore(s.store, access.Scope{Team: "blue"}), 40); len(got) > 0 {
		t.Errorf("of another team: %v", got)
	}
	for _, minute := range []int{0, 9} { // judging may take a while
		if got := ask(s.minute(minute), s.store, 0); len(got) != 3 || !strings.HasPrefix(got[1], `llama of prod/chat: TTFT within 500ms for 95 %, 0.0 over 1h`) {
			t.Errorf("now: %v", got)
		}
	}
	if got := ask(s.minute(60), s.store, 40); len(got) > 0 {
		t.Errorf("later: %v", got)
	}
}

// Catches a finding that does not say what limits the engine, and one about errors that does.
func TestBurning(t *testing.T) {
	t.Parallel()
	row := func(kind slo.Kind) slo.Row {
		r := slo.Row{Model: "llama", Limits: []slo.Share{{Cause: slo.KVCache, Share: 0.9, Text: "it is full"}, {Cause: slo.Unexplained, Share: 0.1}}}
		x := slo.Result{Objective: slo.Objective{Name: string(kind), Kind: kind, Target: 0.99, Allowed: 0.01, Threshold: time.Second}}
		for i, v := range []float64{0, 0, 0, 2.5, 2} {
			x.Burn[i] = optional.Of(v)
		}
		r.Results = []slo.Result{x}
		return r
	}
	var got []string
	for _, f := range burning(&slo.Report{Window: 24 * 30 * time.Hour, Rows: []slo.Row{row(slo.FirstToken), row(slo.Errors)}}, nil) {
		got = append(got, f.Severity+" "+f.Reason+". "+f.Action)
	}
	const rates = "its 30-day error budget burns at 2x the sustainable rate over 3d, 2.5x over 6h"
	want := []string{
		`WARN llama misses its objective "TTFT within 1s for 99 %": ` + rates + "; the time is lost to: KV cache full 90 % (it is full), Unexplained 10 %. " + slo.KVCache.Advice(),
		`WARN llama misses its objective "errors at most 1 %": ` + rates + ". " + slo.Unexplained.Advice(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a changed file of objectives that is not read, and a broken one that takes the objectives away or is not said.
func TestObjectivesAreReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "objectives.yaml")
		put(t, file, "objectives: [{model: a, errors: 1%}]")
		core, said := observer.New(zap.InfoLevel)
		h := Options{Objectives: file}
		o, err := h.objectives(zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go o.run(ctx)
		f := func(text, model string, state int, log ...string) {
			t.Helper()
			put(t, file, text)
			time.Sleep(3 * followEvery)
			synctest.Wait()
			o.mu.Lock()
			got := o.file.Entries[0].Model
			o.mu.Unlock()
			var messages []string
			for _, e := range said.TakeAll() {
				messages = append(messages, e.Message)
			}
			if diff := cmp.Diff(log, messages); diff != "" || got != model || len(o.state()) != state {
				t.Errorf("%s: objectives of %s, %v: %s", text, got, o.state(), diff)
			}
		}
		f("objectives: [{model: bb, errors: 2%}]", "bb", 0, "Reloaded the objectives file")
		f("objectives: [{model: ccc, errors: 2}]", "bb", 1, "The changed objectives file is not valid: the hub keeps the current objectives")
		f("objectives: [{model: dddd, errors: 2%}]", "dddd", 0, "Reloaded the objectives file")
	})
	h := Options{Objectives: filepath.Join(t.TempDir(), "none")}
	if _, err := h.objectives(zap.NewNop()); err == nil || !strings.Contains(err.Error(), "--objectives") {
		t.Errorf("%v", err)
	}
}
