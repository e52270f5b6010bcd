package view

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// servingHub returns a hub in which two teams have had an engine each for an hour, on a GPU of their own.
// That of red answers one request a second, each with 100 tokens in and 10 out, after 50 ms.
func servingHub(t *testing.T) *hub.Store {
	t.Helper()
	return servingHubOf(t, func(what, team string) string { return what + "-" + team })
}

// servingHubOf returns one in which the teams name workloads and models as nameOf says.
func servingHubOf(t *testing.T, nameOf func(what, team string) string) *hub.Store {
	t.Helper()
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	a := s.Appender(t.Context())
	put := func(name string, of map[string]string, value func(seconds float64) float64, more ...string) {
		l := map[string]string{fleet.LabelName: name}
		maps.Copy(l, of)
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		set := labels.FromMap(l)
		for at := noon.Add(-time.Hour); !at.After(noon); at = at.Add(time.Minute) {
			a.Gauge(set, at.UnixMilli(), value(at.Sub(noon.Add(-time.Hour)).Seconds()))
		}
	}
	grows := func(perSecond float64) func(float64) float64 {
		return func(seconds float64) float64 { return perSecond * seconds }
	}
	stands := func(v float64) func(float64) float64 { return func(float64) float64 { return v } }
	for team, gpu := range map[string]string{"red": "GPU-1", "blue": "GPU-2"} {
		device := map[string]string{fleet.LabelUUID: gpu, fleet.LabelIndex: gpu[4:], fleet.LabelModel: "NVIDIA H100", fleet.LabelVendor: "nvidia", fleet.LabelHost: "n1"}
		owner := map[string]string{fleet.LabelKind: "deployment", fleet.LabelWorkload: nameOf("chat", team), fleet.LabelTeam: team, fleet.LabelPodUID: team}
		put(fleet.SeriesUp, device, stands(1))
		maps.Copy(device, owner)
		put(fleet.SeriesSMActive, device, stands(0.5))
		put(fleet.SeriesPower, device, stands(500))
		put(fleet.SeriesAllocation, device, stands(1))
		put(fleet.SeriesAllocatedTime, device, grows(1))
		put(fleet.SeriesActiveTime, device, grows(0.75))
		put(fleet.SeriesEnergy, device, grows(500))
		put(fleet.SeriesEngineDevice, device, stands(1), fleet.LabelEngine, team, fleet.LabelProvider, "vllm")

		engine := maps.Clone(owner)
		maps.Copy(engine, map[string]string{fleet.LabelHost: "n1", fleet.LabelEngine: team, fleet.LabelProvider: "vllm"})
		put(fleet.SeriesEngineUp, engine, stands(1))
		engine[fleet.LabelServedModel] = nameOf("llama", team)
		put(fleet.SeriesTokensIn, engine, grows(100))
		put(fleet.SeriesTokensOut, engine, grows(10))
		put(fleet.SeriesPrefixHits, engine, grows(40), fleet.LabelTier, "gpu")
		put(fleet.SeriesPrefixQueries, engine, grows(100), fleet.LabelTier, "gpu")
		put(fleet.SeriesFinished, engine, grows(1), fleet.LabelOutcome, "success")
		put(fleet.SeriesRequests, engine, stands(3), fleet.LabelState, "running")
		put(fleet.SeriesRequests, engine, stands(2), fleet.LabelState, "waiting")
		put(fleet.SeriesKVCache, engine, stands(0.25), fleet.LabelTier, "gpu")
		for le, perSecond := range map[string]float64{"0.1": 1, "1": 1, "+Inf": 1} {
			put(fleet.Buckets(fleet.HistogramFirstToken), engine, grows(perSecond), fleet.LabelBucket, le)
		}
		for le, perSecond := range map[string]float64{"0.1": 0, "1": 1, "+Inf": 1} { // of an application
			put(fleet.Buckets(fleet.HistogramFirstToken), owner, grows(perSecond), fleet.LabelBucket, le, fleet.LabelServedModel, nameOf("llama", team))
		}
	}
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	return s
}

