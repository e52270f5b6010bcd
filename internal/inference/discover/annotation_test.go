package discover

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// annotated is an Owner whose processes are of a pod that says where its pages are.
func annotated(pages *[]workload.Page, pids ...uint32) func(uint32) (workload.Workload, bool) {
	return func(pid uint32) (workload.Workload, bool) {
		return workload.Workload{ID: "pod/1/c", Kind: "deployment", Name: "chat", Pages: *pages}, slices.Contains(pids, pid)
	}
}

func portOf(s *httptest.Server) uint16 {
	n, err := strconv.ParseUint(port(s), 10, 16)
	if err != nil {
		panic(err)
	}
	return uint16(n)
}

// Catches a pod that says where its page is, and is not asked there, or is asked to drain what must not be drained.
func TestAnnotatedPath(t *testing.T) {
	models := func(owner string) string { return `{"data":[{"id":"m","owned_by":"` + owner + `"}]}` }
	for _, tt := range []struct {
		name, hint string
		at         map[string]string
		path       string
		asked      []string
	}{
		{"a path of its own", "/stats", map[string]string{"/stats": vllmPage}, "/stats", []string{"/v1/models", "/stats"}},
		{"a path that has nothing", "/stats", map[string]string{"/metrics": vllmPage}, "/metrics", []string{"/v1/models", "/stats", "/metrics"}},
		{"the usual path", "/metrics", map[string]string{"/metrics": vllmPage}, "/metrics", []string{"/v1/models", "/metrics"}},
		{"a path of the application", "/stats", map[string]string{"/stats": "go_goroutines 1\n", "/metrics": vllmPage}, "/metrics", []string{"/v1/models", "/stats", "/metrics"}},
		{"another program", "/stats", map[string]string{"/stats": "go_goroutines 1\n"}, "", []string{"/v1/models", "/stats", "/metrics", "/v1/metrics"}},
		{"a path that fails", "/stats", map[string]string{"/stats": "500", "/metrics": vllmPage}, "/metrics", []string{"/v1/models", "/stats", "/metrics"}},
		{
			"trtllm-serve, whose page it says is the one that empties", "/metrics",
			map[string]string{"/v1/models": models("tensorrt_llm"), "/metrics": "[]", "/prometheus/metrics": "trtllm_num_requests_running 1\n"},
			"/prometheus/metrics",
			[]string{"/v1/models", "/prometheus/metrics"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
			server := &pages{at: tt.at}
			s := w.serve(11, server)
			hints := []workload.Page{{Port: portOf(s), Scheme: "http", Path: tt.hint}}
			f := w.finder()
			f.Ephemeral, f.Owner = false, annotated(&hints, 100) // a port that a pod names is no port that the kernel chose
			got := w.round(f, tick(0, 100))
			path := ""
			if len(got) == 1 {
				path = got[0].Target.URL.Path
			}
			if path != tt.path {
				t.Errorf("found %v, want a page at %q", show(got), tt.path)
			}
			for i := range 5 {
				w.again(f, tick(60*(i+1), 100))
			}
			if diff := cmp.Diff(tt.asked, server.paths()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// Catches an annotation that makes the agent ask somebody else: another pod, another process, or what holds no
// device.
func TestAnnotationNamesNoOthers(t *testing.T) {
	w := newWorld(t,
		run{pid: 100, parent: 1, session: 100, open: []uint64{11}},
		run{pid: 200, parent: 1, session: 200, open: []uint64{12}},
		run{pid: 300, parent: 1, session: 300, open: []uint64{13}})
	w.serve(11, vllm())
	neighbor, idle, outside := vllm(), vllm(), vllm()
	hints := []workload.Page{
		{Port: portOf(w.serve(12, neighbor)), Scheme: "http", Path: "/hint"}, // on a device, and not of the pod
		{Port: portOf(w.serve(13, idle)), Scheme: "http", Path: "/hint"},     // on no device
	}
	s := httptest.NewServer(outside) // of no process that is known
	defer s.Close()
	hints = append(hints, workload.Page{Port: portOf(s), Scheme: "http", Path: "/hint"})
	f := w.finder()
	f.Owner = annotated(&hints, 100, 300)
	w.round(f, tick(0, 100, 200))
	if diff := cmp.Diff([]string{"/v1/models", "/metrics"}, neighbor.paths()); diff != "" {
		t.Errorf("the neighbor was asked (-want +got):\n%s", diff)
	}
	if asked := slices.Concat(idle.paths(), outside.paths()); asked != nil {
		t.Errorf("others were asked for %v", asked)
	}
}

// Catches an annotation that is known after the process was asked, or that changes, and is not heeded, and one for
// which a program is asked at each scan.
func TestLateAnnotation(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
	server := &pages{at: map[string]string{"/stats": vllmPage}}
	s := w.serve(11, server)
	var hints []workload.Page
	f := w.finder()
	f.Ephemeral, f.Owner = false, annotated(&hints, 100)
	for i, want := range []struct {
		path string
		n    int
	}{{"", 0}, {"", 0}, {"/nothing", 0}, {"", 0}, {"/nothing", 0}, {"/stats", 1}, {"/stats", 1}, {"", 1}} {
		hints = nil
		if want.path != "" {
			hints = []workload.Page{{Port: portOf(s), Scheme: "http", Path: want.path}}
		}
		if got := w.round(f, tick(60*i, 100)); len(got) != want.n {
			t.Errorf("scan %d: found %v", i, show(got))
		}
	}
	if diff := cmp.Diff([]string{"/v1/models", "/nothing", "/metrics", "/v1/metrics", "/", "/v1/models", "/stats"}, server.paths()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// Catches a pod whose page needs TLS, as it says, and one that says so and is wrong.
func TestAnnotatedScheme(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11, 12}})
	secure := httptest.NewUnstartedServer(vllm())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.TLS = &tls.Config{}
	secure.StartTLS()
	defer secure.Close()
	w.listens = append(w.listens, held{listener: listener{secure.Listener.Addr().(*net.TCPAddr).AddrPort(), 11}})
	plain := &pages{at: map[string]string{"/stats": "vllm:num_requests_waiting 1\n"}}
	s := w.serve(12, plain)
	hints := []workload.Page{{Port: portOf(secure), Scheme: "https", Path: "/metrics"}, {Port: portOf(s), Scheme: "https", Path: "/stats"}}
	f := w.finder()
	f.Owner = annotated(&hints, 100)
	got := map[string]string{}
	for _, e := range w.round(f, tick(0, 100)) {
		page, err := e.Target.Page(t.Context())
		if err != nil {
			t.Error(err)
		}
		got[e.Target.URL.Scheme] = string(page)
		e.Target.Client.CloseIdleConnections()
	}
	if diff := cmp.Diff(map[string]string{"https": vllmPage, "http": "vllm:num_requests_waiting 1\n"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a process with thousands of sockets that keeps an engine from being found, or is forgotten bit by bit.
func TestCrowd(t *testing.T) {
	const many, open = 10_000, 1000 // rows of a file, and links, which take longer to make
	w := newWorld(t, run{pid: 100, parent: 1, session: 100}, run{pid: 200, parent: 1, session: 200, open: []uint64{11}})
	for i := range uint64(many) { // nobody listens there, whatever procfs says
		w.listen(fmt.Sprintf("127.77.%d.%d:%d", i/200, i%200+1, 10_000+i), 1000+i, 0)
		if i < open {
			w.processes[0].open = append(w.processes[0].open, 1000+i)
		}
	}
	s := w.serve(11, vllm()) // the last row of its file
	f := w.finder()
	if diff := cmp.Diff([]string{"process/python3:" + port(s)}, ids(w.round(f, tick(0, 100, 200)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := Status{Processes: 2, Sockets: open + 1, Asked: maxAsked, Engines: 1, Undecided: maxAsked - 1, Rejected: open - maxOfOne}
	if diff := cmp.Diff(want, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
	if n := len(f.scanner.sockets); n != maxOfOne+1 {
		t.Errorf("%d sockets are remembered", n)
	}
}

// Catches a process that claims to be as many engines as it has ports: each is read at each interval.
func TestManyEnginesOfOneProcess(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100})
	for i := range uint64(maxPages + 4) {
		w.serve(100+i, &pages{at: map[string]string{"/metrics": fmt.Sprintf("vllm:num_requests_running 1\nvllm:x%d 1\n", i)}})
		w.processes[0].open = append(w.processes[0].open, 100+i)
	}
	f := w.finder()
	if got := w.round(f, tick(0, 100)); len(got) != maxPages {
		t.Errorf("%d engines of one process", len(got))
	}
	want := Status{Processes: 1, Sockets: maxPages + 4, Asked: maxPages + 4, Engines: maxPages, Rejected: 4}
	if diff := cmp.Diff(want, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
}

// Catches a port that goes to a program that is no engine: it is asked once, and its page is not read as the engine's.
func TestPortIsReused(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, start: 5, open: []uint64{11}})
	server := vllm()
	s := w.serve(11, server)
	f := w.finder()
	if got := w.round(f, tick(0, 100)); len(got) != 1 {
		t.Fatalf("found %v", show(got))
	}
	server.mu.Lock()
	server.at, server.asked = map[string]string{"/metrics": "go_goroutines 1\n"}, nil
	server.mu.Unlock()
	w.processes[0] = run{pid: 300, parent: 1, session: 300, start: 900, open: []uint64{12}}
	w.listens = nil
	w.listen(s.Listener.Addr().String(), 12, 0)
	w.write()
	for i := range 10 {
		if got := w.again(f, tick(30*(i+1), 300)); got != nil {
			t.Fatalf("found %v", show(got))
		}
	}
	if diff := cmp.Diff([]string{"/v1/models", "/metrics", "/v1/metrics"}, server.paths()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// Catches an engine that is forgotten for as long as a clock was wrong, because its next question was due by that clock.
func TestClockIsSetBack(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
	server := &pages{at: map[string]string{"/metrics": ""}} // it has served no request
	w.serve(11, server)
	f := w.finder()
	w.round(f, tick(1_000_000, 100))
	server.mu.Lock()
	server.at["/metrics"] = vllmPage
	server.mu.Unlock()
	if got := w.round(f, tick(0, 100)); len(got) != 1 {
		t.Errorf("found %v", show(got))
	}
}

// Catches two engines of one model on one device that are taken for one.
func TestTwoEnginesOnOneDevice(t *testing.T) {
	w := newWorld(t,
		run{pid: 100, parent: 1, session: 100, start: 5, open: []uint64{11}},
		run{pid: 200, parent: 1, session: 200, start: 6, open: []uint64{12}})
	a, b := w.serve(11, vllm()), w.serve(12, vllm())
	f := w.finder()
	var got [][]string
	for _, e := range show(w.round(f, tick(0, 100, 200))) {
		got = append(got, append([]string{e.ID}, e.Devices...))
	}
	if diff := cmp.Diff([][]string{{"process/python3:" + port(a), "GPU-0"}, {"process/python3:" + port(b), "GPU-0"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
