//go:build bench

package inference

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net"
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

// program is what reads pages, or reads none.
type program struct {
	argv  []string
	pprof string // where it says what it holds
	reads bool
	every time.Duration // between two readings of a page
}

// cost is what a program takes.
type cost struct {
	cpu  time.Duration
	page time.Duration // of CPU
	anon float64       // MiB of memory of its own
	live float64       // MiB that it holds after a collection, 0 if it does not say
}

// collector returns a Collector with one receiver.
func collector(t *testing.T, p *pages, name string) program {
	t.Helper()
	var targets strings.Builder
	for _, h := range p.hosts {
		fmt.Fprintf(&targets, "      - {url: \"http://%s/metrics\"}\n", h)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := program{pprof: l.Addr().String(), reads: name != "otlp", every: *interval}
	_ = l.Close()
	config := "receivers:\n" + map[string]string{
		"otlp":       "  otlp: {protocols: {http: {endpoint: \"127.0.0.1:0\"}}}\n", // reads nothing
		"inference":  fmt.Sprintf("  inference:\n    interval: %s\n    timeout: 1s\n    targets:\n%s", *interval, &targets),
		"prometheus": fmt.Sprintf("  prometheus:\n    config:\n      scrape_configs:\n        - job_name: engines\n          scrape_interval: %s\n          scrape_timeout: 1s\n          static_configs: [{targets: [\"%s\"]}]\n", *interval, strings.Join(p.hosts, `", "`)),
	}[name] + "exporters:\n  debug: {verbosity: basic}\n" + fmt.Sprintf("extensions:\n  pprof: {endpoint: %q}\n", out.pprof) +
		"service:\n  extensions: [pprof]\n  telemetry: {metrics: {level: none}, logs: {level: error}}\n" + fmt.Sprintf("  pipelines:\n    metrics: {receivers: [%s], exporters: [debug]}\n", name)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	out.argv = []string{"../../bin/gpumeter-collector", "--config", file}
	return out
}

// agent returns an agent that reads the pages, or none.
func agent(t *testing.T, p *pages, reads bool) program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gpumeter")
	if out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "github.com/gpumeter/gpumeter/cmd/gpumeter").CombinedOutput(); err != nil {
		t.Fatalf("cannot build gpumeter: %v\n%s", err, out)
	}
	out := program{reads: reads, every: 10 * time.Second, argv: []string{
		binary, "agent", "--no-inference", "--interval", "10s", "--listen", "127.0.0.1:0", "--socket", "", "--state-dir", t.TempDir(), "--no-standby", "--no-cloud", "--no-workloads",
	}}
	for _, h := range p.hosts {
		if reads {
			out.argv = append(out.argv, "--inference-target", "http://"+h+"/metrics")
		}
	}
	return out
}

// measure runs a program and returns what it takes.
func (p *pages) measure(t *testing.T, what program) cost {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(what.argv[0], what.argv[1:]...)
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
	if what.reads {
		await.True(t, "four rounds of readings", func() bool { return p.reads.Load() >= first+int64(4**engines) })
	} else {
		time.Sleep(4 * what.every)
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
	c := cost{cpu: after - before}
	if n := p.reads.Load() - reads; n > 0 {
		c.page = c.cpu / time.Duration(n)
	}
	if _, c.anon, err = usage.Memory(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if what.pprof != "" {
		c.live = live(t, what.pprof)
	}
	return c
}

// live returns the MiB that a program holds after a collection.
func live(t *testing.T, pprof string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + pprof + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		var n float64
		if k, _ := fmt.Sscanf(lines.Text(), "# HeapAlloc = %f", &n); k == 1 {
			return n / (1 << 20)
		}
	}
	t.Fatal("the profile has no HeapAlloc")
	return 0
}

// The goals, for eight engines read every 10 s.
const (
	mostCPU    = 0.3 // % of a core
	mostMemory = 4   // MiB more in an agent
	mostRatio  = 0.5 // of what the prometheus receiver takes and holds
)

// TestInference prints what reading pages costs, beside the prometheus receiver and in the agent.
func TestInference(t *testing.T) {
	p := serve(t)
	text := fmt.Sprintf("\n%d engines, pages of %d lines, every %s for %s\n%-28s %12s %14s %12s %12s\n", *engines, bytes.Count(p.engine.Page(time.Now()), []byte("\n")), *interval, *duration,
		"", "CPU a page", "CPU at 10 s", "anonymous", "live heap")
	all := map[string]cost{}
	for _, name := range []string{"otlp", "prometheus", "inference"} {
		all[name] = p.measure(t, collector(t, p, name))
	}
	all["agent"], all["agent, engines"] = p.measure(t, agent(t, p, false)), p.measure(t, agent(t, p, true))
	share := func(name, without string) float64 { // % of a core with a reading every 10 s
		s := 100 * float64(all[name].cpu-all[without].cpu) / float64(*duration)
		if name == "prometheus" || name == "inference" {
			s *= float64(*interval) / float64(10*time.Second)
		}
		return s
	}
	for _, row := range [][3]string{
		{"otlp", "otlp", "Collector, reads nothing"},
		{"prometheus", "otlp", "Collector, prometheus"},
		{"inference", "otlp", "Collector, inference"},
		{"agent", "agent", "agent, reads nothing"},
		{"agent, engines", "agent", "agent, reads the engines"},
	} {
		c := all[row[0]]
		text += fmt.Sprintf("%-28s %12s %13.3f%% %8.1f MiB %8.1f MiB\n", row[2], c.page.Round(time.Microsecond), share(row[0], row[1]), c.anon, c.live)
	}
	cpu := share("inference", "otlp") / share("prometheus", "otlp")
	held := (all["inference"].live - all["otlp"].live) / (all["prometheus"].live - all["otlp"].live)
	more := all["agent, engines"].anon - all["agent"].anon
	text += fmt.Sprintf("inference / prometheus: CPU %.2f, live heap beyond that of a Collector that reads nothing %.2f\n", cpu, held)
	t.Log(text)
	if *engines == 8 && (share("agent, engines", "agent") > mostCPU || more > mostMemory) {
		t.Errorf("8 engines take %.3f %% of a core and %.1f MiB of an agent, want at most %v %% and %v MiB", share("agent, engines", "agent"), more, mostCPU, mostMemory)
	}
	if cpu > mostRatio || held > mostRatio {
		t.Errorf("more than %v of what the prometheus receiver takes: CPU %.2f, live heap %.2f", mostRatio, cpu, held)
	}
}
