package pages

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

var (
	vendors = device.Vendors{{Name: "nvidia", Resources: []device.Resource{{Name: "nvidia.com/gpu", Unit: device.Whole}}}}
	start   = time.Unix(1_800_000_000, 0)
)

// kueue is a page of Kueue whose queue has some pending workloads.
func kueue(role string, n int) string {
	return fmt.Sprintf("kueue_pending_workloads{cluster_queue=\"red\",replica_role=%q,status=\"active\"} %d\nkueue_admission_attempts_total{replica_role=%q,result=\"success\"} %d\n", role, n, role, 10*n)
}

// site serves pages by path.
type site struct {
	mu    sync.Mutex
	pages map[string]http.HandlerFunc
	asked []string // path and token of each request
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, strings.TrimSpace(r.URL.Path+" "+r.Header.Get("Authorization")))
	h := s.pages[r.URL.Path]
	s.mu.Unlock()
	if h == nil {
		http.NotFound(w, r)
		return
	}
	h(w, r)
}

func (s *site) put(path, page string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page) }
}

func (s *site) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.asked)
	s.asked = nil
	slices.Sort(out)
	return out
}

func serve(t *testing.T) (*site, string) {
	t.Helper()
	s := &site{pages: map[string]http.HandlerFunc{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func target(t *testing.T, address string) Target {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return Target{URL: u}
}

// tell describes a round: whether each system is up, its values and its sums.
func tell(round Round) []string {
	var out []string
	for _, s := range round.Systems {
		out = append(out, fmt.Sprintf("%s up %v", s.Kind, s.Up))
		if s.Report == nil {
			continue
		}
		for _, v := range s.Report.Values {
			out = append(out, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %v", v.Name, v.Queue, v.Word, v.N)), " "))
		}
		for _, v := range s.Report.Sums {
			out = append(out, fmt.Sprintf("%s %s %v", v.Name, v.Word, v.N))
		}
	}
	if round.Err != nil {
		out = append(out, strings.Split(round.Err.Error(), "\n")...)
	}
	return out
}

// Catches a page that fails or hangs and takes others with it, replicas that count twice, a system without an elected process
// that seems well, and one that never answered and is not mentioned.
func TestReader(t *testing.T) {
	s, address := serve(t)
	s.put("/leader", kueue("leader", 3))
	s.put("/follower", kueue("follower", 9))
	s.put("/yunikorn", "yunikorn_queue_app{queue=\"root.a\",state=\"running\"} 2\n")
	s.put("/people", "<html>hello</html>\n")
	others := make(chan struct{})
	s.pages["/hangs"] = func(w http.ResponseWriter, _ *http.Request) {
		<-others // never, if pages are read one after the other
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	yunikorn := s.pages["/yunikorn"]
	s.pages["/yunikorn"] = func(w http.ResponseWriter, r *http.Request) { close(others); yunikorn(w, r) }
	var list []Target
	for _, path := range []string{"/follower", "/leader", "/hangs", "/yunikorn", "/people"} {
		list = append(list, target(t, address+path))
	}
	r := NewReader(Config{Targets: list, Vendors: vendors, Timeout: time.Minute}, start)
	f := func(want ...string) {
		t.Helper()
		got := tell(r.Read(t.Context(), start))
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], address, "")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	bad := []string{"cannot read /hangs: the answer is 503 Service Unavailable", "cannot read /people: the page is of no queueing system that is known"}
	running := []string{"yunikorn up true", "job.count root.a running 2"}
	f(slices.Concat([]string{"kueue up true", "job.count red pending 3", "attempts scheduled 30", "unknown up false"}, running, bad)...)

	s.put("/leader", kueue("follower", 3))
	s.put("/yunikorn", "yunikorn_queue_app{queue=\"root.a\",state=\"running\"} 2\n")
	s.put("/hangs", "# a page\n")
	s.put("/people", kueue("leader", 4))
	f(slices.Concat([]string{"kueue up true", "job.count red pending 4", "attempts scheduled 40", "unknown up false"}, running,
		[]string{"cannot read /hangs: the page is of no queueing system that is known"})...)
	s.put("/people", kueue("follower", 4))
	f(slices.Concat([]string{"kueue up false", "unknown up false"}, running,
		[]string{"no page of kueue is of the process that is elected", "cannot read /hangs: the page is of no queueing system that is known"})...)
	delete(s.pages, "/follower")
	s.put("/leader", kueue("standalone", 5))
	s.put("/hangs", "yunikorn_queue_app{queue=\"root.a\",state=\"running\"} 7\n")
	f("kueue up false", "job.count red pending 5", "attempts scheduled 50", "yunikorn up true", "job.count root.a running 7", "cannot read /follower: the answer is 404 Not Found")
}

// Catches a page that never ends and is waited for.
func TestTimeout(t *testing.T) {
	s, address := serve(t)
	s.pages["/metrics"] = func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, kueue("leader", 3))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	r := NewReader(Config{Targets: []Target{target(t, address+"/metrics")}, Vendors: vendors, Timeout: 10 * time.Millisecond}, start)
	got := r.Read(t.Context(), start)
	if got.Systems[0].Up || got.Systems[0].Report != nil || !errors.Is(got.Err, context.DeadlineExceeded) {
		t.Errorf("%+v", got)
	}
}

// Catches a token that goes to somebody else, a certificate that nobody trusts and that counts, a redirect that is followed,
// and an error without its reason.
func TestTrust(t *testing.T) {
	s := &site{pages: map[string]http.HandlerFunc{}}
	s.put("/metrics", kueue("standalone", 1))
	elsewhere, plain := serve(t)
	elsewhere.put("/metrics", kueue("standalone", 2))
	s.pages["/moved"] = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain+"/metrics", http.StatusFound) }
	s.pages["/denied"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	for path, b := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), token: []byte("secret\n"), filepath.Join(dir, "empty"): nil} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := func(path, wrong string, asked []string, change func(*Target)) {
		t.Helper()
		address := server.URL + path
		if strings.HasPrefix(path, "http") {
			address = path
		}
		to := target(t, address)
		change(&to)
		_, err := fetch(t.Context(), &to, direct(time.Minute))
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%+v: %v, want %q", to, err, wrong)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error has the token: %v", err)
		}
		if diff := cmp.Diff(asked, append(s.requests(), elsewhere.requests()...)); diff != "" {
			t.Errorf("%+v: requests (-want +got):\n%s", to, diff)
		}
	}
	f("/metrics", "certificate signed by unknown authority", nil, func(to *Target) { to.TokenFile = token })
	f("/metrics", "", []string{"/metrics Bearer secret"}, func(to *Target) { to.CAFile, to.TokenFile = ca, token })
	f("/metrics", "", []string{"/metrics"}, func(to *Target) { to.Insecure = true })
	f("/metrics", "", []string{"/metrics Bearer secret"}, func(to *Target) { to.Insecure, to.TokenFile = true, token })
	f("/metrics", "certificate is valid for", nil, func(to *Target) { to.CAFile, to.TokenFile, to.ServerName = ca, token, "kueue.svc" })
	f("/metrics", "", []string{"/metrics"}, func(to *Target) { to.CAFile, to.ServerName = ca, "example.com" }) // httptest's certificate
	f("/moved", "the answer is 302 Found", []string{"/moved Bearer secret"}, func(to *Target) { to.CAFile, to.TokenFile = ca, token })
	f("/denied", "the answer is 401 Unauthorized", []string{"/denied"}, func(to *Target) { to.CAFile = ca })
	f(plain+"/metrics", "a token is sent to https:// addresses only", nil, func(to *Target) { to.TokenFile = token })
	f("/metrics", "has no certificates", nil, func(to *Target) { to.CAFile = token })
	f("/metrics", "has no token", nil, func(to *Target) { to.CAFile, to.TokenFile = ca, filepath.Join(dir, "empty") })
	f("/metrics", "cannot read the token", nil, func(to *Target) { to.CAFile, to.TokenFile = ca, filepath.Join(dir, "absent") })
}

