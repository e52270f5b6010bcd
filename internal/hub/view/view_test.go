package view

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/triage"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// noon is the current time of these tests.
var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// faulty is a store that can be made to fail.
type faulty struct {
	*querytest.Memory
	err error
}

func (f *faulty) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.Memory.Instant(ctx, expr, at)
}

// three returns a store with a busy GPU, a held but idle GPU and a free, lost GPU.
func three() *faulty {
	m := querytest.NewMemory()
	labels := func(name string, lists ...[]string) query.Labels {
		l := query.Labels{fleet.LabelName: name}
		for _, pairs := range lists {
			for i := 0; i < len(pairs); i += 2 {
				l[pairs[i]] = pairs[i+1]
			}
		}
		return l
	}
	a := []string{"gpu_uuid", "GPU-a", "gpu_index", "9", "gpu_model", "NVIDIA H100", "gpu_vendor", "nvidia", "host_name", "n2", "k8s_cluster_name", "eu", "rack", "r1"}
	b := []string{"gpu_uuid", "GPU-b", "gpu_index", "10", "gpu_model", "NVIDIA H100", "gpu_vendor", "nvidia", "host_name", "n2"}
	c := []string{"gpu_uuid", "GPU-c", "gpu_index", "0", "gpu_model", "AMD MI300X", "gpu_vendor", "amd", "host_name", "n10", "gpumeter_simulated", "true"}
	job := []string{"gpu_workload_kind", "job", "gpu_workload_name", "train", "gpu_workload_team", "vision", "k8s_namespace_name", "ml", "k8s_cluster_name", "eu"}
	slurm := []string{"gpu_workload_kind", "slurm_job", "gpu_workload_name", "md", "slurm_job_id", "7", "slurm_cluster", "hpc", "slurm_user", "ines"}
	gone := []string{"gpu_workload_kind", "job", "gpu_workload_name", "gone"}
	for _, s := range []struct {
		name string
		of   []string
		v    float64
	}{
		{fleet.SeriesUp, a, 1},
		{fleet.SeriesUp, b, 1},
		{fleet.SeriesUp, c, 0},
		{fleet.SeriesHealth, a, 1},
		{fleet.SeriesHealth, b, 0.5},
		{fleet.SeriesHealth, c, 0},
		{fleet.SeriesUtilization, b, 0.01},
		{fleet.SeriesMemoryUsed, a, 64 << 30},
		{fleet.SeriesMemoryUsed, b, 1 << 30},
		{fleet.SeriesMemoryTotal, a, 80 << 30},
		{fleet.SeriesMemoryTotal, b, 80 << 30},
		{fleet.SeriesMemoryTotal, c, 192 << 30},
		{fleet.SeriesPower, a, 612.5},
		{fleet.SeriesPower, b, 71},
		{fleet.SeriesTemperature, a, 66},
		{fleet.SeriesTemperature, b, 34},
		{fleet.SeriesAllocation, slices.Concat(a, job), 1},
		{fleet.SeriesAllocation, slices.Concat(b, slurm), 1},
		{fleet.SeriesWorkloadUtilization, slices.Concat(a, job), 0.875},
	} {
		m.Add(labels(s.name, s.of), noon, s.v)
	}
	m.Add(labels(fleet.SeriesUtilization, a), noon.Add(-20*time.Second), 0.5)
	m.Add(labels(fleet.SeriesUtilization, a), noon.Add(-15*time.Second), math.NaN())
	m.Add(labels(fleet.SeriesUtilization, a), noon, 0.875)
	for i := range 16 { // used in the first minute of fifteen
		m.Add(labels(fleet.SeriesActiveTime, b, slurm), noon.Add(time.Duration(i-15)*time.Minute), min(float64(i), 1)*60)
	}
	m.Add(labels(fleet.SeriesActiveTime, b, gone), noon.Add(-2*time.Minute), 0)
	m.Add(labels(fleet.SeriesActiveTime, b, gone), noon.Add(-time.Minute), 30)
	m.Add(labels(fleet.SeriesActiveTime, b, gone), noon.Add(-50*time.Second), math.NaN())
	return &faulty{Memory: m}
}

