//go:build linux

package cli_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/local"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with a file of testdata/golden. With -update it rewrites the file
// and fails, so that it cannot be left on.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Errorf("%s is rewritten: look at the difference", file)
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// goldenHost returns the host of testdata/golden/host.conf and the flags to read it, and
// nothing of the machine the test runs on.
func goldenHost(t *testing.T) (host *nvmltest.Host, flags []string) {
	t.Helper()
	script, err := os.ReadFile("testdata/golden/host.conf")
	if err != nil {
		t.Fatal(err)
	}
	host = nvmltest.New(t, string(script))
	root := t.TempDir()
	for file, text := range map[string]string{ // the process on GPU 0
		"proc/4242/stat":   "4242 (python3) S 1 4242 4242 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 1000 0 0 0\n",
		"proc/4242/comm":   "python3\n",
		"proc/4242/status": "Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\n",
		"proc/4242/cgroup": "0::/user.slice/user-1000.slice/session-1.scope\n",
		"etc/passwd":       "alice:x:1000:1000::/home/alice:/bin/sh\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return host, []string{"--nvidia-library", host.Library, "--host-name", "golden", "--root", root}
}

// goldenDevices is how many GPUs and MIG instances the host has.
const goldenDevices = 8 + 4

// goldenPage starts an agent on the golden host, and returns its page from the second
// tick on, which is the first with profiling. Little of it depends on time, see steady: the
// text format as we write it has no timestamps, and the counters of the fake stand still.
func goldenPage(t *testing.T) (*agent, string) {
	t.Helper()
	_, flags := goldenHost(t)
	a := start(t, append(flags, "--interval", "2s")...) // long, so that a loaded machine answers in time
	var text string
	await.NoError(t, func() (err error) {
		if text, err = a.get("/metrics", ""); err != nil {
			return err
		}
		if n := strings.Count(text, "\ngpu_sm_active_ratio{") + strings.Count(text, "\ngpu_partition_sm_active_ratio{"); n != goldenDevices {
			return fmt.Errorf("%d devices of %d have profiling", n, goldenDevices)
		}
		return nil
	})
	return a, text
}

// Any change of what users see on the page shows up here: a name, a label, an order, a
// number, a device.
func TestGoldenPage(t *testing.T) {
	t.Parallel()
	a, text := goldenPage(t)
	text = steady(text)
	golden(t, "page.prom", text)

	// The other form has the same series.
	other, err := a.get("/metrics", "application/openmetrics-text; version=1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(other, "\n# EOF\n") || !strings.Contains(other, "\n# UNIT gpu_power_draw_watts watts\n") {
		t.Errorf("the OpenMetrics page has no units, or no end:\n%s", other)
	}
	want, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(steady(other))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("OpenMetrics page (-text +openmetrics):\n%s", diff)
	}
	a.stop()
}

// steady removes what the agent says of its own process and parts, as no two runs have the
// same and --once has no such parts, and sets to 0 what grows with time.
func steady(page string) string {
	grows := regexp.MustCompile(`^((?:gpu_(?:workload|unallocated)_\w+_total|gpumeter_agent_start_time_seconds)\{.*\}) .*`)
	var kept strings.Builder
	for line := range strings.Lines(page) {
		if !strings.Contains(line, "otelcol_") && !strings.Contains(line, "gpumeter_component_up") && !strings.Contains(line, "gpumeter_build_info") {
			kept.WriteString(grows.ReplaceAllString(line, "$1 0"))
		}
	}
	return kept.String()
}

// Every series costs every user money.
func TestGoldenSeries(t *testing.T) {
	t.Parallel()
	const limit = 80
	text, err := os.ReadFile("testdata/golden/page.prom")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	count, all := map[string]int{}, 0
	for s := range p {
		if strings.HasPrefix(s, "gpu_") {
			count[label(s, "gpu_uuid")+" "+label(s, "gpu_partition_id")]++
		}
	}
	if len(count) != goldenDevices {
		t.Errorf("series of %d devices, want %d", len(count), goldenDevices)
	}
	for _, dev := range slices.Sorted(maps.Keys(count)) {
		if count[dev] > limit {
			t.Errorf("%s has %d series, the limit is %d", dev, count[dev], limit)
		}
		all += count[dev]
	}
	if gpus := 8; all > limit*gpus {
		t.Errorf("%d GPUs have %d series, partitions included; the limit is %d a GPU", gpus, all, limit)
	}
}