// endless is a page without an end.
type endless struct{ line string }

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n+len(e.line) <= len(p) {
		n += copy(p[n:], e.line)
	}
	if n == 0 {
		n = copy(p, e.line)
	}
	return n, nil
}

// Catches a page that takes all memory: it has no end, lines without an end, or much about queues; and a page that is cut off
// and taken for a whole one.
func TestKeep(t *testing.T) {
	f := func(from io.Reader, want, wrong string) {
		t.Helper()
		got, err := keep(from, 1<<20, 1<<10)
		if string(got) != want || wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%q, %v; want %q, %q", got, err, want, wrong)
		}
	}
	long := strings.Repeat("x", 3*maxLine)
	f(strings.NewReader("# HELP kueue_a b\nkueue_a 1\r\ngo_threads 3\nkueue_b{x=\"y\"} 2 \n\nkueue_c 3"), "kueue_a 1\nkueue_b{x=\"y\"} 2\nkueue_c 3\n", "")
	f(strings.NewReader("kueue_a{x=\""+long+"kueue_b\"} 1\nkueue_c 3\n"), "kueue_c 3\n", "")
	f(strings.NewReader("kube_pod_status_phase{phase=\"Failed\"} 0\nkube_pod_status_phase{phase=\"Running\"} 1\nkube_node_status_allocatable{} 0\n"), "kube_pod_status_phase{phase=\"Running\"} 1\nkube_node_status_allocatable{} 0\n", "")
	f(strings.NewReader("kueue_cluster_queue_resource_usage{resource=\"cpu\"} 8\nkueue_cluster_queue_resource_usage{resource=\"x.com/cpu\"} 8\n"), "kueue_cluster_queue_resource_usage{resource=\"x.com/cpu\"} 8\n", "")
	f(endless{"kueue_a{x=\"" + strings.Repeat("y", 1000) + "\"} 1\n"}, "", "bytes about queues")
	f(endless{strings.Repeat("go_threads 1\n", 1000)}, "", "has more than 1048576 bytes")
	f(io.MultiReader(strings.NewReader("kueue_a 1\n"), broken{}), "", "cannot read the page: connection reset")
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// endpoints is an EndpointSlice.
func endpoints(namespace, service string, port int, name string, addresses ...kubeapitest.Object) kubeapitest.Object {
	return kubeapitest.Object{
		"metadata":  kubeapitest.Object{"namespace": namespace, "labels": kubeapitest.Object{serviceLabel: service}},
		"endpoints": addresses, "ports": []kubeapitest.Object{{"name": "other", "port": 1}, {"name": name, "port": port}},
	}
}

