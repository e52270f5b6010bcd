package hub

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

const testTokens = `
# comment
read   read-0123456789abcdef
write  write-0123456789abcdef
team   team-0123456789abcdef   red team
team   blue-0123456789abcdef   blue
read   space-0123456789abcdef  namespace=lab cluster=prod
admin  admin-0123456789abcdef
`

// twoTeams returns a store with the series of two teams.
func twoTeams(t *testing.T) *Store {
	t.Helper()
	s := openTest(t, t.TempDir(), Options{})
	a := s.Appender(t.Context())
	for _, team := range []string{"red team", "blue"} {
		a.Gauge(name("gpu_power_draw_watts", TeamLabel, team, "gpu_uuid", "GPU-"+team), ago(time.Second), 100)
		a.Gauge(name("own_"+team[:3], TeamLabel, team), ago(time.Second), 1)
	}
	a.Gauge(name("gpu_power_draw_watts", "gpu_uuid", "GPU-free"), ago(time.Second), 50)
	for _, cluster := range []string{"prod", "test"} { // with the same namespace
		a.Gauge(name("gpu_workload_power_draw_watts", "k8s_namespace_name", "lab", "k8s_cluster_name", cluster), ago(time.Second), 7)
	}
	commit(t, a)
	for _, n := range []string{"gpu_power_draw_watts", "own_red", "own_blu"} {
		s.Describe(n, Family{Type: "gauge"})
	}
	if err := s.AppendEvents(t.Context(), []events.Event{
		{Time: now.Add(-time.Minute), Name: "e", Attributes: map[string]string{TeamAttribute: "red team"}},
		{Time: now.Add(-time.Minute), Name: "e", Attributes: map[string]string{TeamAttribute: "blue"}},
		{Time: now.Add(-time.Minute), Name: "e"},
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

func ask(t *testing.T, h http.Handler, token, method, path string, form url.Values) (int, string, http.Header) {
	t.Helper()
	target := path
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(form.Encode())
	} else if form != nil {
		target += "?" + form.Encode()
	}
	r := httptest.NewRequestWithContext(t.Context(), method, target, body)
	if body != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String()), w.Header()
}

func at(form url.Values) url.Values {
	form.Set("time", now.Format(time.RFC3339Nano))
	return form
}

// Catches any path by which a team sees another team's series, and an answer that differs
// from Prometheus' form.
func TestTeams(t *testing.T) {
	tokens, err := access.ParseTokens([]byte(testTokens))
	if err != nil {
		t.Fatal(err)
	}
	s := twoTeams(t)
	viewed := []string{}
	h := NewHandler(s, s, HandlerOptions{
		Tokens: tokens, Refusals: s.Refusals(),
		Alerts: func() []Alert {
			return []Alert{{Labels: map[string]string{TeamLabel: "blue"}}, {Labels: map[string]string{}}}
		},
		View: func(scope access.Scope, store query.Store, log events.Log) http.Handler {
			viewed = append(viewed, scope.String())
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got, err := store.Instant(r.Context(), "sum(gpu_power_draw_watts)", now)
				list, other := log.Events(r.Context(), events.Query{})
				sum := 0.0
				for _, x := range got {
					sum += x.Value
				}
				_ = json.NewEncoder(w).Encode([]any{r.URL.Path, sum, len(list), errors.Join(err, other) == nil})
			})
		},
	})
	const team, all, space = "team-0123456789abcdef", "read-0123456789abcdef", "space-0123456789abcdef"
	for _, c := range []struct {
		path, token string
		form        url.Values
		want        string
	}{
		{"/api/v1/query", all, at(url.Values{"query": {"sum(gpu_power_draw_watts)"}}), `[{"metric":{},"value":[1772889255.161,"250"]}]`},
		{"/api/v1/query", team, at(url.Values{"query": {"sum(gpu_power_draw_watts)"}}), `[{"metric":{},"value":[1772889255.161,"100"]}]`},
		{"/api/v1/query", team, at(url.Values{"query": {`sum(gpu_power_draw_watts{gpu_workload_team="blue"})`}}), `[]`},
		{"/api/v1/query", team, at(url.Values{"query": {`sum(gpu_power_draw_watts{gpu_workload_team="blue"} or gpu_power_draw_watts)`}}), `[{"metric":{},"value":[1772889255.161,"100"]}]`},
		{"/api/v1/query", team, at(url.Values{"query": {`max_over_time(sum(gpu_power_draw_watts)[1m:1s])`}}), `[{"metric":{},"value":[1772889255.161,"100"]}]`},
		{"/api/v1/query", team, at(url.Values{"query": {`{__name__=~"own.*"}`}}), `[{"metric":{"__name__":"own_red","gpu_workload_team":"red team"},"value":[1772889255.161,"1"]}]`},
		{"/api/v1/query_range", team, url.Values{"query": {`count({__name__=~".+"})`}, "start": {"1772889255"}, "end": {"1772889256"}, "step": {"1"}}, `[{"metric":{},"values":[[1772889255,"2"],[1772889256,"2"]]}]`},
		{"/api/v1/series", team, url.Values{"match[]": {`{__name__=~"own.*"}`, `own_blu`}}, `[{"__name__":"own_red","gpu_workload_team":"red team"}]`},
		{"/api/v1/labels", team, url.Values{}, `["__name__","gpu_uuid","gpu_workload_team"]`},
		{"/api/v1/label/gpu_uuid/values", team, url.Values{}, `["GPU-red team"]`},
		{"/api/v1/label/gpu_uuid/values", all, url.Values{}, `["GPU-blue","GPU-free","GPU-red team"]`},
		{"/api/v1/label/__name__/values", team, url.Values{"match[]": {`{gpu_workload_team="blue"}`}}, `[]`},
		{"/api/v1/alerts", team, nil, `{"alerts":[]}`},
		{"/api/v1/query", space, at(url.Values{"query": {`sum(gpu_workload_power_draw_watts)`}}), `[{"metric":{},"value":[1772889255.161,"7"]}]`},
		{"/api/v1/query", space, at(url.Values{"query": {`sum(gpu_power_draw_watts or gpu_workload_power_draw_watts{k8s_cluster_name="test"})`}}), `[]`},
		{"/api/v1/series", space, url.Values{"match[]": {`{__name__=~".+"}`}}, `[{"__name__":"gpu_workload_power_draw_watts","k8s_cluster_name":"prod","k8s_namespace_name":"lab"}]`},
		{"/api/v1/labels", space, url.Values{}, `["__name__","k8s_cluster_name","k8s_namespace_name"]`},
		{"/api/events", space, url.Values{"start": {"0"}, "end": {"2000000000"}}, `"data":[]`},
		{"/api/events", team, url.Values{"start": {"0"}, "end": {"2000000000"}, "attr.gpu.workload.team": {"blue"}}, `"data":[]`},
		{"/api/page/fleet", team, nil, `["/fleet",100,1,true]`},
		{"/api/page/fleet", all, nil, `["/fleet",250,3,true]`},
		{"/api/page/fleet", space, nil, `["/fleet",0,0,true]`},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			code, body, _ := ask(t, h, c.token, method, c.path, c.form)
			if code != http.StatusOK || !strings.Contains(body, c.want) {
				t.Errorf("%s %s %s: %d\n got %s\nwant %s", c.token[:4], c.path, c.form, code, body, c.want)
			}
		}
	}
	if diff := cmp.Diff([]string{"red team", "", "prod/lab"}, viewed); diff != "" {
		t.Error("views are recreated or shared:", diff)
	}
	if code, _, _ := ask(t, h, team, http.MethodGet, "/metrics", nil); code == http.StatusOK {
		t.Error("a team sees the hub's own metrics")
	}
}