// statement returns the bill of these rows.
func statement(rows ...cost.Row) cost.Statement {
	s := cost.Statement{Currency: "EUR", Rows: rows}
	for i := range rows {
		s.Total = s.Total.Add(rows[i].Amounts)
		if rows[i].Labels[fleet.LabelKind] == fleet.KindUnattributed {
			s.Unattributed = s.Unattributed.Add(rows[i].Amounts)
		}
	}
	return s
}

// priced returns accounts with a price and the bill of one job.
func priced() Accounts {
	train := fleet.Owner{ID: "job/eu/ml/train/", Kind: "job", Name: "train", Team: "vision", Namespace: "ml", Cluster: "eu"}
	return Accounts{
		Currency: "EUR",
		Price: func(l query.Labels, _ time.Time) (fleet.Hourly, bool) {
			return fleet.Hourly{Device: 2}, l["gpu_vendor"] == "nvidia"
		},
		Bill: func(_ context.Context, from, to time.Time) (*Bill, error) {
			held := cost.Seconds(to.Sub(from).Microseconds())
			busy := cost.Row{Labels: query.Labels{
				"gpu_uuid": "GPU-a", "gpu_model": "NVIDIA H100", "host_name": "n2", "gpu_workload_kind": "job", "gpu_workload_name": "train",
				"gpu_workload_team": "vision", "k8s_namespace_name": "ml", "k8s_cluster_name": "eu",
			}}
			busy.Amounts = cost.Amounts{Used: held * 3 / 4, Idle: held / 4, Energy: 3.6e9, Carbon: 350e3, UsedCost: 30e6, IdleCost: 12e6, EnergyCost: 6e6}
			free := cost.Row{Labels: query.Labels{"gpu_uuid": "GPU-c", "gpu_model": "AMD MI300X", "host_name": "n10", "gpu_workload_kind": "unallocated"}}
			free.Amounts = cost.Amounts{Unallocated: held, Unpriced: held}
			return billOf(statement(busy, free)), nil
		},
		Findings: func(context.Context, *Bill, sizing.Facts) ([]Finding, error) {
			return []Finding{
				{Rule: "b", Title: "no price", PerDay: number(absent)},
				{Rule: "a", Title: "Held and idle", Detail: "d", Owner: &train, GPUs: []GPURef{{UUID: "GPU-b"}}, PerDay: 48},
			}, nil
		},
		Quotas: func(context.Context, time.Time) ([]Quota, error) {
			return []Quota{{Team: "vision", What: "GPUs", Source: "file", Used: 2, Limit: 1, Over: true}}, nil
		},
	}
}

// log has two findings, one of them closed, and a start event.
type log struct{}

func (log) Events(_ context.Context, q events.Query) ([]events.Event, error) {
	of := func(minute int, name, state, rule string) events.Event {
		return events.Event{
			Time: noon.Add(-time.Duration(minute) * time.Minute), Name: name, Severity: "WARN", Body: rule + " " + state,
			Attributes: map[string]string{"gpu.uuid": "GPU-b", "gpu.index": "10", "host.name": "n2", "gpu.finding.rule": rule, "gpu.finding.state": state, "gpu.workload.kind": "job", "gpu.workload.name": "train"},
		}
	}
	all := []events.Event{of(1, "gpu.finding", "closed", "heat"), of(2, "gpu.finding", "open", "ecc"), of(3, "gpu.finding", "open", "heat"), of(4, "gpu.workload.start", "", "")}
	var out []events.Event
	for _, e := range all {
		if len(q.Names) == 0 || q.Names[0] == e.Name {
			out = append(out, e)
		}
	}
	return out[:min(len(out), q.Limit)], nil
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func indent(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(text), "", " "); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return b.String()
}

func at(now time.Time) Options {
	return Options{Now: func() time.Time { return now }, ShortModel: func(model string) string { return strings.TrimPrefix(model, "NVIDIA ") }}
}

