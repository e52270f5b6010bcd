//go:build linux

package cli

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// topText returns what top prints into a file.
func topText(t *testing.T, tp *top) (string, error) {
	t.Helper()
	if tp.env == nil {
		tp.env = func(key string) string { return map[string]string{"TERM": "xterm-256color", "LANG": "C.UTF-8"}[key] }
	}
	if tp.interval == 0 {
		tp.interval = time.Second
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	failed := tp.run(t.Context(), f)
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), failed
}

// Where there is no terminal everything is printed once, as plain text.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	prices := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(prices, demoPrices, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := topText(t, &top{hardware: hardware{simulate: "h100", host: "node"}, prices: prices})
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsRune(text, 0x1b) || strings.Count(text, "H100") < 8 {
		t.Errorf("it is not plain, or devices are missing:\n%s", text)
	}
	for _, want := range []string{"SIMULATED", "2.90", "research/llama-finetune", "1g.10gb", "Findings"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

// A machine without devices prints a hint, and is not an error.
func TestTopNothing(t *testing.T) {
	t.Parallel()
	driver := nvmltest.New(t, "gpus 0\n") // the machine that runs the test may have GPUs
	text, err := topText(t, &top{hardware: hardware{root: t.TempDir(), host: "node", library: driver.Library}})
	if err != nil || !strings.Contains(text, "gpumeter doctor") {
		t.Errorf("%v:\n%s", err, text)
	}
}

// A store that does not respond is an error without the password.
func TestTopUnreachable(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	for _, address := range []string{server.URL, "http://user:secret@127.0.0.1:1"} {
		_, err := topText(t, &top{store: storeFlags{url: address}})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if got := redactURL("http://user:secret@hub:9500"); got != "http://user:xxxxx@hub:9500" {
		t.Errorf("the top line says %s", got)
	}
}

// A flag that has no effect is an error.
func TestTopFlags(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		cmd := newTop()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	f("--interval must be between", "--interval", "1ms")
	f("--token-file has no effect", "--token-file", "x")
	f("--simulate has no effect with --url", "--url", "http://hub:9500", "--simulate", "h100")
	f("--kubeconfig has no effect with --url", "--url", "http://hub:9500", "--kubeconfig", "x")
	f("--url", "--url", "hub:9500", "--once")
	f("cannot read the prices", "--prices", "/nonsense", "--once")
	f("unknown simulated model", "--simulate", "abacus")
}

// Characters beyond ASCII need a locale that has them; the first variable that is set
// decides, as in the C library.
func TestUTF8Locale(t *testing.T) {
	t.Parallel()
	f := func(want bool, env map[string]string) {
		t.Helper()
		if got := utf8Locale(func(key string) string { return env[key] }); got != want {
			t.Errorf("%v: %v", env, got)
		}
	}
	f(false, nil)
	f(true, map[string]string{"LANG": "en_US.UTF-8"})
	f(true, map[string]string{"LANG": "C.utf8"})
	f(false, map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"})
}

// Series come in any order, some are missing, and some are of devices that are gone.
func TestTopFromSeries(t *testing.T) {
	t.Parallel()
	store := querytest.NewMemory()
	of := func(name string, value float64, more ...string) {
		l := query.Labels{"__name__": name, "host_name": "n", "gpu_uuid": "GPU-1", "gpu_index": "0", "gpu_model": "M", "gpu_vendor": "nvidia"}
		for i := 0; i+1 < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		store.Add(l, demoNow, value)
	}
	owner := []string{"gpu_workload_kind", "job", "gpu_workload_name", "a", "slurm_account", "x", "slurm_job_id", "7"}
	thief := []string{"gpu_workload_kind", "process", "gpu_workload_name", "b"}
	of("gpu_workload_utilization_ratio", 0.2, thief...)
	of("gpu_allocation_ratio", 0, thief...)
	of("gpu_power_draw_watts", 100)
	of("gpu_power_scope_draw_watts", 90, "gpu_power_scope", "gpu", "gpu_power_window", "average")
	of("gpu_temperature_celsius", 60)
	of("gpu_sensor_temperature_celsius", 70, "gpu_temperature_sensor", "memory")
	of("gpu_utilization_ratio", 0.5)
	of("gpu_engine_utilization_ratio", 0.4, "gpu_task", "memory")
	of("gpu_up", 1)
	of("gpu_allocation_ratio", 1, owner...)
	of("gpu_memory_used_bytes", 1, "gpu_uuid", "GPU-gone")
	got, err := askStore(t.Context(), store, fleet.NewReader(store, fleet.Options{}), demoNow, pricing{})
	if err != nil {
		t.Fatal(err)
	}
	want := []tui.Device{{
		Host: "n", Vendor: "nvidia", Model: "M", UUID: "GPU-1", Up: true, State: "ok", Held: true, Idle: device.Of(0),
		Utilization: device.Of(0.5), Power: device.Of(100), Celsius: device.Of(60),
		Owners: []tui.Owner{{Kind: "job", Name: "a", Label: "x/a", Team: "x", Share: 1}, {Kind: "process", Name: "b", Label: "b", Uninvited: true, Utilization: device.Of(0.2)}},
	}}
	if d := cmp.Diff(want, got.Devices); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
	if len(got.Findings) != 1 || got.Findings[0].Reason != "b uses the device without an allocation" {
		t.Errorf("findings: %+v", got.Findings)
	}
}

// Catches a dead node that vanishes from gpumeter top, or counts as free, as down or in the power.
func TestTopDeadNode(t *testing.T) {
	t.Parallel()
	store := querytest.NewMemory()
	for node, last := range map[string]time.Time{"alive": demoNow, "dead": demoNow.Add(-17 * time.Minute)} {
		for name, v := range map[string]float64{"gpu_up": 1, "gpu_power_draw_watts": 100} {
			l := query.Labels{"__name__": name, "host_name": node, "gpu_uuid": node, "gpu_index": "0", "gpu_model": "M", "gpu_vendor": "nvidia"}
			for at := demoNow.Add(-2 * time.Hour); !at.After(last); at = at.Add(time.Minute) {
				store.Add(l, at, v)
			}
		}
	}
	price := func(query.Labels, time.Time) (fleet.Hourly, bool) { return fleet.Hourly{Device: 2}, true }
	got, err := askStore(t.Context(), store, fleet.NewReader(store, fleet.Options{Price: price}), demoNow, pricing{currency: "EUR"})
	if err != nil {
		t.Fatal(err)
	}
	want := []tui.Device{
		{Host: "alive", Vendor: "nvidia", Model: "M", UUID: "alive", Up: true, State: "ok", Power: device.Of(100), Cost: device.Of(2)},
		{Host: "dead", Vendor: "nvidia", Model: "M", UUID: "dead", State: "silent", Severity: tui.Info, Since: demoNow.Add(-17 * time.Minute).UTC(), Cost: device.Of(2)},
	}
	if d := cmp.Diff(want, got.Devices); d != "" || len(got.Findings) > 0 {
		t.Errorf("devices (-want +got):\n%s\nfindings %v", d, got.Findings)
	}
	if text := tui.New(tui.Options{Plain: true}).Text(got, 100); !strings.Contains(text, "1 of 2 GPUs report on 2 nodes, 0 held, 0 idle, 100 W, 4.00 EUR/h, 0.00 idle, 2.00 silent") {
		t.Error(text)
	}
}

// brokenStore answers nothing.
type brokenStore struct{}

func (brokenStore) Instant(context.Context, string, time.Time) ([]query.Sample, error) {
	return nil, errors.New("no answer")
}

func (brokenStore) Range(context.Context, string, time.Time, time.Time, time.Duration) ([]query.Series, error) {
	return nil, errors.New("no answer")
}

func (brokenStore) Raw(context.Context, string, time.Time, time.Time) ([]query.Series, error) {
	return nil, errors.New("no answer")
}

// A failed evaluation of the fleet rules must not look like a healthy fleet.
func TestTopCannotJudge(t *testing.T) {
	t.Parallel()
	j := &judge{store: brokenStore{}}
	j.once(t.Context(), demoNow)
	var s tui.Snapshot
	j.add(&s)
	if len(s.Findings) != 1 || !strings.Contains(s.Findings[0].Reason, "no answer") {
		t.Errorf("findings: %+v", s.Findings)
	}
}