// Catches an unprotected path, a missing header, and refusals that are not counted.
func TestDoors(t *testing.T) {
	tokens, err := access.ParseTokens([]byte(testTokens))
	if err != nil {
		t.Fatal(err)
	}
	s := twoTeams(t)
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	o := HandlerOptions{
		Tokens: tokens, Refusals: s.Refusals(), Registry: s.Registry(), UI: ok, OTLP: ok,
		View: func(access.Scope, query.Store, events.Log) http.Handler { return ok },
	}
	h := NewHandler(s, s, o)
	const read, write, team = "read-0123456789abcdef", "write-0123456789abcdef", "team-0123456789abcdef"
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/healthz", "", 200},
		{"GET", "/readyz", "", 200},
		{"GET", "/", "", 200},
		{"GET", "/api/v1/query?query=1", "", 401},
		{"GET", "/api/v1/query?query=1", "wrong-0123456789abcdef", 401},
		{"GET", "/api/v1/query?query=1", write, 403},
		{"GET", "/api/v1/query?query=1", read, 200},
		{"GET", "/api/page/fleet", "", 401},
		{"GET", "/api/page/fleet", write, 403},
		{"GET", "/api/anything", "", 401},
		{"GET", "/api/anything", read, 404},
		{"GET", "/metrics", "", 401},
		{"GET", "/metrics", read, 200},
		{"GET", "/metrics", team, 403},
		{"POST", "/v1/metrics", "", 401},
		{"POST", "/v1/metrics", read, 403},
		{"POST", "/v1/metrics", team, 403},
		{"POST", "/v1/metrics", write, 200},
		{"DELETE", "/api/v1/query", read, 404},
	} {
		code, body, head := ask(t, h, c.token, c.method, c.path, nil)
		if code != c.want {
			t.Errorf("%s %s with %.5q: %d %s, want %d", c.method, c.path, c.token, code, body, c.want)
		}
		if head.Get("X-Content-Type-Options") != "nosniff" || head.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s has no security headers", c.path)
		}
		if strings.HasPrefix(c.path, "/api") && head.Get("Content-Security-Policy") == "" {
			t.Errorf("%s has no content security policy", c.path)
		}
	}
	if got := s.Refusals().Count(Unauthorized); got != 6 {
		t.Errorf("%d counted as unauthorized", got)
	}
	if got := s.Refusals().Count(Forbidden); got != 5 {
		t.Errorf("%d counted as forbidden", got)
	}
	local := NewHandler(s, s, HandlerOptions{LocalOnly: true})
	for host, want := range map[string]int{"localhost:9500": 200, "127.0.0.1:9500": 200, "[::1]:9500": 200, "evil.example:9500": 403, "": 403} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if local.ServeHTTP(w, r); w.Code != want {
			t.Errorf("host %q: %d, want %d", host, w.Code, want)
		}
	}
}

