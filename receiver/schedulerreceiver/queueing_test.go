package schedulerreceiver

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/scheduler/queueing/pages"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// Catches a queue, a word or an instance that ends up in the wrong attribute, and counts of two systems in one series.
func TestQueueing(t *testing.T) {
	address := systemPages(t)
	md := reads(t, PageConfig{URL: address + "/kueue.txt"}, PageConfig{URL: address + "/yunikorn.txt", Type: "yunikorn"})
	got := map[string]float64{}
	kinds := map[string]bool{}
	for key, v := range points(md) {
		got[strings.TrimSpace(strings.ReplaceAll(key, strings.TrimPrefix(address, "http://"), ""))] = v
	}
	for m := range series.Metrics(md) {
		for p := range series.Points(m) {
			kind, _ := p.Attributes().Get("scheduler.type")
			kinds[m.Name()+" "+kind.Str()] = true
		}
	}
	want := map[string]float64{
		"scheduler.up":                          1,
		"scheduler.queue.gpu.nominal h200 red":  8,
		"scheduler.queue.gpu.limit h200 red":    12,
		"scheduler.queue.gpu.used h200 red":     10,
		"scheduler.queue.gpu.borrowed h200 red": 2,
		"scheduler.queue.gpu.pending  red":      16,
		"scheduler.queue.fair_share red":        250,
		"scheduler.queue.job.count pending red": 3, "scheduler.queue.job.count running red": 3,
		"scheduler.queue.evicted preempted /kueue.txt red": 2,
		"scheduler.queue.attempts scheduled /kueue.txt":    5,
		"scheduler.queue.wait.duration /kueue.txt red":     3,
		"scheduler.queue.attempt.duration /kueue.txt":      5,
		"scheduler.queue.gpu.capacity":                     24,
		"scheduler.queue.gpu.nominal  root.red":            4,
		"scheduler.queue.gpu.limit  root.red":              8,
		"scheduler.queue.gpu.used  root.red":               6,
		"scheduler.queue.gpu.borrowed  root.red":           2,
		"scheduler.queue.gpu.pending  root.red":            2,
		"scheduler.queue.job.count pending root.red":       3, "scheduler.queue.job.count running root.red": 2,
		"scheduler.queue.attempts scheduled /yunikorn.txt": 7,
		"scheduler.queue.attempt.duration /yunikorn.txt":   4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, pair := range []string{"scheduler.up kueue", "scheduler.up yunikorn", "scheduler.queue.gpu.used kueue", "scheduler.queue.gpu.used yunikorn", "scheduler.queue.attempts yunikorn", "scheduler.queue.attempt.duration kueue"} {
		if !kinds[pair] {
			t.Errorf("%s is absent", pair)
		}
	}
	if name := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Scope().Name(); name == metadata.ScopeName {
		t.Errorf("the scope is %s: on the metrics page this replaces what the watch says, and the other way around", name)
	}
}

// Catches gauges of a process that is no longer elected: the next one reports the same.
func TestQueueingEnds(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Queueing.Pages = []PageConfig{{URL: systemPages(t) + "/yunikorn.txt"}}
	sink := &consumertest.MetricsSink{}
	q := newQueues(cfg, "c", receivertest.NewNopSettings(component.MustNewType("scheduler")), sink, nil)
	q.send(t.Context(), q.emit(q.reader.Read(t.Context(), created), created))
	for range 2 {
		q.send(t.Context(), q.emit(pages.Round{}, created.Add(time.Minute)))
	}
	if n := len(sink.AllMetrics()); n != 2 {
		t.Fatalf("%d batches, want the values and their end", n)
	}
	got := points(last(sink))
	if end := ended(last(sink)); len(got) != 0 || !end["scheduler.up"] || !end["scheduler.queue.gpu.used"] || end["scheduler.queue.attempts"] {
		t.Errorf("%v, ended %v", got, end)
	}
}

// scheduled starts a receiver.
func scheduled(t *testing.T, cfg *Config) (*consumertest.MetricsSink, *observer.ObservedLogs) {
	t.Helper()
	set := receivertest.NewNopSettings(component.MustNewType("scheduler"))
	core, logs := observer.New(zap.InfoLevel)
	set.Logger = zap.New(core)
	sink := &consumertest.MetricsSink{}
	r, err := NewFactory().CreateMetrics(t.Context(), set, cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return sink, logs
}

// scripted serves a page of YuniKorn with what function returns.
func scripted(t *testing.T, page func() string) (address string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text := page()
		if text == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/ws/v1/metrics"
}

// ended returns the gauges of a batch that have ended.
func ended(md pmetric.Metrics) map[string]bool {
	out := map[string]bool{}
	for m := range series.Metrics(md) {
		for p := range series.Points(m) {
			if p.Flags().NoRecordedValue() {
				out[m.Name()] = true
			}
		}
	}
	return out
}

// Catches values that outlive the page, a failure that is logged in each round, and a sum that begins anew with its scheduler.
func TestQueueingReceiver(t *testing.T) {
	var text atomic.Value
	page := func(attempts int) string {
		return fmt.Sprintf("yunikorn_queue_app{queue=\"root.a\",state=\"running\"} 2\nyunikorn_scheduler_container_allocation_attempt_total{state=\"allocated\"} %d\n", attempts)
	}
	text.Store(page(7))
	address := scripted(t, func() string { return text.Load().(string) })
	cfg := createDefaultConfig().(*Config)
	cfg.Scheduler, cfg.Queueing.Cluster, cfg.Queueing.Interval = queueingKind, "c", 10*time.Millisecond
	cfg.Queueing.Pages = []PageConfig{{URL: address}}
	sink, logs := scheduled(t, cfg)
	attempts := "scheduler.queue.attempts scheduled " + strings.TrimPrefix(address, "http://")
	is := func(what string, want float64) {
		t.Helper()
		await.True(t, what, func() bool {
			got := points(last(sink))
			return got["scheduler.queue.job.count running root.a "] == 2 && got[attempts] == want && got["scheduler.up"] == 1
		})
	}
	is("the page is read", 7)
	text.Store("")
	await.True(t, "the page is missed, for some rounds", func() bool {
		down, end := 0, false
		for _, md := range sink.AllMetrics() {
			if points(md)["scheduler.up"] == 0 {
				down++
			}
			end = end || ended(md)["scheduler.queue.job.count"]
		}
		return end && down > 3
	})
	text.Store(page(3)) // the scheduler began anew
	is("the page is back", 10)
	if n := logs.FilterMessage("Some pages of queueing systems cannot be read").Len(); n != 1 {
		t.Errorf("the failure is logged %d times", n)
	}
	await.True(t, "that it is back is logged", func() bool { return logs.FilterMessage("All pages of queueing systems are read again").Len() == 1 })
}

// Catches a process that reads pages although another is elected, a page that hangs and takes the pods of the cluster with it, and
// a missing permission to look for pages that is not said, or said to be a failure of the rest.
func TestQueueingInKubernetes(t *testing.T) {
	s := queued()
	s.Fail("/apis/discovery.k8s.io", kubeapitest.Fault{Status: 403})
	api, stop := s.Serve()
	defer stop()
	var requests atomic.Int64
	hangs := make(chan struct{})
	address := scripted(t, func() string {
		requests.Add(1)
		<-hangs
		return "yunikorn_queue_app{queue=\"root.a\",state=\"running\"} 2\n"
	})
	start := func() (*consumertest.MetricsSink, *observer.ObservedLogs) {
		file, err := kubeapitest.Kubeconfig(t.TempDir(), api)
		if err != nil {
			t.Fatal(err)
		}
		cfg := createDefaultConfig().(*Config)
		cfg.Scheduler = kubernetesKind
		cfg.Kubernetes.Kubeconfig, cfg.Kubernetes.Cluster, cfg.Kubernetes.Interval = file, "c", 20*time.Millisecond
		cfg.Queueing.Pages, cfg.Queueing.Timeout = []PageConfig{{URL: address}}, time.Minute
		return scheduled(t, cfg)
	}
	first, logs := start()
	await.True(t, "pods are reported again and again, while the page hangs", func() bool {
		return requests.Load() == 1 && len(first.AllMetrics()) > 5 && points(last(first))["scheduler.job.count running ml "] == 1
	})
	close(hangs)
	await.True(t, "the page is reported", func() bool { return points(last(first))["scheduler.queue.job.count running root.a "] == 2 })
	await.True(t, "the missing permission is said", func() bool { return logs.FilterMessage("Some pages of queueing systems cannot be read").Len() == 1 })
	if n := logs.FilterMessage("Some requests to the Kubernetes API failed").Len(); n != 0 {
		t.Errorf("%d failures of other requests are logged", n)
	}

	second, logs := start()
	await.True(t, "the other says who watches", func() bool { return logs.FilterMessage("Another process watches the Kubernetes cluster").Len() == 1 })
	before := requests.Load()
	await.True(t, "the elected one reads on", func() bool { return requests.Load() > before+3 })
	if n := len(second.AllMetrics()); n > 0 {
		t.Errorf("the other reports %d batches: %v", n, points(last(second)))
	}
}

// Catches a token that would be sent in the clear, and a list that silently reads nothing.
func TestQueueingConfig(t *testing.T) {
	f := func(want string, page map[string]any, more ...any) {
		t.Helper()
		section := map[string]any{"pages": []any{page}}
		for i := 0; i < len(more); i += 2 {
			section[more[i].(string)] = more[i+1]
		}
		cfg := createDefaultConfig()
		err := confmap.NewFromStringMap(map[string]any{"scheduler": "queueing", "queueing": section}).Unmarshal(cfg)
		if err == nil {
			err = confmap.Validate(cfg)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v gives %v, want %q", section, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error has the password: %v", err)
		}
	}
	url := func(u string) map[string]any { return map[string]any{"url": u} }
	f("", url("http://volcano-scheduler-service.volcano-system:8080/metrics"))
	f("", map[string]any{"url": "https://10.0.0.1:8443/metrics", "type": "kueue", "token_file": "/t", "ca_file": "/ca", "server_name": "kueue", "insecure_skip_verify": true, "parents": []any{"dep"}})
	f("queueing::pages is empty", nil, "pages", []any{})
	f("not an http:// or https:// address", url("kueue:8443/metrics"))
	f("has a user or a password", url("https://me:secret@kueue:8443/metrics"))
	f("has no path", url("http://kueue:8080"))
	f("token_file needs an https:// address", map[string]any{"url": "http://kueue:8080/metrics", "token_file": "/t"})
	f(`type "lsf" is not known`, map[string]any{"url": "http://kueue:8080/metrics", "type": "lsf"})
	f("is listed twice", nil, "pages", []any{url("http://kueue:8080/metrics"), url("http://kueue:8080/metrics")})
	f("interval must be at least 1s", url("http://kueue:8080/metrics"), "interval", "1ms")
	f("timeout must be at least 1ms", url("http://kueue:8080/metrics"), "timeout", "0s")
	many := []any{}
	for i := range maxPages + 1 {
		many = append(many, url(fmt.Sprintf("http://kueue:%d/metrics", i+1)))
	}
	f("at most 32 are read", nil, "pages", many)
}