func servingPrices(t *testing.T) cost.Prices {
	t.Helper()
	p, err := cost.Parse([]byte("currency: EUR\nprices: [{rates: [{from: 2026-01-01, kind: on_demand, per_hour: 4}]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Catches a lost field, a row of another team on the page of a team, an unknown number that is 0, and cost
// that is not that of the bill.
func TestServingPage(t *testing.T) {
	t.Parallel()
	store := hub.ScopedStore(servingHub(t), access.Scope{Team: "red"})
	o := at(noon)
	o.Team = "red"
	h := Handler(store, Cost(store, servingPrices(t), nil), nil, o)
	const (
		row = `{"model":"llama-red","providers":["vllm"],
			"owner":{"id":"deployment///chat-red/","kind":"deployment","name":"chat-red","team":"red"},"engines":1,"up":1,
			"gpus":[{"uuid":"GPU-1","index":"1","model":"H100","node":"n1"}],
			"running":3,"waiting":2,"finished":{"success":1},"tokensIn":100,"tokensOut":10,
			"ttft":{"p50":0.05,"p95":0.095,"p99":0.099},"tpot":{"p50":null,"p95":null,"p99":null},"itl":{"p50":null,"p95":null,"p99":null},
			"e2e":{"p50":null,"p95":null,"p99":null},"queue":{"p50":null,"p95":null,"p99":null},
			"kvCache":0.25,"prefixHits":0.4,"sm":0.5,"tensor":null,"utilization":null,"memory":null,"watts":500,
			"period":` + sums + `}`
		answer = `{"at":1794744000,"from":1794740400,"to":1794744000,"window":300,"currency":"EUR","inputWeight":0.2,"simulated":"","serving":[` + row + `],
			"total":` + sums + `,"notes":["Weighted, a token of a prompt counts as 0.2 of a token of output, and nothing if the prefix cache had it."]}`
	)
	code, body := get(t, h, "/serving?from=1794740400")
	if diff := cmp.Diff(indent(t, answer), indent(t, rounded(t, body))); diff != "" || code != http.StatusOK {
		t.Errorf("status %d (-want +got):\n%s", code, diff)
	}
	var w struct{ Serving []json.RawMessage }
	code, body = get(t, h, "/workload?from=1794740400&id=deployment%2F%2F%2Fchat-red%2F")
	if err := json.Unmarshal([]byte(body), &w); err != nil || code != http.StatusOK || len(w.Serving) != 1 {
		t.Fatalf("status %d, %v: %s", code, err, body)
	}
	if diff := cmp.Diff(indent(t, row), indent(t, rounded(t, string(w.Serving[0])))); diff != "" {
		t.Errorf("of the workload (-want +got):\n%s", diff)
	}
}

// noEngines is a store that answers for everything but engines.
type noEngines struct{ query.Store }

func (s noEngines) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if strings.Contains(expr, "inference_") {
		return nil, errors.New("too slow")
	}
	return s.Store.Instant(ctx, expr, at)
}

// Catches the page of a workload that is missing as a whole because what it serves cannot be read.
func TestWorkloadWithoutServing(t *testing.T) {
	t.Parallel()
	store := noEngines{servingHub(t)}
	code, body := get(t, Handler(store, Cost(store, servingPrices(t), nil), nil, at(noon)), "/workload?from=1794740400&id=deployment%2F%2F%2Fchat-red%2F")
	var a struct {
		Workload     struct{ Cost float64 }
		Serving      []json.RawMessage
		ServingError string
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", code, err, body)
	}
	if a.Workload.Cost != 4 || a.Serving == nil || len(a.Serving) > 0 || !strings.Contains(a.ServingError, "too slow") {
		t.Errorf("%+v", a)
	}
}

// Catches what had no engine as a model's cost, or as nothing, on the page.
func TestServingWithoutEngine(t *testing.T) {
	t.Parallel()
	store := servingHub(t)
	a := store.Appender(t.Context())
	for at := noon.Add(-time.Hour); !at.After(noon); at = at.Add(time.Minute) { // another GPU of the workload on the same machine
		l := labels.FromMap(map[string]string{
			fleet.LabelName: fleet.SeriesAllocatedTime, fleet.LabelUUID: "GPU-3", fleet.LabelModel: "NVIDIA H100", fleet.LabelHost: "n1",
			fleet.LabelKind: "deployment", fleet.LabelWorkload: "chat-red", fleet.LabelTeam: "red", fleet.LabelPodUID: "red",
		})
		a.Gauge(l, at.UnixMilli(), at.Sub(noon.Add(-time.Hour)).Seconds())
	}
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	code, body := get(t, Handler(store, Cost(store, servingPrices(t), nil), nil, at(noon)), "/serving?from=1794740400")
	var got struct {
		Total    struct{ Cost float64 }
		NoEngine struct{ Time, Cost float64 }
		Notes    []string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", code, err, body)
	}
	note := "These workloads also held GPUs for 1.0 GPU-hours, for 4.00 EUR, while no engine worked on them: in no model's cost."
	if got.Total.Cost != 8 || got.NoEngine.Time != 3600 || got.NoEngine.Cost != 4 || !slices.Contains(got.Notes, note) {
		t.Errorf("%+v", got)
	}
}

// sums are 4 EUR, of which the GPU was idle a quarter of the time, for 360,000 tokens in, of which 40 % were
// cached, and 36,000 out.
const sums = `{"time":3600,"energy":1800000,"cost":4,"idleCost":1,"tokensIn":360000,"tokensOut":36000,"tokensCached":144000,"requests":3600,"failed":null,"aborted":null,
	"perMillion":10.101,"perMillionOutput":111.111,"perMillionWeighted":50.5051,"tokensPerJoule":0.22,"outputPerJoule":0.02}`

// rounded rounds the numbers of a JSON text to six digits, and keeps the order of its keys.
func rounded(t *testing.T, text string) string {
	t.Helper()
	out := []byte{}
	for i := 0; i < len(text); {
		n := i
		for n < len(text) && (text[n] == '.' || text[n] == '-' || text[n] == '+' || text[n] == 'e' || text[n] >= '0' && text[n] <= '9') {
			n++
		}
		var v float64
		if n > i && (text[i-1] == ':' || text[i-1] == ',' || text[i-1] == '[') && json.Unmarshal([]byte(text[i:n]), &v) == nil {
			if v < 1e6 { // not a time
				v, _ = strconv.ParseFloat(sixDigits(v), 64)
			}
			out, i = strconv.AppendFloat(out, v, 'f', -1, 64), n
			continue
		}
		out, i = append(out, text[i]), i+1
	}
	return string(out)
}

// Catches a chart that Prometheus does not understand, counts an application's histogram, or shows another team, time per
// step as that per token, or all models for that without a name.
func TestServingCharts(t *testing.T) {
	t.Parallel()
	all := servingHub(t)
	a := all.Appender(t.Context())
	put := func(perMinute float64, more ...string) {
		l := map[string]string{fleet.LabelHost: "n1", fleet.LabelEngine: "more"}
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		for i := range 61 {
			a.Gauge(labels.FromMap(l), noon.Add(time.Duration(i-60)*time.Minute).UnixMilli(), 7+perMinute*float64(i))
		}
	}
	put(0, fleet.LabelName, fleet.SeriesRequests, fleet.LabelState, "running") // of an engine that does not say which model it serves
	for le, n := range map[string]float64{"0.1": 60, "+Inf": 60} {
		put(n, fleet.LabelName, fleet.Buckets(fleet.HistogramInterToken), fleet.LabelWeight, fleet.WeightToken, fleet.LabelBucket, le)
	}
	for le, n := range map[string]float64{"0.1": 0, "8": 600, "+Inf": 600} { // of steps
		put(n, fleet.LabelName, fleet.Buckets(fleet.HistogramInterToken), fleet.LabelWeight, "step", fleet.LabelBucket, le)
	}
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	of := func(store query.Store, chart, more string) map[string]string {
		t.Helper()
		h := Handler(store, Accounts{}, nil, at(noon))
		code, body := get(t, h, "/range?chart="+chart+"&from=1794743940&to=1794744000"+more)
		var a struct {
			Unit  string
			Names []string
			Lines [][]*float64
		}
		if err := json.Unmarshal([]byte(body), &a); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d, %v: %s", chart, code, err, body)
		}
		out := map[string]string{}
		for i, name := range a.Names {
			v := "null"
			if p := a.Lines[i][len(a.Lines[i])-1]; p != nil {
				v = sixDigits(*p)
			}
			out[name] = v + " " + a.Unit
		}
		return out
	}
	quantiles := map[string]string{"p50": "0.05 seconds", "p95": "0.095 seconds", "p99": "0.099 seconds"}
	for _, c := range []struct {
		store       query.Store
		chart, more string
		want        map[string]string
	}{
		{all, "serving-tokens", "", map[string]string{"In": "200 tokens", "Out": "20 tokens"}},
		{all, "serving-tokens", "&model=llama-blue", map[string]string{"In": "100 tokens", "Out": "10 tokens"}},
		{all, "serving-tokens", "&workload=deployment%2F%2F%2Fchat-blue%2F", map[string]string{"In": "100 tokens", "Out": "10 tokens"}},
		{hub.ScopedStore(all, access.Scope{Team: "red"}), "serving-tokens", "", map[string]string{"In": "100 tokens", "Out": "10 tokens"}},
		{all, "serving-queue", "&model=llama-red", map[string]string{"Running": "3 requests", "Waiting": "2 requests"}},
		{all, "serving-queue", "&model=", map[string]string{"Running": "7 requests"}},
		{all, "serving-itl", "", quantiles},
		{all, "serving-cache", "", map[string]string{"KV cache": "0.25 ratio", "Prefix hits": "0.4 ratio"}},
		{all, "serving-ttft", "", quantiles},
		{all, "serving-ttft", "&model=llama-red", quantiles},
		{all, "serving-latency", "", map[string]string{}},
		{all, "serving-tpot", "", map[string]string{}},
		{all, "serving-wait", "", map[string]string{}},
	} {
		if diff := cmp.Diff(c.want, of(c.store, c.chart, c.more)); diff != "" {
			t.Errorf("%s%s (-want +got):\n%s", c.chart, c.more, diff)
		}
	}
}

// Catches null instead of an empty list, and a fleet without engines that is asked for everything.
func TestServingNothing(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	h := Handler(m, Accounts{}, nil, at(noon))
	code, body := get(t, h, "/serving")
	want := `{"at":1794744000,"from":1794657600,"to":1794744000,"window":300,"inputWeight":0.2,"simulated":"","serving":[],
		"total":{"time":null,"energy":null,"cost":null,"idleCost":null,"tokensIn":null,"tokensOut":null,"tokensCached":null,"requests":null,"failed":null,"aborted":null,
		"perMillion":null,"perMillionOutput":null,"perMillionWeighted":null,"tokensPerJoule":null,"outputPerJoule":null}}`
	if diff := cmp.Diff(indent(t, want), indent(t, body)); diff != "" || code != http.StatusOK {
		t.Errorf("status %d (-want +got):\n%s", code, diff)
	}
	before := m.Asked()
	if _, err := serving.At(t.Context(), m, noon, time.Minute); err != nil || m.Asked()-before > 3 {
		t.Errorf("%v, %d queries about nothing", err, m.Asked()-before)
	}
}

func sixDigits(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
