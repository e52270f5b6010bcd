//go:build linux

package cli_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// oneLine checks that a command failed as it should, with exit code 1 and one line on
// standard error, and returns that line.
func oneLine(t *testing.T, r result) string {
	t.Helper()
	line, more, _ := strings.Cut(r.stderr, "\n")
	message, ok := strings.CutPrefix(line, "gpumeter: ")
	if r.code != 1 || !ok || more != "" || strings.Contains(r.stderr, "goroutine") {
		t.Errorf("exit code %d, want 1 and one line; standard error:\n%s", r.code, r.stderr)
	}
	return message
}

// badLibraries are files that are not libnvidia-ml, with the error for each.
func badLibraries(t *testing.T) map[string]string {
	t.Helper()
	whole, err := os.ReadFile(nvmltest.New(t, "").Library)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list := map[string]string{
		file("text", []byte("this is no library, and longer than an ELF header is: "+strings.Repeat("text ", 20))): "is not a usable library",
		file("empty", nil):                       "is not a usable library",
		nvmltest.Without(t, "", "nvml*").Library: "is not NVIDIA's management library",
	}
	for _, size := range []int{20, 64, 4096, len(whole) / 2, len(whole) - 1} {
		list[file(fmt.Sprintf("truncated-%d", size), whole[:size])] = "is not a usable library"
	}
	libc, _ := filepath.Glob("/lib*/*-linux-gnu/libc.so.6") // the only error is a bad pattern
	for _, path := range append(libc, "/lib64/libc.so.6", "/usr/lib/libc.so.6") {
		if _, err := os.Stat(path); err == nil {
			list[path] = "is not NVIDIA's management library"
			break
		}
	}
	return list
}

// A library that the user names must be one: whatever else it is, the agent says so and
// ends, and the loader never sees a file that would kill the process.
func TestNamedLibrary(t *testing.T) {
	t.Parallel()
	list := badLibraries(t)
	list[filepath.Join(t.TempDir(), "none")] = "no such file or directory"
	list[t.TempDir()] = "is not a regular file"
	socket := filepath.Join(shortDir(t), "sock")
	for path, want := range list {
		for _, args := range [][]string{
			{"agent", "--listen", "localhost:0", "--socket", socket, "--no-standby"},
			{"agent", "--once"},
			{"demo", "--listen", "localhost:0"},
			{"devices"},
			{"devices", "--json"},
		} {
			line := oneLine(t, run(t, append(args, "--nvidia-library", path)...))
			if !strings.Contains(line, path) || !strings.Contains(line, want) {
				t.Errorf("%s says %q of %s, want %q", strings.Join(args, " "), line, path, want)
			}
		}
	}
}

// A broken library that was found by searching is no reason to end: the agent serves
// what it has and says what is wrong.
func TestFoundLibrary(t *testing.T) {
	t.Parallel()
	f := func(dir string, want string, a *agent) {
		t.Helper()
		reason := a.waitLog("nvidia: driver cannot be read")["reason"].(string)
		if !strings.Contains(reason, dir) || !strings.Contains(reason, want) {
			t.Errorf("the log says %q of %s, want %q", reason, dir, want)
		}
		await.NoError(t, func() error {
			_, err := a.get("/readyz", "")
			return err
		})
		p := a.waitPage(func(page) error { return nil })
		if n := p[`gpumeter_reader_errors_total{gpumeter_source="nvidia",host_name="host"}`]; n != 1 {
			t.Errorf("reader errors of %s: %v, want 1", dir, n)
		}
		a.stop()
	}
	for path, want := range badLibraries(t) {
		dir := t.TempDir()
		if err := os.Symlink(path, filepath.Join(dir, "libnvidia-ml.so.1")); err != nil {
			t.Fatal(err)
		}
		f(dir, want, startWith(t, []string{"LD_LIBRARY_PATH=/nowhere:" + dir},
			"--listen", "localhost:0", "--root", t.TempDir(), "--host-name", "host"))
		f(dir, want, startConfig(t, fmt.Sprintf(`
extensions: {gpu: {nvidia_library_dirs: [%q], root: %q, host_name: host}}
receivers: {gpu: }
exporters: {page: {endpoint: "localhost:0"}}
service: {extensions: [gpu], pipelines: {metrics: {receivers: [gpu], exporters: [page]}}}
`, dir, t.TempDir())))
	}
}

