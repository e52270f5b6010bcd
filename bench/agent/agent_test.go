//go:build bench

package agent

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/local"
)

var (
	binary  = flag.String("gpumeter", "", "path of the agent's binary; built if empty")
	library = flag.String("library", "", "a real libnvidia-ml.so.1 to measure on; the fake one with 1, 8 and 64 GPUs if empty")
	length  = flag.Duration("length", 30*time.Second, "how long to measure each program")
	every   = flag.Duration("interval", 0, "the only interval to measure at; 0: 10 s, 1 s and 100 ms")
	floor   = flag.Duration("floor", 0, "run as the floor: only make the driver calls at this interval")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *floor > 0 {
		if err := bareCalls(*library, *floor); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// bareCalls makes the same driver calls as the agent, as often, and discards the results.
func bareCalls(lib string, interval time.Duration) error {
	r, err := nvidia.Open(context.Background(), nvidia.Options{Library: lib})
	if err != nil {
		return err
	}
	devices, err := r.Devices(context.Background())
	if err != nil {
		return err
	}
	tier, slow := device.Static, time.Now()
	for range time.Tick(interval) {
		if tier != device.Static && time.Since(slow) >= local.DefaultSlowInterval {
			tier, slow = device.Slow, time.Now()
		}
		for _, d := range devices {
			if _, err := d.Read(context.Background(), tier); err != nil {
				return err
			}
		}
		tier = device.Fast
	}
	return nil
}

// contender is a measured program.
type contender struct {
	name  string
	args  []string
	page  string        // address of its page; empty without one
	every time.Duration // between two scrapes
}

// usual is a common scrape interval of Prometheus.
const usual = 15 * time.Second

// peers are other exporters, if installed, with their default settings.
var peers = []contender{
	{"dcgm-exporter", []string{"dcgm-exporter", "--address", "127.0.0.1:9411"}, "http://127.0.0.1:9411/metrics", usual},
	{"nvidia_gpu_exporter", []string{"nvidia_gpu_exporter", "--web.listen-address", "127.0.0.1:9412"}, "http://127.0.0.1:9412/metrics", usual},
	{"all-smi", []string{"all-smi", "api", "--port", "9413"}, "http://127.0.0.1:9413/metrics", usual},
}

func TestAgent(t *testing.T) {
	agent := *binary
	if agent == "" {
		agent = filepath.Join(t.TempDir(), "gpumeter")
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", agent, "github.com/gpumeter/gpumeter/cmd/gpumeter")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("cannot build the agent: %v\n%s", err, out)
		}
	}
	fmt.Printf("%s, %d CPUs, %s, each watched for %s\n\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOARCH, *length)
	fmt.Println("| devices | interval | program | CPU, % of a core | to the floor | RSS, MiB | of it anonymous | series | page, kB | scrape p50 | p99 | OTLP, kB a tick |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|")
	if *library != "" {
		compare(t, agent, *library, "real")
		return
	}
	for _, gpus := range []int{1, 8, 64} {
		h := nvmltest.New(t, fmt.Sprintf("gpus %d\nprocess 0 1 compute 1024 50\n", gpus))
		compare(t, agent, h.Library, fmt.Sprintf("%d fake", gpus))
	}
}

// compare measures the floor, the agent and the peers at each interval, one at a time.
func compare(t *testing.T, agent, lib, devices string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sink := newSink(t)
	intervals := []time.Duration{10 * time.Second, time.Second, 100 * time.Millisecond}
	if *every > 0 {
		intervals = []time.Duration{*every}
	}
	for _, interval := range intervals {
		const page = "127.0.0.1:9410"
		args := []string{
			agent, "agent", "--interval", interval.String(), "--nvidia-library", lib, "--listen", page,
			"--socket", "", "--state-dir", t.TempDir(), "--no-cloud", "--log-level", "error",
		}
		list := []contender{
			{"floor: bare driver calls", []string{self, "-floor", interval.String(), "-library", lib}, "", 0},
			{"gpumeter agent, scraped every 15 s", args, "http://" + page + "/metrics", usual},
		}
		if *library != "" {
			list = append(list, contender{"gpumeter agent, scraped every second", args, "http://" + page + "/metrics", time.Second})
		} else {
			list = append(list, contender{"gpumeter agent, sends OTLP", append(args, "--otlp-endpoint", sink.URL), "", 0})
		}
		if *library != "" && interval == time.Second {
			for _, p := range peers {
				if _, err := exec.LookPath(p.args[0]); err == nil {
					list = append(list, p)
				}
			}
		}
		var base float64
		for i, c := range list {
			sink.reset()
			r, err := watch(t.Context(), c, *length)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			if i == 0 {
				base = r.cpu
			}
			r.otlp = sink.perRequest()
			fmt.Println(r.row(devices, interval, c.name, base))
		}
	}
}

// row returns the row of the table.
func (r result) row(devices string, interval time.Duration, name string, base float64) string {
	cells := []string{
		devices, interval.String(), name, fmt.Sprintf("%.2f", r.cpu*100), fmt.Sprintf("%.2f", r.cpu/base),
		fmt.Sprintf("%.1f", r.rss), fmt.Sprintf("%.1f", r.anon),
	}
	if r.series > 0 {
		cells = append(cells, fmt.Sprint(r.series), fmt.Sprintf("%.0f", r.page), r.p50.Round(10*time.Microsecond).String(), r.p99.Round(10*time.Microsecond).String())
	} else {
		cells = append(cells, "", "", "", "")
	}
	if r.otlp > 0 {
		cells = append(cells, fmt.Sprintf("%.1f", r.otlp))
	} else {
		cells = append(cells, "")
	}
	return "| " + strings.Join(cells, " | ") + " |"
}