// Compares whole responses. Catches a lost field, a wrong join, an unstable order, a NaN
// encoded as 0, GPU 10 sorted before GPU 9.
func TestAnswers(t *testing.T) {
	o := at(noon)
	file := filepath.Join(t.TempDir(), "triage.json")
	if err := os.WriteFile(file, []byte(`[{"finding":"141656df3403fa44","until":"2026-11-15T13:00:00Z","by":"ops","at":"2026-11-15T11:00:00Z","comment":"known"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if o.Marks, err = triage.Load(file, o.Now); err != nil {
		t.Fatal(err)
	}
	h := Handler(three(), priced(), log{}, o)
	f := func(path, want string) {
		t.Helper()
		code, body := get(t, h, path)
		if code != http.StatusOK {
			t.Errorf("%s: status %d: %s", path, code, body)
			return
		}
		if diff := cmp.Diff(indent(t, want), indent(t, body)); diff != "" {
			t.Errorf("%s, -want +got:\n%s\n%s", path, diff, body)
		}
	}
	const (
		md    = `{"id":"slurm_job/hpc//md/7","kind":"slurm_job","name":"md","cluster":"hpc","job":"7","user":"ines"}`
		train = `{"id":"job/eu/ml/train/","kind":"job","name":"train","team":"vision","namespace":"ml","cluster":"eu"}`
		used  = `"time":86400,"heldTime":86400,"usedTime":64800,"idleTime":21600,"unmeasuredTime":0,"freeTime":0,"energy":3.6e+06,"co2":350,
			"cost":48,"usedCost":30,"idleCost":12,"unmeasuredCost":0,"freeCost":0,"energyCost":6`
	)
	f("/fleet", `{"at":1794744000,"currency":"EUR","idleAfter":10,
		"headline":{"gpus":3,"silent":0,"held":2,"idle":1,"free":1,"sick":1,"warning":1,"uninvited":0,"simulated":1,"nodes":3,"silentNodes":0,"owners":2,"teams":1,
			"watts":683.5,"utilization":0.4425,"lostPerDay":48,"costPerHour":4,"silentPerHour":0},
		"owners":[`+train+`,`+md+`],
		"texts":["AMD MI300X","NVIDIA H100","H100","amd","nvidia","n10","n2","","eu","hpc","r1"],
		"gpus":{"uuid":["GPU-c","GPU-a","GPU-b"],"index":[0,9,10],"model":[0,1,1],"shortModel":[0,2,2],"vendor":[3,4,4],"node":[5,6,6],"cluster":[7,8,9],"rack":[7,10,7],"since":{},
			"health":[-1,1,0.5],"utilization":[null,0.875,0.01],"memory":[null,6.872e+10,1.074e+09],"memoryTotal":[2.062e+11,8.59e+10,8.59e+10],
			"power":[null,612.5,71],"temperature":[null,66,34],"held":[0,1,1],"idle":[null,0,14],"rate":[null,2,2],"heldRate":[null,2,2],"owners":[[],[0],[1]],"uninvited":{},"simulated":[0]}}`)
	f("/workloads", `{"at":1794744000,"from":1794657600,"to":1794744000,"currency":"EUR","simulated":"some","workloads":[
		{`+train[1:len(train)-1]+`,"gpus":1,"models":["H100"],"nodes":["n2"],"uninvited":0,"idle":0,"sick":0,"utilization":0.875,"memory":null,"watts":null,"perHour":2,
			`+used+`},
		{`+md[1:len(md)-1]+`,"gpus":1,"models":["H100"],"nodes":["n2"],"uninvited":0,"idle":1,"sick":0,"utilization":null,"memory":null,"watts":null,"perHour":2,
			"time":null,"heldTime":null,"usedTime":null,"idleTime":null,"unmeasuredTime":null,"freeTime":null,"energy":null,"co2":null,"cost":null,"usedCost":null,"idleCost":null,"unmeasuredCost":null,"freeCost":null,"energyCost":null}]}`)
	f("/events?limit=3", `{"from":1794657600,"to":1794744000,"kept":true,"more":true,"simulated":"some",
		"open":[{"time":1794743880000,"name":"gpu.finding","severity":"WARN","text":"ecc open","gpu":"GPU-b","index":"10","node":"n2",
			"owner":`+train+`,"rule":"ecc","state":"open","id":"141656df3403fa44","mark":{"by":"ops","comment":"known","until":1794747600}}],
		"events":[{"time":1794743940000,"name":"gpu.finding","severity":"WARN","text":"heat closed","gpu":"GPU-b","index":"10","node":"n2",
			"owner":`+train+`,"rule":"heat","state":"closed"},
			{"time":1794743880000,"name":"gpu.finding","severity":"WARN","text":"ecc open","gpu":"GPU-b","index":"10","node":"n2",
			"owner":`+train+`,"rule":"ecc","state":"open"},
			{"time":1794743820000,"name":"gpu.finding","severity":"WARN","text":"heat open","gpu":"GPU-b","index":"10","node":"n2",
			"owner":`+train+`,"rule":"heat","state":"open"}]}`)
	f("/cost", `{"from":1794657600,"to":1794744000,"currency":"EUR","priced":true,"timeZone":"UTC",
		"total":{"time":172800,"heldTime":86400,"usedTime":64800,"idleTime":21600,"unmeasuredTime":0,"freeTime":86400,"energy":3.6e+06,"co2":350,
			"cost":48,"usedCost":30,"idleCost":12,"unmeasuredCost":0,"freeCost":0,"energyCost":6},
		"simulated":"","teams":[{"team":"vision",`+used+`},
			{"team":"(unallocated)","time":86400,"heldTime":0,"usedTime":0,"idleTime":0,"unmeasuredTime":0,"freeTime":86400,"energy":0,"co2":null,
				"cost":null,"usedCost":null,"idleCost":null,"unmeasuredCost":null,"freeCost":null,"energyCost":null}],
		"quotas":[{"team":"vision","what":"GPUs","source":"file","used":2,"limit":1,"over":true}]}`)
	f("/waste", `{"currency":"EUR","findings":[{"rule":"a","title":"Held and idle","detail":"d","owner":`+train+`,"gpus":[{"uuid":"GPU-b","name":"n2 · GPU 10"}],"perDay":48},
			{"rule":"b","title":"no price","detail":"","perDay":null}]}`)
	f("/search?q=N2+h100", `{"query":"N2 h100","more":false,"hits":[
		{"type":"node","id":"n2","title":"n2","detail":"1 GPU · NVIDIA H100 · eu"},
		{"type":"node","id":"n2","title":"n2","detail":"1 GPU · NVIDIA H100 · hpc"},
		{"type":"gpu","id":"GPU-a","title":"n2 GPU 9","detail":"NVIDIA H100 · train"},
		{"type":"gpu","id":"GPU-b","title":"n2 GPU 10","detail":"NVIDIA H100 · md"}]}`)
	f("/search?q=ines", `{"query":"ines","more":false,"hits":[{"type":"workload","id":"slurm_job/hpc//md/7","title":"md","detail":"slurm_job · 1 GPU"}]}`)
	f("/range?chart=gpu-utilization&gpu=GPU-a&from=1794743970&to=1794744000", `{"unit":"ratio","times":[1794743970,1794743980,1794743990,1794744000],
		"names":["Busy"],"lines":[[null,0.5,null,0.875]],"more":false}`)
}

// Catches a wrong field on the pages of one GPU and one workload.
func TestDetails(t *testing.T) {
	h := Handler(three(), priced(), nil, at(noon))
	f := func(path string, parts ...string) {
		t.Helper()
		code, body := get(t, h, path)
		if code != http.StatusOK {
			t.Errorf("%s: status %d: %s", path, code, body)
		}
		for _, p := range parts {
			if !strings.Contains(body, p) {
				t.Errorf("%s has no %s:\n%s", path, p, body)
			}
		}
	}
	f("/gpu?uuid=GPU-b", `"gpu":{"uuid":["GPU-b"]`, `"peers":{"uuid":["GPU-b"`, `"idle":[14`)
	f("/workload?id=job%2Feu%2Fml%2Ftrain%2F", `"perGPU":[{"gpu":"GPU-a","index":"9"`, `"findings":[{"rule":"a"`, `"gpus":{"uuid":["GPU-a"]`)
	f("/events", `"kept":false`)
}

// Catches an invalid request reported as a server error.
func TestRefused(t *testing.T) {
	store := three()
	h := Handler(store, Accounts{}, nil, at(noon))
	f := func(path string, want int) {
		t.Helper()
		if code, body := get(t, h, path); code != want || !strings.Contains(body, `"error":`) {
			t.Errorf("%s: status %d, want %d: %s", path, code, want, body)
		}
	}
	f("/fleet?at=noon", http.StatusBadRequest)
	f("/fleet?at=-5", http.StatusBadRequest)
	f("/workloads?from=20&to=10", http.StatusBadRequest)
	f("/workloads?from=1&to=1794744000", http.StatusBadRequest)
	f("/gpu?uuid=GPU-x", http.StatusNotFound)
	f("/workload?id=nothing", http.StatusBadRequest)
	f("/workload?id=job%2F%2F%2Fx%2F", http.StatusNotFound)
	f("/range?chart=up", http.StatusBadRequest)
	f("/search?q="+strings.Repeat("x", 201), http.StatusBadRequest)
	store.err = errors.New("store unavailable")
	f("/fleet?at=1794000000", http.StatusBadGateway)
	store.err = context.DeadlineExceeded
	f("/fleet?at=1794000000", http.StatusGatewayTimeout)
}

// Catches a popular page that queries the store on every request, and a cached error.
func TestRemembers(t *testing.T) {
	store := three()
	now := noon
	h := Handler(store, Accounts{}, nil, Options{Now: func() time.Time { return now }})
	store.err = errors.New("store unavailable")
	if code, _ := get(t, h, "/fleet"); code != http.StatusBadGateway {
		t.Errorf("status %d", code)
	}
	store.err = nil
	for range 3 {
		if code, body := get(t, h, "/fleet"); code != http.StatusOK {
			t.Errorf("after the error: status %d: %s", code, body)
		}
	}
	once := store.Asked()
	now = now.Add(2 * time.Second)
	if _, _ = get(t, h, "/fleet"); store.Asked() != once {
		t.Errorf("the store was queried %d times, then %d times", once, store.Asked())
	}
	now = now.Add(freshness)
	if _, _ = get(t, h, "/fleet"); store.Asked() == once {
		t.Error("a stale fleet is served from the cache")
	}
}

// Catches a client that disconnects and cancels the computation others wait for.
func TestGoneAway(t *testing.T) {
	var m memory[int, string]
	asked, answer := make(chan struct{}), make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() {
		_, _ = m.get(ctx, 1, noon, time.Minute, func(ctx context.Context) (string, error) {
			close(asked)
			<-answer
			return "here", ctx.Err()
		})
	})
	<-asked
	leave()
	close(answer)
	got, err := m.get(t.Context(), 1, noon, time.Minute, func(context.Context) (string, error) { return "computed again", nil })
	if got != "here" || err != nil {
		t.Errorf("the second request gets %q, %v", got, err)
	}
	first.Wait()
}

// Catches a large response sent uncompressed to a client that accepts gzip.
func TestCompressed(t *testing.T) {
	h := Handler(three(), Accounts{}, nil, at(noon))
	_, want := get(t, h, "/range?chart=gpu-power&from=1794700000&to=1794744000")
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/range?chart=gpu-power&from=1794700000&to=1794744000", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	h.ServeHTTP(w, r)
	if len(want) < 1400 || w.Header().Get("Content-Encoding") != "gzip" {
		t.Fatalf("%d bytes have Content-Encoding %q", len(want), w.Header().Get("Content-Encoding"))
	}
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(z)
	if err != nil || string(got) != want {
		t.Errorf("%v: got %s", err, got)
	}
}

// Catches an empty store reported as an error, and null instead of an empty list in the JSON,
// which breaks the page.
func TestEmpty(t *testing.T) {
	h := Handler(querytest.NewMemory(), Accounts{}, nil, at(noon))
	for _, path := range []string{"/fleet", "/workloads", "/events", "/cost", "/search?q=x", "/range?chart=fleet-use"} {
		code, body := get(t, h, path)
		var v map[string]any
		if err := json.Unmarshal([]byte(body), &v); err != nil || code != http.StatusOK {
			t.Errorf("%s: status %d, %v: %s", path, code, err, body)
		}
		for _, list := range []string{"owners", "texts", "workloads", "events", "open", "teams", "findings", "quotas", "hits", "times", "names", "lines"} {
			if got, ok := v[list]; ok && got == nil {
				t.Errorf("%s: %s is null", path, list)
			}
		}
	}
}