// No GPU is a normal state, logged once.
func TestNoDevice(t *testing.T) {
	t.Parallel()
	a := start(t, "--root", t.TempDir(), "--host-name", "host", "--interval", "100ms")
	await.NoError(t, func() error {
		_, err := a.get("/readyz", "")
		return err
	})
	want := page{
		`gpumeter_events_dropped_total{host_name="host"}`: 0,
		`gpumeter_paused{host_name="host"}`:               0,
		`gpumeter_series_dropped_total{host_name="host"}`: 0,
		`gpumeter_ticks_lost_total{host_name="host"}`:     0,
	}
	p := a.waitPage(func(page) error { return nil })
	for s, v := range p {
		switch {
		case strings.HasPrefix(s, "gpumeter_page_dropped_total{"):
			want[s] = 0
		case strings.HasPrefix(s, "gpumeter_build_info{"), strings.HasPrefix(s, "gpumeter_component_up{"), strings.HasPrefix(s, "gpumeter_attribution_status{"):
			want[s] = 1
		case strings.HasPrefix(s, "otelcol_"), strings.HasPrefix(s, "gpumeter_agent_start_time_seconds{"):
			want[s] = v
		}
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
	a.waitLog("nvidia, amd, gaudi, intel, neuron, tenstorrent, tpu: no device or driver on this machine")
	a.waitLog("Cannot read some host metrics")
	a.stop()
	var messages []string
	for _, e := range a.entries() {
		messages = append(messages, fmt.Sprint(e["level"], " ", e["msg"]))
	}
	slices.Sort(messages) // the host is read beside the devices
	// And nothing of the Collector's own progress.
	if diff := cmp.Diff([]string{
		"info nvidia, amd, gaudi, intel, neuron, tenstorrent, tpu: no device or driver on this machine", "info serving metrics",
		"warn Cannot read some host metrics",
	}, messages); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// Keeping the Collector quiet must not silence its components.
func TestComponentsAreHeard(t *testing.T) {
	t.Parallel()
	a := startConfig(t, `
extensions: {gpu: {simulate: h200}}
receivers: {gpu: }
exporters: {debug: , otlp_http: {endpoint: "http://localhost:1"}}
service: {extensions: [gpu], pipelines: {metrics: {receivers: [gpu], exporters: [debug, otlp_http]}}}
`)
	a.waitLog("Metrics")
	a.waitLog("Exporting failed. Will retry the request after interval.")
}

// At the longest interval whoever starts an agent must not wait for the second tick.
func TestFirstTick(t *testing.T) {
	t.Parallel()
	var agents []*agent
	for range 8 { // a race: each may lose the tick
		agents = append(agents, start(t, "--root", t.TempDir(), "--interval", "5m"))
	}
	for _, a := range agents {
		await.NoError(t, func() error {
			_, err := a.get("/readyz", "")
			return err
		})
	}
}

// A configuration with a mistake must not run, and the message must lead to the mistake.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	config := func(extension, receiver, page, service string) string {
		return fmt.Sprintf(`
extensions: {gpu: %s}
receivers: {gpu: %s}
exporters: {page: {endpoint: "localhost:0", %s}}
service: {extensions: [gpu], pipelines: {metrics: {receivers: [gpu], exporters: [page]}}, %s}
`, extension, receiver, page, service)
	}
	f := func(text string, want string) {
		t.Helper()
		file := write(t, "config.yaml", text)
		for _, args := range [][]string{{"validate"}, {"agent", "--no-standby", "--socket", filepath.Join(filepath.Dir(file), "sock")}} {
			got := oneLine(t, run(t, append(args, "--config", file)...))
			if got = strings.TrimPrefix(got, "invalid configuration: "); got != want {
				t.Errorf("%s says %q, want %q", args[0], got, want)
			}
		}
	}
	const unknown, wrong = "the configuration has unknown keys: ", "the configuration has an invalid value at "
	// Unknown keys, at every depth.
	f(config("{intervall: 1s}", "", "", ""), unknown+"extensions::gpu::intervall")
	f(config("{intervall: 1s, hosts: x}", "{max: 1}", "", ""), unknown+"extensions::gpu::hosts, extensions::gpu::intervall; unknown keys: receivers::gpu::max")
	f(config("", "{metrics: {gpu.powr.draw: {enabled: true}}}", "", ""), unknown+"receivers::gpu::metrics::gpu.powr.draw")
	f(config("", "", "tls: {cert: x}", ""), unknown+"exporters::page::tls::cert")
	f(config("", "", "", "telemetry: {logs: {levle: debug}}"), unknown+"service::telemetry::logs::levle")
	f(config("", "", "", "")+"extension: {}\n", unknown+"extension")
	f(strings.Replace(config("", "", "", ""), "{receivers:", "{receiver:", 1), unknown+"service::pipelines::metrics::receiver")
	// Wrong types.
	f(config("{interval: [1]}", "", "", ""), wrong+"extensions::gpu::interval: expected type 'time.Duration', got unconvertible type '[]interface {}'")
	f(config("{interval: soon}", "", "", ""), wrong+"extensions::gpu::interval: time: invalid duration")
	f(config("", "{max_series: many}", "", ""), wrong+"receivers::gpu::max_series: expected type 'int', got unconvertible type 'string'")
	f(config("", "{metrics: {gpu.power.draw: {enabled: perhaps}}}", "", ""),
		wrong+"receivers::gpu::metrics::gpu.power.draw::enabled: expected type 'bool', got unconvertible type 'string'")
	f(strings.Replace(config("", "", "", ""), "{gpu: }", "[gpu]", 1), wrong+`extensions: expected a map or struct, got "slice"`)
	f(strings.Replace(config("", "", "", ""), "{receivers: [gpu]", "{receivers: {gpu: 1}", 1),
		wrong+"service::pipelines::metrics::receivers: source data must be an array or slice, got map")
	// What is not there.
	f(strings.Replace(config("", "", "", ""), "{receivers: [gpu]", "{receivers: [gpu/2]", 1),
		`service::pipelines::metrics: references receiver "gpu/2" which is not configured`)
	f(strings.Replace(config("", "", "", ""), "receivers: {gpu: }", "receivers: {hostmetrics: }", 1),
		wrong+`receivers: unknown type: "hostmetrics" for id: "hostmetrics" (valid values: [cuda gpu host inference otlp scheduler self])`)
	// Values out of range.
	f(config("{interval: 1ms, slow_interval: 0s}", "", "", ""),
		"extensions::gpu: interval must be between 100ms and 5m0s, is 1ms; slow_interval must be above 0, is 0s")
	// No configuration at all.
	f("extensions: {gpu:\n  - [", "the configuration is not valid YAML: line 1: did not find expected node content")
	f("\x7fELF\x00\x01", "the configuration is not valid YAML: control characters are not allowed")
	f("just text", "the configuration is not a map of keys")
	f("", "empty configuration file; service::pipelines: service must have at least one pipeline")
}

