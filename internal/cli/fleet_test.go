//go:build linux

package cli_test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/local/fleettest"
)

// fleet is a machine with two devices of every vendor. Its counters move as those of real
// ones do, ten times a second.
type fleet struct {
	t      *testing.T
	root   string
	nvidia *nvmltest.Host
	gaudi  string // libhlml.so
	script string // of it
	tpu    *http.Server
	tree   fleettest.Tree
	values map[string]string // of what is in braces in it
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	text := must[string](t)
	f := &fleet{
		t: t, root: t.TempDir(), nvidia: nvmltest.New(t, text(fleettest.Script("nvidia.conf"))), // skips without gcc
		script: text(fleettest.Script("gaudi.conf")), tree: must[fleettest.Tree](t)(fleettest.Load("tree/*.txt")),
	}
	f.gaudi = text(fleettest.HLML(t.TempDir(), f.script))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.tpu = fleettest.TPU(2)
	go func() { _ = f.tpu.Serve(l) }() // until it is closed
	t.Cleanup(func() { f.tpu.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	f.values = map[string]string{"port": strconv.Itoa(port), "hexport": fmt.Sprintf("%04X", port)}
	f.write(f.tree, 0)
	if err := os.WriteFile(f.monitor(), []byte(text(fleettest.Script("neuron-monitor.json"))), 0o600); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		f.move(time.Now(), stop)
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return f
}

func (f *fleet) monitor() string { return filepath.Join(f.root, "neuron-monitor.json") }

func (f *fleet) write(tree fleettest.Tree, step int) {
	f.values["now"] = strconv.FormatInt(time.Now().Unix(), 10)
	if err := tree.Write(f.root, step, f.values); err != nil {
		f.t.Error(err)
	}
}

// move lets time pass for the drivers, and for neuron-monitor, which writes every second.
func (f *fleet) move(start time.Time, stop <-chan struct{}) {
	const each = 100 * time.Millisecond
	moving := f.tree.Moving()
	tick := time.NewTicker(each)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			f.write(moving, int(now.Sub(start)/each))
			soon := now.Add(time.Minute) // on a busy machine the next step may be late
			if err := os.Chtimes(f.monitor(), soon, soon); err != nil {
				f.t.Error(err)
			}
		}
	}
}

func (f *fleet) flags() []string {
	return []string{
		"--nvidia-library", f.nvidia.Library, "--gaudi-library", f.gaudi, "--neuron-monitor", f.monitor(), "--host-name", "fleet", "--root", f.root,
	}
}

// needed is what a page must have before it is looked at, by vendor: what is made of two
// readings comes with the second, and Intel's power only if the counter moved in between,
// which it does not where the test itself was not given a processor.
var needed = []struct {
	vendor, name string
	devices      int // partitions included
}{
	{"nvidia", "gpu_sm_active_ratio", 2},
	{"amd", "gpu_throttle_power_active", 2},
	{"gaudi", "gpu_utilization_ratio", 2},
	{"intel", "gpu_utilization_ratio", 2},
	{"intel", "gpu_power_draw_watts", 2},
	{"neuron", "gpu_utilization_ratio", 6},
	{"tenstorrent", "gpu_heartbeat_total", 2},
	{"tpu", "gpu_utilization_ratio", 2},
}

// complete returns an error unless the page has what is needed of every vendor.
func complete(p page, except string) error {
	for _, need := range needed {
		devices := map[string]bool{}
		for s := range p {
			name, _, _ := strings.Cut(s, "{")
			if strings.Replace(name, "gpu_partition_", "gpu_", 1) == need.name && label(s, "gpu_vendor") == need.vendor {
				devices[deviceOf(s)] = true
			}
		}
		if len(devices) != need.devices && need.vendor != except {
			return fmt.Errorf("%d of %d devices of %s have %s", len(devices), need.devices, need.vendor, need.name)
		}
	}
	return nil
}