func at(ip string, ready any) kubeapitest.Object {
	return kubeapitest.Object{"addresses": []string{ip}, "conditions": kubeapitest.Object{"ready": ready}}
}

// Catches a Service of somebody who wants to invent numbers or to direct requests, a page that is found beside the one that
// is listed, a token for a page that was not verified, parents that count, also where nobody
// may list them, a list that is repeated each round, and a missing
// permission that costs more than itself.
func TestFind(t *testing.T) {
	cluster := kubeapitest.New()
	const slicesPath, queuesPath = "/apis/discovery.k8s.io/v1/endpointslices", "/apis/scheduling.run.ai/v2/queues"
	put := func(items ...kubeapitest.Object) {
		cluster.Put(slicesPath, kubeapitest.Object{"kind": "EndpointSliceList", "metadata": kubeapitest.Object{"resourceVersion": "1"}, "items": items})
	}
	put(
		endpoints("kueue-system", "kueue-controller-manager-metrics-service", 8443, "https", at("10.0.0.1", true), at("10.0.0.2", nil), at("10.0.0.3", false)),
		endpoints("kai-scheduler", "queue-controller", 8080, "metrics", at("10.0.0.4", true)),
		endpoints("kai-scheduler", "queue-controller", 8080, "metrics", at("10.0.0.4", true)), // a copy
		endpoints("ml", "queue-controller", 8080, "metrics", at("10.0.0.66", true)),
		endpoints("volcano-system", "volcano-scheduler-service", 8080, "metrics", at("127.0.0.1", true), at("169.254.169.254", true), at("fe80::1", true), at("::1", true), at("host", true)),
		endpoints("yunikorn", "yunikorn-service", 9080, "yunikorn-core", at("fd00::1", true)),
	)
	cluster.Put(queuesPath, kubeapitest.Object{"kind": "QueueList", "metadata": kubeapitest.Object{"resourceVersion": "1"}, "items": []kubeapitest.Object{
		{"metadata": kubeapitest.Object{"name": "dep"}, "spec": kubeapitest.Object{}},
		{"metadata": kubeapitest.Object{"name": "team"}, "spec": kubeapitest.Object{"parentQueue": "dep"}},
	}})
	address, stop := cluster.Serve()
	defer stop()
	file, err := kubeapitest.Kubeconfig(t.TempDir(), address)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubeapi.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	found, err := find(t.Context(), api, Trust{CAFile: "ca", TokenFile: "token"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, strings.TrimSpace(strings.Join([]string{f.System, f.URL.String(), f.ServerName, f.CAFile, f.TokenFile}, " ")))
	}
	want := []string{
		"kai http://10.0.0.4:8080/metrics",
		"kueue https://10.0.0.1:8443/metrics kueue-controller-manager-metrics-service.kueue-system.svc ca token",
		"kueue https://10.0.0.2:8443/metrics kueue-controller-manager-metrics-service.kueue-system.svc ca token",
		"yunikorn http://[fd00::1]:9080/ws/v1/metrics",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	found, err = find(t.Context(), api, Trust{CAFile: "ca", TokenFile: "token", Insecure: true})
	if err != nil || found[1].TokenFile != "" || !found[1].Insecure {
		t.Errorf("%v, a page that is not verified gets %+v", err, found[1])
	}

	s, listed := serve(t)
	s.put("/metrics", "kai_queue_allocated_gpus{queue_name=\"team\"} 3\nkai_queue_allocated_gpus{queue_name=\"dep\"} 3\n")
	s.put("/ws/v1/metrics", "yunikorn_queue_app{queue=\"root.a\",state=\"running\"} 2\n")
	own := target(t, listed+"/kueue")
	s.put("/kueue", kueue("standalone", 1))
	r := NewReader(Config{Targets: []Target{own}, API: api, Vendors: vendors, Timeout: time.Minute}, start)
	var mu sync.Mutex
	var dialed []string
	r.dial = func(ctx context.Context, network, to string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, to)
		return (&net.Dialer{}).DialContext(ctx, network, own.URL.Host) // wherever it leads
	}
	round := func(now time.Time, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, tell(r.Read(t.Context(), now))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	all := []string{"kai up true", "gpu.used team 3", "kueue up true", "job.count red pending 1", "attempts scheduled 10", "yunikorn up true", "job.count root.a running 2"}
	cluster.Requests()
	before := len(cluster.Requests())
	round(start, all...)
	round(start.Add(findEvery-time.Second), all...)
	if n := len(cluster.Requests()) - before; n != 2 {
		t.Errorf("%d requests to the API server, want one list of each kind: %v", n, cluster.Requests()[before:])
	}
	slices.Sort(dialed)
	if diff := cmp.Diff([]string{"10.0.0.4:8080", own.URL.Host, "[fd00::1]:9080"}, slices.Compact(dialed)); diff != "" {
		t.Errorf("dialed (-want +got):\n%s", diff)
	}
	cluster.Fail(slicesPath, kubeapitest.Fault{Status: 403})
	cluster.Fail(queuesPath, kubeapitest.Fault{Status: 403})
	later := start.Add(findEvery)
	denied := []string{"cannot list the endpointslices: the test says 403", "which queues of kai have others below them is not known: cannot list the queues: the test says 403"}
	round(later, append(slices.Clone(all), denied...)...)
	round(later.Add(time.Second), append(slices.Clone(all), denied...)...) // is not asked again, and still said
	cluster.Heal()
	put()
	round(later.Add(findEvery), "kueue up true", "job.count red pending 1", "attempts scheduled 10")

	// Which queues have others below them was never known.
	cluster.Fail(queuesPath, kubeapitest.Fault{Status: 403})
	put(endpoints("kai-scheduler", "queue-controller", 8080, "metrics", at("10.0.0.4", true)))
	dial := r.dial
	r = NewReader(Config{Targets: []Target{own}, API: api, Vendors: vendors, Timeout: time.Minute}, start)
	r.dial = dial
	blind := []string{"kai up false", "kueue up true", "job.count red pending 1", "attempts scheduled 10"}
	round(start, append(slices.Clone(blind), denied[1])...)
	round(start.Add(time.Second), append(slices.Clone(blind), denied[1])...)
	cluster.Heal()
	round(start.Add(findEvery), "kai up true", "gpu.used team 3", "kueue up true", "job.count red pending 1", "attempts scheduled 10")
	own.System, own.URL.Path, own.Parents = "kai", "/metrics", []string{"dep"} // somebody says it
	cluster.Fail(queuesPath, kubeapitest.Fault{Status: 403})
	r = NewReader(Config{Targets: []Target{own}, API: api, Vendors: vendors, Timeout: time.Minute}, start)
	round(start, "kai up true", "gpu.used team 3", denied[1])
}

// Catches an object of a cluster that ends the process, and an address that leads to this machine.
func FuzzParseSlice(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"yunikorn","labels":{"kubernetes.io/service-name":"yunikorn-service"}},"endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"name":"yunikorn-core","port":9080}]}`))
	f.Add([]byte(`{"metadata":{"namespace":"yunikorn","labels":{"kubernetes.io/service-name":"yunikorn-service"}},"endpoints":[{"addresses":["::ffff:127.0.0.1"]}],"ports":[{"port":9080}]}`))
	f.Fuzz(func(t *testing.T, object []byte) {
		for _, to := range parseSlice(object, Trust{}) {
			if host := net.ParseIP(to.URL.Hostname()); host == nil || host.IsLoopback() {
				t.Errorf("%s", to.URL)
			}
		}
	})
}