// Invalid flags are rejected before anything starts.
func TestBadFlags(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken, missing := l.Addr().String(), filepath.Join(t.TempDir(), "none.yaml")
	socket := filepath.Join(shortDir(t), "sock")
	f := func(want string, args ...string) {
		t.Helper()
		if got := oneLine(t, run(t, args...)); !strings.Contains(got, want) {
			t.Errorf("gpumeter %s says %q, want %q", strings.Join(args, " "), got, want)
		}
	}
	agent := func(want string, args ...string) {
		t.Helper()
		f(want, append([]string{"agent", "--socket", socket, "--root", t.TempDir(), "--no-standby"}, args...)...)
	}
	for range 5 { // the View must not get a word in
		agent("cannot listen on "+taken+": address already in use", "--listen", taken)
	}
	f("cannot listen on "+taken+": address already in use", "demo", "--listen", taken)
	agent("cannot listen on localhost:99999", "--listen", "localhost:99999")
	agent("must be host:port", "--listen", "nonsense")
	agent("interval must be between 100ms and 5m0s, is 1ms", "--interval", "1ms")
	agent("interval must be between 100ms and 5m0s, is 1h0m0s", "--interval", "1h")
	agent("slow_interval must be above 0, is -1s", "--slow-interval", "-1s")
	agent(`invalid argument "soon"`, "--interval", "soon")
	agent("unknown flag: --nonsense: see gpumeter agent --help", "--nonsense")
	agent(`unknown --log-level "loud"`, "--log-level", "loud")
	agent(`unknown simulated model "abacus"`, "--simulate", "abacus")
	agent(`unknown --output "yaml"`, "--once", "--output", "yaml")
	agent("--output needs --once", "--output", "json")
	agent(`gpumeter agent takes only flags, got 1 arguments: quote values that contain spaces`, "extra")
	f(`unknown command "nonsense"`, "nonsense")
	f("--interval has no effect with --config: set it in "+missing, "agent", "--config", missing, "--interval", "1s")
	f("--otlp-header has no effect with --config: set it in "+missing, "agent", "--config", missing, "--otlp-header", "a=b")
	f("--cluster has no effect with --config: set it in "+missing, "agent", "--config", missing, "--cluster", "c")
	agent("--otlp-endpoint has no effect with --once", "--once", "--otlp-endpoint", "http://localhost:1")
	agent(`--otlp-protocol is "tcp", must be`, "--otlp-endpoint", "http://localhost:1", "--otlp-protocol", "tcp")
	agent("--queue-size must be a size up to 1024GiB, such as 256MiB, is \"much\"", "--queue-size", "much")
	f("--once has no effect with --config: set it in "+missing, "agent", "--config", missing, "--once")
	f("cannot read the configuration: open "+missing+": no such file or directory", "agent", "--no-standby", "--socket", socket, "--config", missing)
	f("cannot read the configuration: open "+missing+": no such file or directory", "validate", "--config", missing)
	f(`required flag(s) "config" not set`, "validate")
}
