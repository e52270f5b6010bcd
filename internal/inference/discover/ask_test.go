package discover

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/inference"
)

// Catches a question that must not be asked, or that is asked too often: each program is asked at 21 ticks.
func TestAsk(t *testing.T) {
	const trtllm = "trtllm_num_requests_running 1\n"
	for _, tt := range []struct {
		name    string
		at      map[string]string
		command string
		engine  bool
		asked   []string
	}{
		{"vLLM", vllm().at, "vllm serve", true, []string{"/v1/models", "/metrics"}},
		{"NIM", map[string]string{"/v1/metrics": vllmPage}, "", true, []string{"/v1/models", "/metrics", "/v1/metrics"}},
		{"a page for people before that of NIM", map[string]string{"/metrics": "<html>\n<body>", "/v1/metrics": vllmPage}, "", true, []string{"/v1/models", "/metrics", "/v1/metrics"}},
		{"trtllm-serve by its models", map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}`, "/metrics": "[]", "/prometheus/metrics": trtllm}, "", true, []string{"/v1/models", "/prometheus/metrics"}},
		{"trtllm-serve by its command line", map[string]string{"/metrics": "[]", "/prometheus/metrics": trtllm}, "python3 /usr/bin/trtllm-serve m", true, []string{"/v1/models", "/prometheus/metrics"}},
		{"trtllm-serve as a module, without a page", map[string]string{"/metrics": "[]"}, "python3 -m tensorrt_llm.commands.serve m", false, []string{"/v1/models", "/prometheus/metrics"}},
		{"trtllm-serve in disguise", map[string]string{"/v1/models": "{}", "/metrics": "[]", "/prometheus/metrics": trtllm}, "", true, []string{"/v1/models", "/metrics", "/prometheus/metrics"}},
		{"NIM beside the page of another program", map[string]string{"/metrics": "go_goroutines 1\n", "/v1/metrics": vllmPage}, "", true, []string{"/v1/models", "/metrics", "/v1/metrics"}},
		{"KServe without a request", map[string]string{"/metrics": "python_info{version=\"3\"} 1\n# TYPE request_predict_seconds histogram\n"}, "", true, []string{"/v1/models", "/metrics"}},
		{"NIM behind an API at the usual path", map[string]string{"/metrics": "{}", "/v1/metrics": vllmPage}, "", true, []string{"/v1/models", "/metrics", "/v1/metrics"}},
		{"the page of another program", map[string]string{"/metrics": "go_goroutines 1\n"}, "", false, []string{"/v1/models", "/metrics", "/v1/metrics"}},
		{"another program of Python", map[string]string{"/metrics": "python_info 1\nsteps_total 1\n"}, "", false, []string{"/v1/models", "/metrics", "/v1/metrics"}},
		{"another program", nil, "", false, []string{"/v1/models", "/metrics", "/v1/metrics", "/"}},
		{"another program with an API of the same path", map[string]string{"/": "Ollama is running", "/api/ps": "{}"}, "", false, []string{"/v1/models", "/metrics", "/v1/metrics", "/", "/api/ps"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t,
				run{pid: 100, parent: 1, session: 100, command: tt.command},
				run{pid: 101, parent: 100, session: 100, open: []uint64{11}})
			server := &pages{at: tt.at}
			w.serve(11, server)
			f := w.finder()
			w.write()
			for i := range 21 {
				if got := w.again(f, tick(30*i, 101)); len(got) > 0 != tt.engine {
					t.Fatalf("found %v", show(got))
				}
			}
			if diff := cmp.Diff(tt.asked, server.paths()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// Catches an engine that is given up while it loads its model, and one that is asked at each tick meanwhile.
func TestUndecided(t *testing.T) {
	page := func(text string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) { fmt.Fprint(w, text) }
	}
	for name, early := range map[string]func(w http.ResponseWriter){
		"loading":                   func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"no family yet":             page(""),
		"Python without a request":  page("python_info{version=\"3\"} 1\nprocess_start_time_seconds 5\n# TYPE served_total counter\n"),
		"Ray without an engine":     page("ray_node_gpus_utilization 0\nray_tasks{State=\"RUNNING\"} 1\n"),
		"Triton without a model":    page("nv_gpu_utilization 0\nnv_energy_consumption 1\nnv_cpu_utilization 0\nnv_pinned_memory_pool_used_bytes 0\n"),
		"a web server for a moment": page("http_requests_total{handler=\"/v1/models\",status=\"2xx\"} 1\n"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
			var asked atomic.Int32
			var ready atomic.Bool
			w.serve(11, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/v1/models":
					asked.Add(1)
					http.NotFound(w, r)
				case ready.Load():
					vllm().ServeHTTP(w, r)
				default:
					early(w)
				}
			}))
			f := w.finder()
			w.write()
			var at []int
			seconds := 0
			for ; seconds < 3600; seconds += 30 {
				before := asked.Load()
				if got := w.again(f, tick(seconds, 100)); got != nil {
					t.Fatalf("found %v", show(got))
				}
				if asked.Load() > before {
					at = append(at, seconds)
				}
			}
			if diff := cmp.Diff([]int{0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330}, at); diff != "" {
				t.Errorf("asked after so many seconds (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(Status{Processes: 1, Sockets: 1, Asked: 1, Undecided: 1}, f.Status()); diff != "" {
				t.Errorf("the status (-want +got):\n%s", diff)
			}
			ready.Store(true)
			for ; seconds <= 3930; seconds += 30 {
				w.again(f, tick(seconds, 100))
			}
			if got := f.Find(t.Context(), tick(3930, 100)); len(got) != 1 {
				t.Errorf("found %v", show(got))
			}
		})
	}
}

// Catches an endpoint that does harm: it sends more than fits into memory, nothing, something else, or us to
// another address. Beside each is an engine.
func TestHostile(t *testing.T) {
	var led atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { led.Add(1) }))
	defer elsewhere.Close()
	for _, tt := range []struct {
		name      string
		h         http.HandlerFunc
		undecided int
	}{
		{"endless", func(w http.ResponseWriter, r *http.Request) { endless(w, r) }, 0},
		{"endless, compressed", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			endless(z, r)
		}, 0},
		{"endless header", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
			}
		}, 0},
		{"compressed nonsense", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, vllmPage)
		}, 0},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, 0},
		{"JSON", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `[{"data":1}]`)
		}, 0},
		{"another protocol", func(w http.ResponseWriter, _ *http.Request) { raw(w, "\x00\x00\x12\x04\x00\x00\x00\x00\x00") }, 0},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			raw(w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm")
		}, 1},
		{"hangs up", func(w http.ResponseWriter, _ *http.Request) { raw(w, "") }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11, 12}})
			w.serve(11, tt.h)
			s := w.serve(12, vllm())
			f := w.finder()
			if diff := cmp.Diff([]string{"process/python3:" + port(s)}, ids(w.round(f, tick(0, 100)))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			want := Status{Processes: 1, Sockets: 2, Asked: 2, Engines: 1, Undecided: tt.undecided}
			if diff := cmp.Diff(want, f.Status()); diff != "" {
				t.Errorf("the status (-want +got):\n%s", diff)
			}
			for i := range 3 { // whoever hangs up each time speaks something else
				w.round(f, tick(3600*(i+1), 100))
			}
			want.Undecided = 0
			if diff := cmp.Diff(want, f.Status()); diff != "" {
				t.Errorf("later (-want +got):\n%s", diff)
			}
		})
	}
	if n := led.Load(); n > 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// Catches a TLS server that is asked again and again.
func TestTLS(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
	var handshakes atomic.Int32
	s := httptest.NewUnstartedServer(vllm())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		handshakes.Add(1)
		return nil, nil
	}}
	s.StartTLS()
	defer s.Close()
	w.listens = append(w.listens, held{listener: listener{s.Listener.Addr().(*net.TCPAddr).AddrPort(), 11}})
	f := w.finder()
	if got := w.round(f, tick(0, 100)); got != nil || handshakes.Load() > 0 {
		t.Errorf("found %v", show(got))
	}
	if diff := cmp.Diff(Status{Processes: 1, Sockets: 1, Asked: 1}, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
}

// Catches an endpoint that accepts and says nothing, as vLLM does while it loads its model: it is asked again.
func TestSilent(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.listen(l.Addr().String(), 11, 0)
	f := w.finder()
	f.Timeout = time.Millisecond // whatever happens within it, the endpoint does not answer
	w.round(f, tick(0, 100))
	if diff := cmp.Diff(Status{Processes: 1, Sockets: 1, Asked: 1, Undecided: 1}, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
}

// Catches requests to many endpoints at once, and endpoints that are forgotten because of their number.
func TestManySockets(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100})
	var running, most, total atomic.Int32
	gate := make(chan struct{})
	var probe *httptest.Server
	for i := range uint64(3 * atATime) {
		probe = w.serve(100+i, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				total.Add(1)
				for n := running.Add(1); ; {
					if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
						break
					}
				}
				<-gate
				running.Add(-1)
			}
			http.NotFound(w, r)
		}))
		w.processes[0].open = append(w.processes[0].open, 100+i)
	}
	f := w.finder()
	w.write()
	f.Find(t.Context(), tick(0, 100))
	await.True(t, "as many requests as there may be", func() bool { return running.Load() >= atATime })
	for range 100 { // one too many would have arrived by the end of these
		answer, err := http.Get(probe.URL)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	close(gate)
	f.wait()
	if most.Load() > atATime || total.Load() != 3*atATime {
		t.Errorf("%d endpoints were asked, %d at once", total.Load(), most.Load())
	}
	http.DefaultClient.CloseIdleConnections()
}

// Catches a program that is asked each time it returns to a device.
func TestRemembered(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
	server := &pages{}
	w.serve(11, server)
	f := w.finder()
	w.write()
	for i := range 6 {
		w.again(f, tick(60*i, 100))
		w.again(f, tick(60*i+30))
	}
	if diff := cmp.Diff([]string{"/v1/models", "/metrics", "/v1/metrics", "/"}, server.paths()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func endless(w io.Writer, r *http.Request) {
	line := []byte(strings.Repeat("a 1\n", 4096))
	for r.Context().Err() == nil {
		if _, err := w.Write(line); err != nil {
			return
		}
	}
}

// raw answers without HTTP.
func raw(w http.ResponseWriter, text string) {
	conn, buffer, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprint(buffer, text)
	_ = buffer.Flush() // the client may have gone
}

// Catches a port that is taken for another that contains it.
func TestNames(t *testing.T) {
	var got []uint16
	for _, p := range []uint16{8000, 800, 40001, 40002, 1} {
		if names("vllm serve m --port 8000\ntrtllm --port=40001 http://0.0.0.0:40002/x -n10\n", p) {
			got = append(got, p)
		}
	}
	if want := []uint16{8000, 40001, 40002}; !slices.Equal(want, got) {
		t.Errorf("named are %v, want %v", got, want)
	}
}

// served answers each request with a page, without a network.
type served string

func (s served) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(s)))}, nil
}

// Catches pages of many sockets that are parsed at once: each may take hundreds of megabytes meanwhile.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := inference.NewSlots()
		for range cap(slots) {
			slots <- struct{}{}
		}
		ctx, cancel := context.WithCancel(t.Context())
		client := &http.Client{Transport: served(vllmPage)}
		one := func() *asker {
			return &asker{Target: inference.Target{URL: &url.URL{Scheme: "http", Host: "h"}, Client: client}, slots: slots}
		}
		var asked, stopped answer
		var compared map[string]float64
		go func() { asked = one().ask(t.Context()) }()
		go func() { stopped = one().ask(ctx) }()
		s := &scanner{slots: slots}
		x := &socket{endpoint: &endpoint{address: netip.MustParseAddrPort("127.0.0.1:1")}, client: client}
		go func() { compared = s.counted(t.Context(), x) }()
		cancel()
		synctest.Wait()
		if asked.verdict == found || compared != nil {
			t.Error("a page was parsed out of turn")
		}
		if stopped.verdict != undecided || stopped.err == nil {
			t.Errorf("who does not wait got %+v", stopped)
		}
		<-slots
		synctest.Wait()
		if asked.verdict != found || compared == nil || len(slots) != cap(slots)-1 {
			t.Errorf("in turn: %+v, %v, and %d slots are taken", asked, compared, len(slots))
		}
		for range len(slots) {
			<-slots
		}
	})
}

// Catches pages that are remembered whole, for each port of a process, to be compared with those of its other ports.
func TestCountersAreBounded(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "vllm:x_total{a=%q} 1\n", strings.Repeat("x", 1<<20))
	for i := range 10_000 {
		fmt.Fprintf(&b, "vllm:x_total{a=\"%d\"} 1\n", i)
	}
	if got := counters([]byte(b.String())); len(got) != maxCounters || got["vllm:x_total\xffa\xff0"] != 1 {
		t.Errorf("%d counters are remembered", len(got))
	}
}