// Catches a wrong error class, which makes clients retry or give up wrongly.
func TestQueryErrors(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{MaxSamples: 10})
	h := NewHandler(s, s, HandlerOptions{Refusals: s.Refusals()})
	long := url.Values{"query": {"vector(1)"}, "start": {"0"}, "end": {"1000000"}, "step": {"1"}}
	for _, c := range []struct {
		path string
		form url.Values
		want int
		kind string
	}{
		{"/api/v1/query", url.Values{"query": {"sum("}}, 400, "bad_data"},
		{"/api/v1/query", url.Values{}, 400, "bad_data"},
		{"/api/v1/query", url.Values{"query": {"1"}, "time": {"yesterday"}}, 400, "bad_data"},
		{"/api/v1/query", url.Values{"query": {"1"}, "timeout": {"x"}}, 400, "bad_data"},
		{"/api/v1/query", url.Values{"query": {`vector(1) + on() group_left() (label_replace(vector(1),"a","b","","") or vector(1))`}}, 422, "execution"},
		{"/api/v1/query_range", long, 400, "bad_data"},
		{"/api/v1/query_range", url.Values{"query": {"1"}, "start": {"5"}, "end": {"1"}, "step": {"1"}}, 400, "bad_data"},
		{"/api/v1/query_range", url.Values{"query": {"1"}, "start": {"1"}, "end": {"5"}, "step": {"0"}}, 400, "bad_data"},
		{"/api/v1/query_range", url.Values{"query": {"1"}, "start": {"1"}, "end": {"500"}, "step": {"1"}}, 422, "execution"},
		{"/api/v1/series", url.Values{}, 400, "bad_data"},
		{"/api/v1/series", url.Values{"match[]": {"{"}}, 400, "bad_data"},
		{"/api/v1/labels", url.Values{"limit": {"-1"}}, 400, "bad_data"},
		{"/api/v1/query", url.Values{"query": {strings.Repeat("x", maxForm)}}, 413, "bad_data"},
	} {
		code, body, _ := ask(t, h, "", http.MethodPost, c.path, c.form)
		if code != c.want || !strings.Contains(body, `"errorType":"`+c.kind+`"`) {
			t.Errorf("%s %.100s: %d %.300s, want %d %s", c.path, c.form.Encode(), code, body, c.want, c.kind)
		}
	}
}

// FuzzRestrict looks for a query that sees another team's series.
func FuzzRestrict(f *testing.F) {
	for _, expr := range []string{
		"up", `sum by (a) (rate(x{b="c"}[5m]))`, `a / on(b) group_left c`, `{__name__="x"}`, `x[5m:1m] offset 1h`, `absent(y @ end())`, `quantile(0.9, {"a.b"})`,
	} {
		f.Add(expr)
	}
	s, err := Open(f.TempDir(), Options{Now: func() time.Time { return now }})
	if err != nil {
		f.Fatal(err)
	}
	defer s.Close()
	a := s.Appender(f.Context())
	a.Gauge(name("x", TeamLabel, "blue", "b", "c"), ago(time.Second), 1)
	a.Gauge(name("up", TeamLabel, "blue"), ago(time.Second), 1)
	if _, err := a.Commit(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		got, err := ScopedStore(s, access.Scope{Team: "red"}).Instant(t.Context(), expr, now)
		if err != nil {
			return
		}
		for _, x := range got {
			if x.Labels[TeamLabel] == "blue" && !strings.Contains(expr, "label_") && !strings.Contains(expr, "absent") && !strings.Contains(expr, "count_values") {
				t.Errorf("%q gives %v", expr, x)
			}
		}
	})
}

// Catches a hub in front of another store that cannot give raw samples, so that no bill can be
// computed through it.
func TestForeignRaw(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 10, 14, 12, 0, 0, 0, time.UTC)
	m := querytest.NewMemory()
	for i := range 20 {
		m.Add(query.Labels{"__name__": "x", "a": "b"}, now.Add(time.Duration(i-15)*time.Minute), float64(i))
	}
	server := httptest.NewServer(NewHandler(m, nil, HandlerOptions{}))
	defer server.Close()
	c, err := query.Open(query.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Raw(t.Context(), `x{a="b"}`, now.Add(-3*time.Minute), now)
	if err != nil || len(got) != 1 || len(got[0].Points) != 3 || got[0].Points[2].Value != 15 {
		t.Errorf("%v %v", got, err)
	}
	for _, expr := range []string{"x[5m] offset 1m", "x[5m] @ 7", "x[5m:1m]"} {
		if _, err := c.Instant(t.Context(), expr, now); err == nil {
			t.Errorf("%s has an answer", expr)
		}
	}
}