// fleetGolden is the golden page of the fleet.
func fleetGolden(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile("testdata/fleet/page.prom")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lacks returns an error if a page lacks a device's series of another one. On a busy machine a reading
// may come too late, or a counter may not have moved: the next page has the values.
func lacks(p, want page, except func(series string) bool) error {
	for s := range want {
		if _, ok := p[s]; !ok && strings.HasPrefix(s, "gpu_") && !except(s) {
			return fmt.Errorf("the page has no %s", s)
		}
	}
	return nil
}

func deviceOf(series string) string {
	if part := label(series, "gpu_partition_id"); part != "" {
		return part
	}
	return label(series, "gpu_uuid")
}

// waitFleet waits until the page is as ok wants it, and returns its text.
func waitFleet(t *testing.T, a *agent, ok func(page) error) (text string) {
	t.Helper()
	await.NoError(t, func() (err error) {
		a.running()
		if text, err = a.get("/metrics", ""); err != nil {
			return err
		}
		p, err := parse(text)
		if err != nil {
			t.Fatalf("the page is broken: %v\n%s", err, text)
		}
		return ok(p)
	})
	return fleetSteady(text)
}

// moves are the series that depend on when they were read, beside those of steady:
// counters that move with the time of this machine, what is made of them and of the time
// between two readings, and the readings that came too late. They are 0 on the golden page.
var moves = regexp.MustCompile(`^((?:gpu_energy_joules_total|gpu_throttle_time_seconds_total|gpu_heartbeat_total|gpumeter_reader_errors_total)\{.*\}|` +
	`gpu_(?:workload_power|power_scope|power)_draw_watts\{.*gpu_vendor="intel".*\}|` +
	`gpu_(?:workload_|engine_)?utilization_ratio\{.*gpu_model="Intel Data Center GPU Flex 170".*\}) .*`)

func fleetSteady(page string) string {
	var kept strings.Builder
	for line := range strings.Lines(steady(page)) {
		kept.WriteString(moves.ReplaceAllString(line, "$1 0"))
	}
	return kept.String()
}

// Every vendor on one page, as a whole: a name, a unit, a label, a value or a device that
// changes shows up here.
func TestFleetPage(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := start(t, append(f.flags(), "--interval", "1s")...)
	want := fleetGolden(t)
	golden(t, "../fleet/page.prom", waitFleet(t, a, func(p page) error {
		if err := complete(p, ""); err != nil || *update {
			return err
		}
		return lacks(p, want, func(string) bool { return false })
	}))

	// What the golden page has as 0 follows the counters. How closely depends on how busy this machine is.
	p := a.waitPage(func(page) error { return nil })
	for series, v := range p {
		name, _, _ := strings.Cut(series, "{")
		if vendor := label(series, "gpu_vendor"); vendor == "intel" && name == "gpu_power_draw_watts" && !(v > 0 && v < 6000) { // 90 and 150 W
			t.Errorf("%s is %g", series, v)
		}
	}
	a.stop()
}

// intelRow is how two GPUs are shown whose power, and of one how busy it is, depends on when
// they were read.
var intelRow = regexp.MustCompile(`(?m)^(\d +Intel (?:Data Center GPU Flex 170|Arc B580) +)(\d+% +)(.*GiB +)(\d+/)(\d+ W +)`)

func TestFleetDevices(t *testing.T) {
	t.Parallel()
	flags, table := newFleet(t).flags(), ""
	await.True(t, "the answer of the TPU's runtime, for which a reading does not wait long", func() bool {
		table = output(t, append([]string{"devices"}, flags...)...)
		return strings.Contains(table, "18.0/32 GiB")
	})
	table = intelRow.ReplaceAllStringFunc(table, func(row string) string {
		m := intelRow.FindStringSubmatch(row)
		power := "n/" + strings.TrimSpace(m[5])
		return m[1] + fmt.Sprintf("%-*s", len(m[2]), "n%") + m[3] + fmt.Sprintf("%-*s", len(m[4])+len(m[5]), power)
	})
	golden(t, "../fleet/devices.txt", table)
}

// No device has more series than an NVIDIA GPU, and every device on the page has its up and info
// series.
func TestFleetSeries(t *testing.T) {
	t.Parallel()
	const limit = 80
	text, err := os.ReadFile("testdata/fleet/page.prom")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count("\n"+string(text), "\n") - strings.Count("\n"+string(text), "\n#") - 1; lines != len(p) {
		t.Errorf("%d lines are %d series: some are there twice", lines, len(p))
	}
	count, up, info := map[string]int{}, map[string]int{}, map[string]int{}
	vendors := map[string]map[string]bool{}
	for s := range p {
		if !strings.HasPrefix(s, "gpu_") {
			continue
		}
		uuid, vendor := label(s, "gpu_uuid"), label(s, "gpu_vendor")
		if uuid == "" || vendor == "" || label(s, "gpu_model") == "" || label(s, "gpu_index") == "" || label(s, "host_name") != "fleet" {
			t.Errorf("%s does not say whose it is", s)
		}
		count[uuid]++ // partitions included
		switch name, _, _ := strings.Cut(s, "{"); name {
		case "gpu_up":
			up[deviceOf(s)]++
		case "gpu_info":
			info[uuid]++
		}
		if vendors[vendor] == nil {
			vendors[vendor] = map[string]bool{}
		}
		vendors[vendor][uuid] = true
	}
	for _, need := range needed {
		if n := len(vendors[need.vendor]); n != 2 {
			t.Errorf("%d devices of %s", n, need.vendor)
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(count)) {
		if count[uuid] > limit {
			t.Errorf("%s has %d series, the limit is %d", uuid, count[uuid], limit)
		}
		if up[uuid] != 1 || info[uuid] != 1 {
			t.Errorf("%s: gpu_up %d times, gpu_info %d times", uuid, up[uuid], info[uuid])
		}
		t.Logf("%s: %d series", uuid, count[uuid])
	}
}

// promtool accepts the page.
func TestFleetPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), "promtool") {
			t.Fatal("GPUMETER_REQUIRE asks for promtool, which is not installed")
		}
		t.Skip("promtool is not installed")
	}
	text, err := os.Open("testdata/fleet/page.prom")
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
