package inferencereceiver

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/inferencereceiver/internal/metadata"
)

// forever writes a text again and again until the client has gone.
func forever(w io.Writer, r *http.Request, text string) {
	for r.Context().Err() == nil {
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
	}
}

// slow is the answer that no limit of size ends.
const slow = "a byte from time to time"

// answered counts, so that no answer is like the one before.
var answered atomic.Int32

// answers are those of engines that mean harm, or are broken.
var answers = map[string]http.HandlerFunc{
	"a page without an end": func(w http.ResponseWriter, r *http.Request) { forever(w, r, strings.Repeat("vllm:x 1\n", 4096)) },
	"a line without an end": func(w http.ResponseWriter, r *http.Request) { forever(w, r, strings.Repeat("x", 1<<16)) },
	"a page of one gigabyte": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000000000")
		forever(w, r, strings.Repeat("vllm:x 1\n", 4096))
	},
	"a page that grows when it is unpacked": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		forever(z, r, strings.Repeat("0", 1<<16))
	},
	"a million series": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("a 1\n", 1_000_000))
	},
	slow: func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			fmt.Fprint(w, "#")
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
	},
	"a header without an end": func(w http.ResponseWriter, _ *http.Request) {
		conn, b, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprint(b, "HTTP/1.1 200 OK\r\n")
		for {
			if _, err := fmt.Fprintf(b, "X-%d: %s\r\n", 1, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	},
	"a status without an end": func(w http.ResponseWriter, _ *http.Request) {
		hijack(w, "HTTP/1.1 404 "+strings.Repeat("x", 50_000)+"\r\n\r\n")
	},
	"a redirect to itself": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
	"no content":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	"a part of a page": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusPartialContent)
		fmt.Fprint(w, "vllm:x 1\n")
	},
	"no password":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
	"an error":          func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	"a page for people": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>\n<p>Welcome\n</html>\n") },
	"another error each time": func(w http.ResponseWriter, _ *http.Request) {
		hijack(w, fmt.Sprintf("HTTP/1.1 x%d\r\n\r\n", answered.Add(1)))
	},
	"nothing at all": func(w http.ResponseWriter, _ *http.Request) { hijack(w, "") },
	"half an answer": func(w http.ResponseWriter, _ *http.Request) {
		hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:x 1\n")
	},
}

// hijack answers without HTTP.
func hijack(w http.ResponseWriter, text string) {
	conn, b, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprint(b, text)
	_ = b.Flush() // the client may have gone
}

// Catches an engine that takes more memory than its page may, that is logged at each reading, or whose nonsense
// becomes a value.
func TestHostileAnswers(t *testing.T) {
	for name, h := range answers {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(h)
			defer s.Close()
			core, logs := observer.New(zap.InfoLevel)
			set := receivertest.NewNopSettings(metadata.Type)
			set.Logger = zap.New(core)
			cfg := createDefaultConfig().(*Config)
			cfg.Timeout = cfg.Interval // the machine may be slow
			cfg.Targets = []TargetConfig{{URL: s.URL + "/page"}}
			if name == slow {
				cfg.Targets[0].Timeout = 100 * time.Millisecond
			}
			sink := &consumertest.MetricsSink{}
			r, err := NewFactoryWithEngines(func(*node.Tick) []discover.Engine { return nil }).CreateMetrics(t.Context(), set, cfg, sink)
			if err != nil {
				t.Fatal(err)
			}
			m := machine{make(chan node.Tick)}
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			const readings = 4
			for i := range readings {
				m.tick(10 * i)
			}
			await.True(t, "all batches", func() bool { return len(sink.AllMetrics()) == readings })
			runtime.ReadMemStats(&after)
			if err := r.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			// The server of the test is in the same process, and the page is copied as it grows.
			if n := (after.TotalAlloc - before.TotalAlloc) / readings; n > 64<<20 {
				t.Errorf("a reading takes %d MiB", n>>20)
			}
			for _, md := range sink.AllMetrics() {
				if got := lines(t, md); len(got) != 1 || !strings.HasPrefix(got[0], inference.Up.Name) || !strings.HasSuffix(got[0], " 0") {
					t.Errorf("%q", got)
				}
			}
			if got := logs.FilterLevelExact(zap.WarnLevel).All(); len(got) != 1 || len(fmt.Sprint(got[0].ContextMap())) > 2*maxText {
				t.Errorf("%d warnings", len(got))
				for _, l := range got {
					text := fmt.Sprint(l.ContextMap()["error"])
					t.Logf("%.1000s", text)
				}
			}
		})
	}
}

