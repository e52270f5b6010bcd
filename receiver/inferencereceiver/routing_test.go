package inferencereceiver

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/inferencereceiver/internal/metadata"
)

// router asks a receiver for signals.
type router struct {
	t *testing.T
	machine
	routing *routing
}

// openRouting starts a receiver that serves signals. Each request reads the engines.
func openRouting(t *testing.T, cfg *Config, found Simulated) *router {
	t.Helper()
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "127.0.0.1:0"
	cfg.Routing = configoptional.Some(server)
	cfg.Timeout = cfg.Interval // the machine may be slow
	m := machine{make(chan node.Tick)}
	r, err := NewFactoryWithEngines(found).CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	out := &router{t, m, r.(*inferenceReceiver).routing}
	out.routing.fresh, out.routing.timeout = 0, time.Minute // the machine may be slow
	return out
}

var comments = regexp.MustCompile(`(?m)^#.*\n`)

// ask returns the status and the lines with values.
func (r *router) ask(path string, headers ...string) (int, string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.routing.address.String()+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	request.Host = request.Header.Get("Host")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(comments.ReplaceAllString(string(body), ""))
}

func (r *router) expect(path string, status int, text string, headers ...string) {
	r.t.Helper()
	gotStatus, got := r.ask(path, headers...)
	if gotStatus != status {
		r.t.Errorf("%s: %d, want %d", path, gotStatus, status)
	}
	if diff := cmp.Diff(text, got); diff != "" {
		r.t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func inPod(name string) *workload.Workload {
	return &workload.Workload{ID: "pod/" + name + "/c", Attributes: map[string]string{"k8s.namespace.name": "team-a", "k8s.pod.name": name}}
}

// Catches a queue that is as old as the last tick, one that belongs to another pod or to several, and a pod that looks
// idle because one of its engines does not answer.
func TestRouting(t *testing.T) {
	t.Parallel()
	one, two, three := serve(t, "vllm:num_requests_waiting 1\n"), serve(t, "tgi_queue_size 2\n"), serve(t, "vllm:num_requests_waiting 4\n")
	engines := []discover.Engine{one.engine(t, "one", inPod("llm-0")), two.engine(t, "two", inPod("llm-1")), three.engine(t, "three", inPod("llm-1"))}
	r := openRouting(t, createDefaultConfig().(*Config), func(now *node.Tick) []discover.Engine {
		if s := now.Time.Sub(noon); s >= 10*time.Second && s < 20*time.Second {
			return engines
		}
		return engines[:1]
	})

	r.expect("/metrics", 503, "no inference engine is known")
	r.tick(0)
	r.tick(1) // the first has been taken in
	r.expect("/metrics", 200, "vllm:num_requests_waiting 1")
	one.set("vllm:num_requests_waiting 7\n", 0)
	r.expect("/metrics", 200, "vllm:num_requests_waiting 7")
	r.expect("/pods/team-a/llm-0/metrics", 200, "vllm:num_requests_waiting 7")
	r.expect("/pods/team-b/llm-0/metrics", 404, "no inference engine of this pod is known")

	r.tick(10)
	r.tick(11)
	r.expect("/metrics", 503, "the engines are in several pods, each of which has a page of its own:\n/pods/team-a/llm-0/metrics\n/pods/team-a/llm-1/metrics")
	r.expect("/pods/team-a/llm-0/metrics", 200, "vllm:num_requests_waiting 7")
	r.expect("/pods/team-a/llm-1/metrics", 200, "vllm:num_requests_waiting 6")

	three.set("", http.StatusInternalServerError)
	r.expect("/pods/team-a/llm-1/metrics", 502, "cannot read three: the answer is 500 Internal Server Error")
	r.expect("/pods/team-a/llm-0/metrics", 200, "vllm:num_requests_waiting 7")

	r.tick(20)
	r.tick(21)
	r.expect("/pods/team-a/llm-1/metrics", 404, "no inference engine of this pod is known")
	r.expect("/metrics", 200, "vllm:num_requests_waiting 7")
}

// Catches a page that a website can read through the browser of somebody on this machine, and one that another agent
// takes for an engine.
func TestRoutingRefuses(t *testing.T) {
	t.Parallel()
	p := serve(t, "vllm:num_requests_waiting 1\n")
	engine := p.engine(t, "one", nil)
	r := openRouting(t, createDefaultConfig().(*Config), func(*node.Tick) []discover.Engine { return []discover.Engine{engine} })
	r.tick(0)
	r.tick(1) // the first has been taken in
	r.expect("/metrics", 200, "vllm:num_requests_waiting 1")
	if status, _ := r.ask("/metrics", "Host", "evil.example"); status != http.StatusForbidden {
		t.Errorf("a request for another host is answered with %d", status)
	}
	r.expect("/metrics", 403, "this is not an inference engine", "User-Agent", "gpumeter")
}

// Catches an engine that is read once for each picker, and a page that must not be read that is read again.
func TestRoutingReadsOnce(t *testing.T) {
	t.Parallel()
	p := serve(t, "vllm:num_requests_waiting 1\n")
	engine := p.engine(t, "one", nil)
	r := openRouting(t, createDefaultConfig().(*Config), func(*node.Tick) []discover.Engine { return []discover.Engine{engine} })
	r.tick(0)
	r.tick(1) // the first has been taken in
	r.routing.fresh = time.Hour
	p.mu.Lock()
	p.asked = nil
	p.mu.Unlock()
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() { r.expect("/metrics", 200, "vllm:num_requests_waiting 1") })
	}
	asking.Wait()
	if diff := cmp.Diff([]string{"/metrics"}, p.asked); diff != "" {
		t.Errorf("the engine was asked for (-want +got):\n%s", diff)
	}
	r.routing.fresh = 0
	p.set(`[{"error": "no page"}]`, 0)
	for range 3 {
		if status, text := r.ask("/metrics"); status != http.StatusBadGateway {
			t.Errorf("a page that is none: %d %s", status, text)
		}
	}
	if diff := cmp.Diff([]string{"/metrics", "/metrics"}, p.asked); diff != "" {
		t.Errorf("the engine was asked for (-want +got):\n%s", diff)
	}
}

// Catches an address in use that stops nothing, or is reported without the key it belongs to.
func TestRoutingAddressInUse(t *testing.T) {
	t.Parallel()
	r := openRouting(t, createDefaultConfig().(*Config), func(*node.Tick) []discover.Engine { return nil })
	cfg := createDefaultConfig().(*Config)
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = r.routing.address.String()
	cfg.Routing = configoptional.Some(server)
	second, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	err = second.Start(t.Context(), componenttest.NewNopHost())
	if err == nil || !strings.Contains(err.Error(), "the address of routing") {
		t.Errorf("the error is %v", err)
	}
	if err := second.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
