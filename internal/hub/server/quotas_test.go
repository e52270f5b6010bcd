//go:build linux

package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Catches a source of quotas that is not asked as its owners do, limits that are lost
// while it is away, and a trouble that is told again and again.
func TestQuotaSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	api := kubeapitest.New()
	api.Put("/api/v1/resourcequotas", map[string]any{"kind": "ResourceQuotaList", "items": []any{map[string]any{
		"metadata": map[string]any{"name": "gpus", "namespace": "vision"},
		"spec":     map[string]any{"hard": map[string]any{"requests.nvidia.com/gpu": "8"}},
	}}})
	url, stop := api.Serve()
	defer stop()
	kubeconfig, err := kubeapitest.Kubeconfig(dir, url)
	if err != nil {
		t.Fatal(err)
	}
	programtest.Write(t, filepath.Join(dir, "sacctmgr"), "#!/bin/sh\n[ \"$*\" = '--readonly show assoc -p format=Cluster,Account,User,Partition,GrpTRES,GrpTRESMins' ] || exit 3\n"+
		"echo 'Cluster|Account|User|Partition|GrpTRES|GrpTRESMins|'\necho 'c1|physics|||gres/gpu=4|gres/gpu=600|'\necho 'c1|physics||debug|gres/gpu=1||'\n")
	file := filepath.Join(dir, "quotas.yaml")
	put(t, file, "quotas: [{team: nlp, gpus: 2}]")

	core, said := observer.New(zapcore.InfoLevel)
	q, err := newQuotas(t.Context(), []string{file, "kubernetes:" + kubeconfig, "slurm:" + dir}, local.Vendors(), cost.Prices{}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	names := func() string {
		var out []string
		for _, x := range q.all() {
			out = append(out, x.Source+" "+x.Name)
		}
		return strings.Join(out, ", ")
	}
	const want = "file nlp, kubernetes vision/gpus, slurm c1/physics, slurm c1/physics@debug"
	if got := names(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	api.Fail("/api/v1/resourcequotas", kubeapitest.Fault{Status: http.StatusForbidden})
	programtest.Write(t, filepath.Join(dir, "sacctmgr"), "#!/bin/sh\necho 'sacctmgr: error: no slurmdbd' >&2\nexit 1\n")
	for range 3 {
		for i := range q.sources {
			_ = q.refresh(t.Context(), i)
		}
	}
	if got := names(); got != want {
		t.Errorf("while sources are away: %s, want %s", got, want)
	}
	api.Heal()
	_ = q.refresh(t.Context(), 1)
	var log []string
	for _, e := range said.All() {
		reason, _ := e.ContextMap()["reason"].(string)
		log = append(log, e.Message+" "+reason)
	}
	if len(log) != 3 || !strings.Contains(log[0], "403") || !strings.Contains(log[1], "no slurmdbd") || !strings.Contains(log[2], "again") {
		t.Errorf("%q", log)
	}
	if _, err := newQuotas(t.Context(), []string{filepath.Join(dir, "none")}, nil, cost.Prices{}, zap.NewNop()); err == nil {
		t.Error("a file that is not there is no error")
	}
}

// Catches a quota whose use is in no series, on no page and no event, one that never ends,
// and a team that sees those of others.
func TestQuotasAreTold(t *testing.T) {
	t.Parallel()
	store, err := hub.Open(t.TempDir(), hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	now := time.Now().Truncate(time.Second)
	hold := func(at time.Time, teams ...string) {
		t.Helper()
		a := store.Appender(t.Context())
		for i, team := range teams {
			a.Gauge(promlabels.FromStrings("__name__", "gpu_allocation_ratio", "gpu_uuid", string(rune('a'+i)), "gpu_workload_kind", "job", "gpu_workload_name", "x",
				"gpu_workload_team", team), at.UnixMilli(), 1)
		}
		if _, err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "quotas.yaml")
	put(t, file, "quotas: [{team: nlp, gpus: 1}, {team: vision, gpus: 4}]")
	q, err := newQuotas(t.Context(), []string{file}, nil, cost.Prices{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{log: zap.NewNop(), store: store}
	for i := range 3 { // the third is in time, which events need
		at := now.Add(time.Duration(i-3) * time.Minute)
		hold(at, "nlp", "nlp", "vision")
		if err := s.judgeQuotas(t.Context(), store, q, at); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(expr string) map[string]float64 {
		t.Helper()
		list, err := store.Instant(t.Context(), expr, now)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, x := range list {
			out[x.Labels["gpu_workload_team"]+" "+x.Labels["unit"]+" "+x.Labels["source"]] = x.Value
		}
		return out
	}
	if diff := cmp.Diff(map[string]float64{"nlp gpus file": 2, "vision gpus file": 1}, ask("gpumeter_quota_used")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]float64{"nlp gpus file": 2}, ask("gpumeter_quota_used > gpumeter_quota_limit")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]float64{"nlp gpus file": 1}, ask(`gpumeter_fleet_finding{rule="fleet_over_quota"}`)); diff != "" {
		t.Error(diff)
	}
	told := func() []string {
		t.Helper()
		list, err := store.Events(t.Context(), events.Query{From: now.Add(-time.Hour), To: now.Add(time.Hour), Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range list {
			out = append(out, e.Attributes["gpu.workload.team"]+" "+e.Attributes["gpu.finding.state"]+": "+e.Attributes["gpu.finding.reason"])
		}
		return out
	}
	if diff := cmp.Diff([]string{"nlp open: nlp uses 2 GPUs, its quota is 1"}, told()); diff != "" {
		t.Error(diff)
	}
	if list := q.watch.Alerts(); len(list) != 1 || list[0].Labels["gpu_workload_team"] != "nlp" {
		t.Errorf("alerts: %+v", list)
	}
	if families, err := hub.NewRegistry(hub.Gauges(q.gauges)).Gather(); err != nil || len(families) != 2 || len(families[0].GetMetric()) != 2 {
		t.Errorf("metrics: %v %v", families, err)
	}
	page := func(team string) []string {
		t.Helper()
		var of query.Store = store
		if team != "" {
			of = hub.ScopedStore(store, access.Scope{Team: team})
		}
		w := httptest.NewRecorder()
		q.view("", nil)(access.Scope{Team: team}, of, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/cost", nil))
		var answer struct {
			Quotas []struct {
				Team        string
				Used, Limit float64
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatal(err, w.Body)
		}
		var out []string
		for _, x := range answer.Quotas {
			out = append(out, x.Team)
		}
		return out
	}
	if diff := cmp.Diff([]string{"nlp", "vision"}, page("")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"nlp"}, page("nlp")); diff != "" {
		t.Error(diff)
	}
	// It gives one back, and the other quota is taken out of the file.
	put(t, file, "quotas: [{team: nlp, gpus: 3}]")
	q.read = time.Time{}
	for i := range 2 {
		hold(now.Add(time.Duration(i-1)*time.Second), "nlp", "nlp", "vision")
		if err := s.judgeQuotas(t.Context(), store, q, now.Add(time.Duration(i-1)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]float64{"nlp gpus file": 2}, ask("gpumeter_quota_used")); diff != "" {
		t.Error(diff)
	}
	if got := told(); len(got) != 2 || !strings.Contains(got[0], "closed") {
		t.Errorf("%q", got)
	}
}