// Catches a receiver that cannot be stopped while an engine does not answer, or that leaves goroutines behind, which
// the end of all tests shows.
func TestShutdownWhileReading(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-r.Context().Done()
	}))
	defer s.Close()
	cfg := createDefaultConfig().(*Config)
	cfg.Interval, cfg.Timeout = time.Hour, time.Hour
	for i := range 8 {
		cfg.Targets = append(cfg.Targets, TargetConfig{URL: fmt.Sprintf("%s/page/%d", s.URL, i)})
	}
	sink := &consumertest.MetricsSink{}
	// Several readings are under way, as they are without a simulation.
	factory := newFactory(func(r *inferenceReceiver) {
		r.find = Simulated(func(*node.Tick) []discover.Engine { return nil })
	})
	r, err := factory.CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	m := machine{make(chan node.Tick)}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.tick(0)
	await.True(t, "all requests", func() bool { return asked.Load() == 8 })
	if err := r.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if got := sink.AllMetrics(); len(got) > 0 {
		t.Errorf("an aborted reading says something about an engine: %q", lines(t, got[0]))
	}
}

// Catches labels that end the agent, or that are lost: quotes, line breaks, zero bytes, and bytes that are no text.
func TestStrangeLabels(t *testing.T) {
	t.Parallel()
	p := serve(t, "vllm:num_requests_running{model_name=\"a\\\"b\\\\c\\nd\x00e\xff模\"} 1\n")
	cfg := createDefaultConfig().(*Config)
	cfg.Targets = []TargetConfig{{URL: p.URL + "/page"}}
	m, sink := start(t, cfg, nil)
	m.tick(0)
	if got := next(t, sink, 1); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "model=a\"b\\c\nd\x00e\uFFFD模 ") }) {
		t.Errorf("%q", got)
	}
}

// Catches a sum that an engine does not have, as zero.
func TestUnknownSum(t *testing.T) {
	t.Parallel()
	p := serve(t, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 3\nprocess_start_time_seconds 5\n")
	cfg := createDefaultConfig().(*Config)
	cfg.Targets = []TargetConfig{{URL: p.URL + "/page"}}
	m, sink := start(t, cfg, nil)
	m.tick(0)
	next(t, sink, 1)
	for _, rm := range sink.AllMetrics()[0].ResourceMetrics().All() {
		for _, metric := range rm.ScopeMetrics().At(0).Metrics().All() {
			if metric.Name() == "gen_ai.server.time_to_first_token" {
				if h := metric.Histogram().DataPoints().At(0); h.HasSum() || h.Count() != 3 {
					t.Errorf("sum %v of %d", h.Sum(), h.Count())
				}
				return
			}
		}
	}
	t.Error("there is no histogram")
}

// Catches a page that takes more memory than it may, or that stays in memory, although it is within all limits: 50,000
// lines and 4 MiB, all different.
func TestWorstPage(t *testing.T) {
	const count, size = 49_999, 4 << 20
	for name, line := range map[string]string{
		"workers":           "vllm:generation_tokens_total{WorkerId=\"%d\",x=\"%s\"} 1\n",
		"histograms":        "vllm:time_to_first_token_seconds_bucket{le=\"+Inf\",WorkerId=\"%d\",x=\"%s\"} 1\n",
		"tokens of tenants": "sglang:prompt_tokens_total{tenant=\"%d\",x=\"%s\"} 1\n",
		"ends of requests":  "sglang:num_requests_total{tenant=\"%d\",x=\"%s\"} 1\n",
	} {
		var b strings.Builder
		for i := range count {
			fmt.Fprintf(&b, line, i, strings.Repeat("x", size/count-len(line)-1))
		}
		page := b.String()
		if len(page) < size*9/10 || len(page) > size {
			t.Fatalf("%s: the page has %d bytes", name, len(page))
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }))
		cfg := createDefaultConfig().(*Config)
		cfg.Targets = []TargetConfig{{URL: s.URL + "/page"}}
		m, sink := start(t, cfg, nil)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		m.tick(0)
		got := next(t, sink, 1)
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 320 {
			t.Errorf("%s: a reading takes %d MiB", name, n)
		}
		if !slices.Contains(got, "inference.scrape.up{engine="+s.URL+"/page} 1") {
			t.Errorf("%s: it was not read: %.300q", name, got)
		}
		s.Close()
		sink.Reset()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n := int64(after.HeapAlloc-before.HeapAlloc) >> 20; n > 32 {
			t.Errorf("%s: %d MiB stay", name, n)
		}
	}
}
