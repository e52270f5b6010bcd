package inferencereceiver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/inferencereceiver/internal/metadata"
)

// machine is the gpu extension of a machine whose ticks the test makes.
type machine struct{ ticks chan node.Tick }

func (machine) Start(context.Context, component.Host) error { return nil }
func (machine) Shutdown(context.Context) error              { return nil }
func (m machine) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("gpu"): m}
}

func (m machine) Subscribe() (ticks <-chan node.Tick, cancel func()) {
	return m.ticks, sync.OnceFunc(func() { close(m.ticks) })
}

var noon = time.Unix(1_800_000_000, 0)

// tick is a moment, in seconds after noon.
func (m machine) tick(second int) {
	m.ticks <- node.Tick{Time: noon.Add(time.Duration(second) * time.Second), Host: "n1", Resource: map[string]string{"k8s.cluster.name": "c"}}
}

// start starts a receiver whose engines are what found returns at each tick.
func start(t *testing.T, cfg *Config, found Simulated) (machine, *consumertest.MetricsSink) {
	t.Helper()
	cfg.Timeout = cfg.Interval // the machine may be slow
	m, sink := machine{make(chan node.Tick)}, &consumertest.MetricsSink{}
	if found == nil {
		found = func(*node.Tick) []discover.Engine { return nil }
	}
	r, err := NewFactoryWithEngines(found).CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Shutdown(context.Background()) })
	return m, sink
}

// page serves a page that the test changes.
type page struct {
	*httptest.Server
	mu     sync.Mutex
	text   string
	status int
	asked  []string
}

func serve(t *testing.T, text string) *page {
	t.Helper()
	p := &page{text: text}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = append(p.asked, r.URL.Path)
		switch {
		case p.status != 0:
			w.WriteHeader(p.status)
		case strings.HasPrefix(p.text, "{") || strings.HasPrefix(p.text, "["):
			w.Header().Set("Content-Type", "application/json")
		}
		fmt.Fprint(w, p.text)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *page) set(text string, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.status = text, status
}

