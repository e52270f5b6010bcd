//go:build bench

package hub

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/bench/usage"
)

var (
	binary  = flag.String("gpumeter", "", "path of the hub's binary; built if empty")
	gpus    = flag.Int("gpus", 1000, "number of simulated GPUs, 8 per node, 70 series each")
	steps   = flag.Int("steps", 40, "number of requests per node, 30 s apart")
	rounds  = flag.Int("rounds", 20, "number of runs of each query")
	senders = flag.Int("senders", 4, "number of nodes that send concurrently")
)

// pageQueries are the queries of the page for its overview and charts.
var pageQueries = []struct {
	name, expr string
	span       time.Duration // 0 for an instant query
}{
	{"every GPU's power", `gpu_power_draw_watts`, 0},
	{"every GPU's utilization", `gpu_utilization_ratio`, 0},
	{"power of the fleet", `sum(gpu_power_draw_watts)`, 0},
	{"GPUs by team", `count by (gpu_workload_team) (gpu_utilization_ratio)`, 0},
	{"energy by team", `sum by (gpu_workload_team) (increase(gpu_workload_energy_joules_total[10m]))`, 0},
	{"power over time", `sum(gpu_power_draw_watts)`, 15 * time.Minute},
	{"one GPU over time", `{__name__=~"gpu_power_draw_watts|gpu_utilization_ratio|gpu_temperature_celsius",gpu_uuid="GPU-0-3"}`, 15 * time.Minute},
}

// contender is a measured server.
type contender struct {
	name, url, otlp, dir string
	cmd                  *exec.Cmd

	rate, cpu   float64 // samples per second, CPU seconds per million samples
	rss, disk   float64 // MiB, bytes per sample
	percentiles map[string]time.Duration
}

func TestHub(t *testing.T) {
	nodes := max(1, *gpus/8)
	t.Logf("%d GPUs on %d nodes, %d series, %d samples each", nodes*8, nodes, nodes*8*seriesPerGPU, *steps)
	end := time.Now().Truncate(time.Second)
	var done []*contender
	for _, start := range []func(*testing.T) *contender{startHub, startPrometheus} {
		c := start(t)
		if c == nil {
			continue
		}
		c.ingest(t, nodes, end)
		c.ask(t, end)
		done = append(done, c)
		c.stop()
	}
	t.Log("\n" + table(done))
}

