//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// Catches an engine that the agent does not find or names wrongly, tokens that it loses, invents or counts
// twice over restarts of the engine, series that outlive it, and questions to programs that are no engine.
func TestInferenceDiscovered(t *testing.T) {
	t.Parallel()
	f := func(name string, open func(*testing.T) *engine) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDiscovered(t, open(t))
		})
	}
	f("llama.cpp", llama)
	f("llm-d", vllmLike)
}

// discovery is a machine with one GPU, an agent without any configuration of engines, and its hub.
type discovery struct {
	t        *testing.T
	engine   *engine
	neighbor *process // on the GPU, and no engine
	driver   *nvmltest.Host
	page     string
	hub      server
	total    usage // of engines that have ended, and since the agent runs
}

const engineGPU = "GPU-e2e10000-0000-4000-8000-000000000000"

func testDiscovered(t *testing.T, e *engine) {
	d := &discovery{t: t, engine: e, driver: nvmltest.New(t, ""), neighbor: plainServer(t, "neighbor-"+e.port)}
	stranger := plainServer(t, "stranger-"+e.port)
	binary := gpumeter(t)
	words := func(i int) int { return 1 + i%7 }

	e.start()
	e.load(5, words) // what an engine counted before the agent started counts, too
	before := e.used
	d.assign()
	d.watch(binary)
	d.read(time.Time{})
	e.load(20, words)
	d.check()
	questions := asked(d.neighbor)

	// It is killed, and is gone before it starts again. The agent finds it at its next scan.
	d.total.add(e.used)
	e.kill()
	d.assign()
	d.ended()
	again := time.Now()
	e.start()
	e.load(4, words)
	d.assign()
	d.read(again)
	scanned := d.hub.number("timestamp(" + d.of("inference_scrape_up") + ")") // a tick after the scan
	e.load(7, words)
	d.check()

	// It is killed and starts again between two readings, just before a scan: the agent finds the new process
	// before it misses the old one.
	d.total.add(e.used)
	d.hub.wait("timestamp(gpu_up) >= 25 + " + scanned)
	e.kill()
	e.start()
	d.assign()
	e.load(3, words)
	d.check()

	// No token is lost or counted twice over all that. What was counted before the agent started has no time.
	d.total.add(e.used)
	for metric, want := range map[string]int{"inference_token_input_total": d.total.in - before.in, "inference_token_output_total": d.total.out - before.out} {
		if got := d.hub.grown(d.of(metric)); got != float64(want) {
			t.Errorf("%s grew by %v, but the client received %d", metric, got, want)
		}
	}
	if !apart(t, d.neighbor) {
		t.Log("all programs of the tests are in one control group: their agents may ask each")
		return
	}
	if n := len(questions); n == 0 || n > 5 {
		t.Errorf("a server that is no engine was asked for %q", questions)
	}
	if diff := cmp.Diff(questions, asked(d.neighbor)); diff != "" {
		t.Errorf("a server that is no engine was asked again at a later scan (-first +all):\n%s", diff)
	}
	if got := asked(stranger); len(got) > 0 {
		t.Errorf("a server that is not on the GPU was asked for %q", got)
	}
}

// watch starts the hub and the agent.
func (d *discovery) watch(binary string) {
	d.t.Helper()
	address := start(d.t, binary, "hub", "--data-dir", filepath.Join(d.t.TempDir(), "hub"), "--listen", "127.0.0.1:0", "--listen-grpc", "").find(d.t, hubAddress)
	d.hub = server{d.t, address}
	d.page = start(d.t, binary, "agent", "--nvidia-library", d.driver.Library, "--interval", "1s", "--slow-interval", "1s", "--listen", "127.0.0.1:0",
		"--socket", "", "--state-dir", d.t.TempDir(), "--no-standby", "--no-cloud", "--host-name", "host-a", "--otlp-endpoint", address).find(d.t, pageAddress)
}

// assign makes the driver say who is on the GPU.
func (d *discovery) assign() {
	d.t.Helper()
	script := fmt.Sprintf("gpus 1\ngpu 0 uuid %s\n", engineGPU)
	for _, p := range []*process{d.engine.p, d.neighbor} {
		if p != nil && p.cmd.ProcessState == nil {
			script += fmt.Sprintf("process 0 %d compute 1073741824 40\n", p.cmd.Process.Pid)
		}
	}
	d.driver.Script(d.t, script)
}