func (p *page) engine(t *testing.T, id string, w *workload.Workload, devices ...device.ID) discover.Engine {
	t.Helper()
	u, err := url.Parse(p.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	at := []netip.AddrPort{p.Listener.Addr().(*net.TCPAddr).AddrPort()}
	return discover.Engine{ID: id, Addresses: at, Target: inference.Target{URL: u, Client: inference.NewClient(http.DefaultTransport, time.Minute)}, Workload: w, Devices: devices}
}

var short = strings.NewReplacer("inference.engine.id", "engine", "gen_ai.request.model", "model", "gen_ai.provider.name", "provider", "gpu.workload.", "", "k8s.", "")

// lines writes points as name{attributes besides the identity} value since start. Gauges of the reading
// itself are left out but for inference.scrape.up.
func lines(t *testing.T, md pmetric.Metrics) []string {
	t.Helper()
	var out []string
	for m := range series.Metrics(md) {
		if strings.HasPrefix(m.Name(), "inference.scrape") && m.Name() != inference.Up.Name {
			continue
		}
		i := 0
		for p := range series.Points(m) {
			var attrs []string
			for key, v := range p.Attributes().All() {
				if !strings.HasPrefix(key, "server.") {
					attrs = append(attrs, short.Replace(key)+"="+v.AsString())
				}
			}
			slices.Sort(attrs)
			var value string
			switch {
			case p.Flags().NoRecordedValue():
				value = "ended"
			case m.Type() == pmetric.MetricTypeGauge:
				value = fmt.Sprint(m.Gauge().DataPoints().At(i).DoubleValue())
			case m.Type() == pmetric.MetricTypeSum:
				value = fmt.Sprint(m.Sum().DataPoints().At(i).DoubleValue())
			default:
				h := m.Histogram().DataPoints().At(i)
				value = fmt.Sprint(h.ExplicitBounds().AsRaw(), h.BucketCounts().AsRaw(), h.Count(), h.Sum())
			}
			if start := p.StartTimestamp(); start != 0 && value != "ended" {
				value += fmt.Sprintf(" since %v", start.AsTime().Sub(noon))
			}
			out = append(out, fmt.Sprintf("%s{%s} %s", m.Name(), strings.Join(attrs, " "), value))
			i++
		}
	}
	slices.Sort(out)
	return out
}

// next returns the lines of the next batch of an engine.
func next(t *testing.T, sink *consumertest.MetricsSink, n int) []string {
	t.Helper()
	await.True(t, "a batch", func() bool { return len(sink.AllMetrics()) >= n })
	return lines(t, sink.AllMetrics()[n-1])
}

const tokens = "vllm:generation_tokens_total{model_name=\"m\"} %d\nprocess_start_time_seconds %d\n"

// Catches an engine whose series do not join with its devices and its owner, that outlive it, or whose
// counters are doubled when it restarts or its labels change.
func TestEngine(t *testing.T) {
	t.Parallel()
	p := serve(t, fmt.Sprintf(tokens, 10, noon.Unix()+5))
	gpu := device.ID{Vendor: "nvidia", UUID: "GPU-1", Index: 3, Model: "H200"}
	mig := device.ID{Vendor: "nvidia", UUID: "MIG-1", Parent: "GPU-2", Index: 4, Model: "H200", Profile: "1g.18gb"}
	chat := workload.Workload{ID: "pod/1/vllm", Kind: "deployment", Name: "chat", Team: "red", Attributes: map[string]string{"k8s.pod.name": "chat-1"}}
	blue := chat
	blue.Team = "blue"
	engines := []discover.Engine{p.engine(t, "pod/1/vllm:8000", &chat, gpu, mig)}
	relabeled := slices.Clone(engines)
	relabeled[0].Workload, relabeled[0].Devices = &blue, []device.ID{gpu}
	m, sink := start(t, createDefaultConfig().(*Config), func(tick *node.Tick) []discover.Engine {
		switch second := tick.Time.Sub(noon).Seconds(); {
		case second == 0 || second >= 40:
			return nil
		case second >= 30:
			return relabeled
		}
		return engines
	})
	m.tick(0)
	m.tick(10)
	got := next(t, sink, 1)
	const id, owner = "engine=pod/1/vllm:8000", "name=chat pod.name=chat-1"
	want := []string{
		"inference.engine.device{" + id + " gpu.index=3 gpu.model=H200 gpu.uuid=GPU-1 gpu.vendor=nvidia kind=deployment model=m " + owner + " provider=vllm team=red} 1",
		"inference.engine.device{" + id + " gpu.index=4 gpu.model=H200 gpu.partition.id=MIG-1 gpu.partition.profile=1g.18gb gpu.uuid=GPU-2 gpu.vendor=nvidia kind=deployment model=m " +
			owner + " provider=vllm team=red} 1",
		"inference.scrape.up{" + id + " kind=deployment " + owner + " team=red} 1",
		"inference.token.output{" + id + " kind=deployment model=m " + owner + " provider=vllm team=red} 10 since 5s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	p.set(fmt.Sprintf(tokens, 4, noon.Unix()+15), 0) // restarted
	m.tick(20)
	if got := next(t, sink, 2); !slices.Contains(got, "inference.token.output{"+id+" kind=deployment model=m "+owner+" provider=vllm team=red} 4 since 15s") {
		t.Errorf("after a restart: %q", got)
	}

	p.set(fmt.Sprintf(tokens, 6, noon.Unix()+15), 0)
	m.tick(30) // relabeled, and no longer on the partition
	got = next(t, sink, 3)
	for _, want := range []string{
		"inference.token.output{" + id + " kind=deployment model=m " + owner + " provider=vllm team=blue} 6",
		"inference.token.output{" + id + " kind=deployment model=m " + owner + " provider=vllm team=red} ended",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("after new labels, no %q: %q", want, got)
		}
	}

	m.tick(40)
	got = next(t, sink, 4)
	if len(got) != 3 || slices.ContainsFunc(got, func(s string) bool { return !strings.HasSuffix(s, "ended") }) {
		t.Errorf("after its end: %q", got)
	}
}

// Catches tokens that count again when the owner of an engine becomes known, and with it another ID.
func TestOwnerIsKnownLate(t *testing.T) {
	t.Parallel()
	p := serve(t, fmt.Sprintf(tokens, 10, noon.Unix()+5))
	early, late := p.engine(t, "process/vllm:8000", nil), p.engine(t, "pod/1/vllm:8000", nil)
	late.Target.Client = early.Target.Client
	m, sink := start(t, createDefaultConfig().(*Config), func(tick *node.Tick) []discover.Engine {
		switch second := tick.Time.Sub(noon).Seconds(); {
		case second == 0:
			return nil
		case second < 20:
			return []discover.Engine{early}
		}
		return []discover.Engine{late}
	})
	m.tick(0)
	m.tick(10)
	next(t, sink, 1)
	m.tick(20)
	m.tick(30)
	await.True(t, "four batches", func() bool { return len(sink.AllMetrics()) >= 4 })
	var got []string
	for _, md := range sink.AllMetrics() {
		for _, l := range lines(t, md) {
			if strings.HasPrefix(l, "inference.token") {
				got = append(got, l)
			}
		}
	}
	slices.Sort(got)
	want := []string{
		"inference.token.output{engine=pod/1/vllm:8000 model=m provider=vllm} 10", "inference.token.output{engine=pod/1/vllm:8000 model=m provider=vllm} 10",
		"inference.token.output{engine=process/vllm:8000 model=m provider=vllm} 10 since 5s", "inference.token.output{engine=process/vllm:8000 model=m provider=vllm} ended",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches an engine that cannot be read and takes its neighbor along, or whose last values stay.
func TestEngineThatFails(t *testing.T) {
	t.Parallel()
	p, hung := serve(t, fmt.Sprintf(tokens, 10, 0)), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	}))
	defer silent.Close()
	defer close(hung)
	cfg := createDefaultConfig().(*Config)
	cfg.Targets = []TargetConfig{{URL: silent.URL + "/metrics", Timeout: 50 * time.Millisecond}, {URL: p.URL + "/metrics"}}
	m, sink := start(t, cfg, nil)
	ups := func(n int) map[string]string {
		await.True(t, "both batches", func() bool { return len(sink.AllMetrics()) >= 2*n })
		out := map[string]string{}
		for _, md := range sink.AllMetrics()[2*n-2:] {
			for _, l := range lines(t, md) {
				for _, target := range []string{silent.URL, p.URL} {
					if strings.Contains(l, target) {
						out[map[string]string{silent.URL: "silent", p.URL: "page"}[target]] += strings.ReplaceAll(l, "engine="+target+"/metrics", "") + ";"
					}
				}
			}
		}
		return out
	}
	m.tick(0)
	want := map[string]string{"silent": "inference.scrape.up{} 0;", "page": "inference.scrape.up{} 1;inference.token.output{ model=m provider=vllm} 0 since 0s;"}
	if diff := cmp.Diff(want, ups(1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.set("", http.StatusServiceUnavailable)
	m.tick(10)
	want["page"] = "inference.scrape.up{} 0;inference.token.output{ model=m provider=vllm} ended;"
	if diff := cmp.Diff(want, ups(2)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches trtllm-serve's list of JSON, which whoever reads it empties, and that is read again.
func TestPageThatIsNone(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]string{
		`{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}`: {"/v1/models"}, // it is never read
		"[]": {"/v1/models", "/metrics"}, // it does not say so
	} {
		p := serve(t, list)
		cfg := createDefaultConfig().(*Config)
		cfg.Targets = []TargetConfig{{URL: p.URL + "/metrics"}}
		m, sink := start(t, cfg, nil)
		for i := range 4 {
			m.tick(10 * i)
			if got := next(t, sink, i+1); len(got) != 1 || !strings.HasSuffix(got[0], "} 0") {
				t.Errorf("after reading %d: %q", i, got)
			}
		}
		p.mu.Lock()
		if diff := cmp.Diff(want, p.asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		p.mu.Unlock()
	}
}

// Catches a page that is never read again because a proxy answered in its place for a while, or because the list of JSON
// is where trtllm-serve has none.
func TestPageReturns(t *testing.T) {
	t.Parallel()
	for path, none := range map[string]string{"/metrics": `{"status":"maintenance"}`, "/stats": "[]", "/prometheus/metrics": "[]"} {
		p := serve(t, none)
		cfg := createDefaultConfig().(*Config)
		cfg.Targets = []TargetConfig{{URL: p.URL + path}}
		m, sink := start(t, cfg, nil)
		m.tick(0)
		next(t, sink, 1)
		p.set(fmt.Sprintf(tokens, 1, 0), 0)
		m.tick(10)
		if got := next(t, sink, 2); !slices.Contains(got, "inference.scrape.up{engine="+p.URL+path+"} 1") {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// Catches an engine that is asked for its version at each reading, or never.
func TestVersion(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.URL.Path]++
		switch {
		case r.URL.Path == "/page":
			fmt.Fprint(w, "tgi_queue_size 3\n")
		case r.URL.Path != "/info":
			http.NotFound(w, r)
		case asked["/info"] == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, `{"model_id":"org/m","version":"3.3.7"}`)
		}
	}))
	defer s.Close()
	cfg := createDefaultConfig().(*Config)
	cfg.Targets = []TargetConfig{{URL: s.URL + "/page"}}
	m, sink := start(t, cfg, nil)
	var got [][]string
	for i := range 4 {
		m.tick(10 * i)
		var about []string
		for _, l := range next(t, sink, i+1) {
			if l = strings.ReplaceAll(l, "engine="+s.URL+"/page ", ""); !strings.HasPrefix(l, inference.Up.Name) {
				about = append(about, strings.ReplaceAll(l, "inference.", ""))
			}
		}
		got = append(got, about)
	}
	late := []string{"engine.info{engine.version=3.3.7 model=org/m provider=tgi} 1", "request.count{request.state=waiting model=org/m provider=tgi} 3"}
	want := [][]string{{"request.count{request.state=waiting provider=tgi} 3"}, append(slices.Clone(late), "request.count{request.state=waiting provider=tgi} ended"), late, late}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(map[string]int{"/page": 4, "/info": 2}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// Catches an engine that has served no request yet, and with that has an empty page, that looks broken.
func TestEmptyPage(t *testing.T) {
	t.Parallel()
	p := serve(t, "")
	cfg := createDefaultConfig().(*Config)
	cfg.Targets = []TargetConfig{{URL: p.URL + "/page"}}
	m, sink := start(t, cfg, nil)
	m.tick(0)
	if diff := cmp.Diff([]string{"inference.scrape.up{engine=" + p.URL + "/page} 1"}, next(t, sink, 1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