// table compares the contenders, relative to the first.
func table(all []*contender) string {
	var b strings.Builder
	row := func(what string, value func(*contender) float64, format string) {
		fmt.Fprintf(&b, "%-36s", what)
		for _, c := range all {
			fmt.Fprintf(&b, " %14s", fmt.Sprintf(format, value(c)))
		}
		if len(all) == 2 {
			fmt.Fprintf(&b, " %9.2fx", value(all[0])/value(all[1]))
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%-36s", "")
	for _, c := range all {
		fmt.Fprintf(&b, " %14s", c.name)
	}
	b.WriteString("\n")
	row("samples a second", func(c *contender) float64 { return c.rate }, "%.0f")
	row("CPU seconds a million samples", func(c *contender) float64 { return c.cpu }, "%.2f")
	row("memory, MiB", func(c *contender) float64 { return c.rss }, "%.0f")
	row("disk, bytes a sample", func(c *contender) float64 { return c.disk }, "%.2f")
	for _, q := range pageQueries {
		row("p95 ms, "+q.name, func(c *contender) float64 { return float64(c.percentiles[q.name].Microseconds()) / 1000 }, "%.1f")
	}
	return b.String()
}

// ingest sends all steps and measures the cost.
func (c *contender) ingest(t *testing.T, nodes int, end time.Time) {
	t.Helper()
	before := c.usage(t)
	var took time.Duration
	samples := 0
	for i := range *steps {
		at := end.Add(-time.Duration(*steps-1-i) * 30 * time.Second)
		bodies := make([][]byte, nodes) // built before the clock starts
		for n := range bodies {
			bodies[n] = body(t, n, at, end.Add(-time.Hour))
		}
		begin := time.Now()
		var next, all sync.WaitGroup
		queue := make(chan []byte)
		next.Go(func() {
			for _, b := range bodies {
				queue <- b
			}
			close(queue)
		})
		for range *senders {
			all.Go(func() {
				for b := range queue {
					c.post(t, b)
				}
			})
		}
		next.Wait()
		all.Wait()
		took += time.Since(begin)
		samples += nodes * 8 * seriesPerGPU
	}
	c.rate = float64(samples) / took.Seconds()
	c.cpu = (c.usage(t) - before).Seconds() / float64(samples) * 1e6
	rss, _, err := usage.Memory(c.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	c.rss, c.disk = rss, size(t, c.dir)/float64(samples)
}

func (c *contender) usage(t *testing.T) time.Duration {
	t.Helper()
	d, err := usage.CPU(c.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (c *contender) post(t *testing.T, b []byte) {
	resp, err := http.Post(c.url+c.otlp, "application/x-protobuf", bytes.NewReader(b))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode/100 != 2 || c.name == "hub" && len(text) > 2 { // anything longer is a partial success with errors
		t.Errorf("%s: %s %.300s", c.name, resp.Status, text)
	}
}

// size returns the bytes of the files below dir. A preallocated file counts with its content.
func size(t *testing.T, dir string) float64 {
	t.Helper()
	total := int64(0)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return nil // deleted meanwhile
		}
		if s, ok := st.Sys().(*syscall.Stat_t); ok {
			total += min(s.Blocks*512, st.Size())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return float64(total)
}

// ask measures the queries of the page.
func (c *contender) ask(t *testing.T, end time.Time) {
	t.Helper()
	c.percentiles = map[string]time.Duration{}
	for _, q := range pageQueries {
		form, path := url.Values{"query": {q.expr}, "time": {strconv.FormatInt(end.Unix(), 10)}}, "/api/v1/query"
		if q.span > 0 {
			form = url.Values{"query": {q.expr}, "start": {strconv.FormatInt(end.Add(-q.span).Unix(), 10)}, "end": {strconv.FormatInt(end.Unix(), 10)}, "step": {"30"}}
			path = "/api/v1/query_range"
		}
		var all []time.Duration
		for range *rounds {
			begin := time.Now()
			resp, err := http.PostForm(c.url+path, form)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || bytes.Contains(text, []byte(`"result":[]`)) {
				t.Fatalf("%s: %s: %s %.300s %v", c.name, q.expr, resp.Status, text, err)
			}
			all = append(all, time.Since(begin))
		}
		slices.Sort(all)
		c.percentiles[q.name] = all[min(len(all)*95/100, len(all)-1)]
	}
}

func (c *contender) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Wait()
}

// run starts a server and waits until it is ready.
func (c *contender) run(t *testing.T, ready string, cmd *exec.Cmd) *contender {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.cmd = cmd
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		resp, err := http.Get(c.url + ready)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return c
			}
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s does not start: %v\n%s", c.name, err, text)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func startHub(t *testing.T) *contender {
	t.Helper()
	path := *binary
	if path == "" {
		path = filepath.Join(t.TempDir(), "gpumeter")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "github.com/gpumeter/gpumeter/cmd/gpumeter")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("cannot build gpumeter: %v\n%s", err, out)
		}
	}
	c := &contender{name: "hub", otlp: "/v1/metrics", dir: t.TempDir()}
	address := freeAddress(t)
	c.url = "http://" + address
	return c.run(t, "/readyz", exec.Command(path, "hub", "--data-dir", c.dir, "--listen", address, "--listen-grpc", "", "--max-series", "2000000"))
}

// startPrometheus returns nil without a Prometheus. make deps builds one.
func startPrometheus(t *testing.T) *contender {
	t.Helper()
	path, err := exec.LookPath("prometheus3")
	if err != nil {
		t.Logf("no Prometheus to compare with: %v", err)
		return nil
	}
	c := &contender{name: "prometheus", otlp: "/api/v1/otlp/v1/metrics", dir: t.TempDir()}
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	text := "otlp: {promote_resource_attributes: [host.name, k8s.node.name, k8s.cluster.name, gpumeter.simulated]}\nstorage: {tsdb: {out_of_order_time_window: 24h}}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	c.url = "http://" + address
	return c.run(t, "/-/ready", exec.Command(path, "--config.file="+config, "--storage.tsdb.path="+c.dir, "--web.listen-address="+address,
		"--web.enable-otlp-receiver", "--enable-feature=created-timestamp-zero-ingestion"))
}
