//go:build bench

package inference

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/bench/usage"
	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/sim"
)

var (
	engines  = flag.Int("engines", 8, "number of engines")
	duration = flag.Duration("duration", time.Minute, "how long to measure")
	interval = flag.Duration("interval", 2*time.Second, "time between two readings of a page; the table is for 10 s")
)

// pages serves the page of a simulated vLLM on several ports, and counts how often it was read.
type pages struct {
	engine *sim.Engine
	start  time.Time
	reads  atomic.Int64
	hosts  []string
}

func serve(t *testing.T) *pages {
	t.Helper()
	p := &pages{start: time.Now().Add(-24 * time.Hour)}
	list, err := sim.Engines(sim.Config{Model: "h200", Start: p.start, Now: time.Now})
	if err != nil || len(list) == 0 {
		t.Fatal("no engine: ", err)
	}
	p.engine = list[0]
	for range *engines {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			p.reads.Add(1)
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			_, _ = w.Write(p.engine.Page(time.Now())) // the reader may be gone
		}))
		t.Cleanup(s.Close)
		p.hosts = append(p.hosts, s.Listener.Addr().String())
	}
	return p
}

// receivers are the receivers that are compared, by name. None is a Collector that reads nothing.
func receivers(hosts []string) map[string]string {
	var targets strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&targets, "      - {url: \"http://%s/metrics\"}\n", h)
	}
	return map[string]string{
		"none":       "  otlp: {protocols: {http: {endpoint: \"127.0.0.1:0\"}}}\n",
		"inference":  fmt.Sprintf("  inference:\n    interval: %s\n    timeout: 1s\n    targets:\n%s", *interval, &targets),
		"prometheus": fmt.Sprintf("  prometheus:\n    config:\n      scrape_configs:\n        - job_name: engines\n          scrape_interval: %s\n          scrape_timeout: 1s\n          static_configs: [{targets: [\"%s\"]}]\n", *interval, strings.Join(hosts, `", "`)),
	}
}

// run runs a Collector with one receiver, and returns the seconds of CPU per page and its memory.
func run(t *testing.T, p *pages, name, receiver string) (pageCost time.Duration, cpu time.Duration, anon float64) {
	t.Helper()
	config := "receivers:\n" + receiver + "exporters:\n  debug: {verbosity: basic}\nservice:\n  telemetry: {metrics: {level: none}, logs: {level: error}}\n" +
		fmt.Sprintf("  pipelines:\n    metrics: {receivers: [%s], exporters: [debug]}\n", map[bool]string{true: "otlp", false: name}[name == "none"])
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("../../bin/gpumeter-collector", "--config", file)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it ends if the benchmark is killed
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make collector", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	first := p.reads.Load()
	if name != "none" {
		await.True(t, "ten rounds of readings", func() bool { return p.reads.Load() >= first+int64(10**engines) })
	} else {
		time.Sleep(10 * *interval)
	}
	before, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err, out.String())
	}
	reads := p.reads.Load()
	time.Sleep(*duration)
	after, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err, out.String())
	}
	_, anon, err = usage.Memory(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if n := p.reads.Load() - reads; n > 0 {
		pageCost = (after - before) / time.Duration(n)
	}
	return pageCost, after - before, anon
}

// The goals, for eight engines read every 10 s.
const (
	mostCPU    = 0.3 // % of a core
	mostMemory = 4   // MiB
	mostRatio  = 0.5 // of what the prometheus receiver takes
)

// TestInference prints what reading pages costs, beside the prometheus receiver.
func TestInference(t *testing.T) {
	p := serve(t)
	lines := bytes.Count(p.engine.Page(time.Now()), []byte("\n"))
	type result struct{ cpu, anon float64 } // of the receiver: % of a core with readings every 10 s, MiB
	all := map[string]result{}
	text := fmt.Sprintf("\n%d engines, pages of %d lines, every %s for %s\n%-12s %12s %14s %12s\n", *engines, lines, *interval, *duration, "", "CPU a page", "CPU at 10 s", "memory MiB")
	var idle time.Duration
	var without float64
	for _, name := range []string{"none", "prometheus", "inference"} {
		page, cpu, anon := run(t, p, name, receivers(p.hosts)[name])
		if name == "none" {
			idle, without = cpu, anon
		}
		share := 100 * float64(cpu-idle) / float64(*duration) * float64(*interval) / float64(10*time.Second)
		all[name] = result{share, anon - without}
		text += fmt.Sprintf("%-12s %12s %13.3f%% %12.1f\n", name, page.Round(time.Microsecond), share, anon)
	}
	ours, theirs := all["inference"], all["prometheus"]
	text += fmt.Sprintf("inference / prometheus: CPU %.2f, memory beyond none %.2f\n", ours.cpu/theirs.cpu, ours.anon/theirs.anon)
	t.Log(text)
	if *engines == 8 && (ours.cpu > mostCPU || ours.anon > mostMemory) {
		t.Errorf("8 engines take %.3f %% of a core and %.1f MiB, want at most %v %% and %v MiB", ours.cpu, ours.anon, mostCPU, mostMemory)
	}
	if ours.cpu > mostRatio*theirs.cpu || ours.anon > mostRatio*theirs.anon {
		t.Errorf("more than %v of what the prometheus receiver takes: CPU %.2f, memory %.2f", mostRatio, ours.cpu/theirs.cpu, ours.anon/theirs.anon)
	}
}