// of returns a selector of a metric of the engine.
func (d *discovery) of(metric string, more ...string) string {
	return metric + "{" + strings.Join(append(more, fmt.Sprintf("server_port=%q", d.engine.port)), ", ") + "}"
}

// read waits until the hub has a reading of the engine that began after a time.
func (d *discovery) read(after time.Time) {
	d.t.Helper()
	up := d.of("inference_scrape_up")
	d.hub.wait(fmt.Sprintf("timestamp(%s) > %s and %s == 1", up, seconds(after), up))
}

// number returns the value of an expression that has one.
func (s server) number(expr string) string {
	s.t.Helper()
	got, err := s.query(expr)
	if err != nil || len(got) != 1 {
		s.t.Fatalf("%s has %d values, err %v: %v", expr, len(got), err, got)
	}
	return got[0].Value[1].(string)
}

// check compares what the hub has with what the client of the engine received since its process began.
func (d *discovery) check() {
	d.t.Helper()
	d.read(time.Now())
	e := d.engine
	model := fmt.Sprintf("gen_ai_request_model=%q", e.model)
	want := map[string]int{"inference_token_input_total": e.used.in, "inference_token_output_total": e.used.out}
	if e.provider == "llama_cpp" {
		want["inference_prefix_cache_queries_total"], want["inference_prefix_cache_hits_total"] = e.used.in, e.used.cached
	} else {
		want["inference_request_finished_total"] = e.used.requests
	}
	for metric, n := range want {
		if got := d.hub.number(d.of(metric, model)); got != strconv.Itoa(n) {
			d.t.Errorf("%s is %s, but the client received %d", metric, got, n)
		}
	}
	// The devices of the engine have the identity that their own metrics have.
	got, err := d.hub.query(fmt.Sprintf("%s * on (host_name, gpu_uuid) group_left () gpu_up", d.of("inference_engine_device")))
	if err != nil || len(got) != 1 {
		d.t.Fatalf("%d devices of the engine, err %v: %v", len(got), err, got)
	}
	program := filepath.Base(e.argv[0])
	labels := map[string]string{
		"gen_ai_provider_name": e.provider, "gen_ai_request_model": e.model, "host_name": "host-a", "instance": "host-a", "job": "gpumeter",
		"gpu_index": "0", "gpu_model": "NVIDIA H200", "gpu_uuid": engineGPU, "gpu_vendor": "nvidia", "gpu_workload_kind": "process", "gpu_workload_name": program,
		"inference_engine_id": fmt.Sprintf("process/%d/%s:%s", os.Getuid(), program, e.port), "server_address": "127.0.0.1", "server_port": e.port,
	}
	delete(got[0].Metric, "user_name") // of whoever runs the test
	if diff := cmp.Diff(labels, got[0].Metric); diff != "" {
		d.t.Errorf("the device of the engine (-want +got):\n%s", diff)
	}
}

// grown returns what counters grew by in all of their samples, whatever they began with.
func (s server) grown(selector string) (sum float64) {
	s.t.Helper()
	list, err := s.histories(selector + "[1h]")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, values := range list {
		last := math.NaN()
		for _, x := range values {
			v, err := strconv.ParseFloat(x.value, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			switch {
			case v < last:
				sum += v
			case v > last:
				sum += v - last
			}
			last = v
		}
	}
	return sum
}

// ended waits until all series of the engine have ended.
func (d *discovery) ended() {
	d.t.Helper()
	eventually(d.t, "the series of the engine end", func() error {
		left, err := d.hub.query("count by (__name__) (" + d.of("", `__name__=~"(inference|gen_ai)_.+"`) + ")")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("the hub still has %v", left)
		}
		return err
	})
	// They would end without the agent, too: when the hub has had no sample for five minutes.
	if got, err := d.hub.query("last_over_time(" + d.of("inference_token_output_total") + "[4m])"); err != nil || len(got) != 1 {
		d.t.Errorf("the agent has not ended all series: %v, err %v", got, err)
	}
	page, err := get(d.t, "http://"+d.page+"/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	if strings.Contains(page, fmt.Sprintf("server_port=%q", d.engine.port)) {
		d.t.Errorf("the page still has the engine:\n%s", page)
	}
}