// promtool accepts the page.
func TestGoldenPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), "promtool") {
			t.Fatal("GPUMETER_REQUIRE asks for promtool, which is not installed")
		}
		t.Skip("promtool is not installed")
	}
	text, err := os.Open("testdata/golden/page.prom")
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = text
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// What is printed once is what a scrape gets.
func TestGoldenOnce(t *testing.T) {
	t.Parallel()
	_, flags := goldenHost(t)
	golden(t, "page.prom", steady(output(t, append([]string{"agent", "--once", "--output", "prometheus"}, flags...)...)))
}

func TestGoldenDevices(t *testing.T) {
	t.Parallel()
	_, flags := goldenHost(t)
	golden(t, "devices.txt", output(t, append([]string{"devices"}, flags...)...))
	golden(t, "devices.txt", output(t, append([]string{"agent", "--once"}, flags...)...))
}

// The JSON form is for programs: each device is there with its identity, and an absent
// value is absent.
func TestGoldenJSON(t *testing.T) {
	t.Parallel()
	_, flags := goldenHost(t)
	type reading struct {
		ID     device.ID `json:"id"`
		Up     bool      `json:"up"`
		Memory struct {
			Used *float64 `json:"used"`
		} `json:"memory"`
		Utilization struct {
			Compute *float64 `json:"compute"`
		} `json:"utilization"`
	}
	type source struct {
		Name   string `json:"name"`
		State  string `json:"state"`
		Errors int    `json:"errors"`
	}
	type report struct {
		Host      string    `json:"host"`
		Simulated bool      `json:"simulated"`
		Devices   []reading `json:"devices"`
		Sources   []source  `json:"sources"`
	}
	var got report
	if err := json.Unmarshal([]byte(output(t, append([]string{"devices", "--json"}, flags...)...)), &got); err != nil {
		t.Fatal(err)
	}
	want := report{Host: "golden", Sources: []source{{Name: "nvidia", State: "open"}}}
	for _, v := range local.Vendors()[1:] {
		want.Sources = append(want.Sources, source{Name: v.Name, State: "absent"})
	}
	add := func(id device.ID, used float64, compute *float64) {
		r := reading{ID: id, Up: true}
		r.Memory.Used, r.Utilization.Compute = &used, compute
		want.Devices = append(want.Devices, r)
	}
	gpu := func(i int) device.ID {
		return device.ID{
			Vendor: "nvidia", UUID: fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i),
			Index: i, Model: "NVIDIA H200", PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+8*i),
		}
	}
	instance := func(i, n int, profile string) device.ID {
		id := gpu(i)
		id.UUID, id.Parent, id.Profile = fmt.Sprintf("MIG-00000000-0000-4000-8000-%012d", 100*i+n), id.UUID, profile
		return id
	}
	const used = 1194131456
	add(gpu(0), 140e9, new(1.))
	add(gpu(1), used, new(0.35))
	add(gpu(2), used, new(0.))
	add(gpu(3), used, new(1.))
	add(gpu(4), used, new(1.))
	add(gpu(5), used, new(1.))
	add(gpu(6), used, nil) // in MIG mode a GPU does not say
	add(instance(6, 1, "1g.18gb"), 1e9, nil)
	add(instance(6, 2, "2g.35gb"), 2e9, nil)
	add(instance(6, 3, "3g.71gb"), 3e9, nil)
	add(gpu(7), used, nil)
	add(instance(7, 1, "7g.141gb"), 4e9, nil)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices --json (-want +got):\n%s", diff)
	}
}

func TestGoldenDoctor(t *testing.T) {
	t.Parallel()
	host, flags := goldenHost(t)
	state := t.TempDir()
	text := output(t, append([]string{"doctor", "--state-dir", state, "--listen", "localhost:0"}, flags...)...)
	// Paths differ between runs, and the kernel and the user decide what can be traced.
	text = strings.NewReplacer(host.Dir, "HOST", flags[len(flags)-1], "ROOT", state, "STATE").Replace(text)
	golden(t, "doctor.txt", regexp.MustCompile(`(?m)^\w+ +(tracing .*?)  .*\n( .*\n)*`).ReplaceAllString(text, "?        $1  ?\n"))
}
