//go:build linux

package cli_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// eight is a host of eight GPUs.
const eight = "gpus 8\n"

func everyGPU(value float64) map[string]float64 {
	all := map[string]float64{}
	for i := range 8 {
		all[fmt.Sprint(i)] = value
	}
	return all
}

// allUp waits until the page shows all eight GPUs up.
func (a *agent) allUp() {
	a.t.Helper()
	a.waitPage(func(p page) error {
		if diff := cmp.Diff(everyGPU(1), p.byGPU("gpu_up")); diff != "" {
			return fmt.Errorf("gpu_up (-want +got):\n%s", diff)
		}
		return nil
	})
}

// A hung call must affect only its own GPU: no lost tick, no lost value and no delay for the
// others. A pause request in the meantime must not stop the readings.
func TestHang(t *testing.T) {
	t.Parallel()
	w := watchMachine(t)
	host, sink := nvmltest.New(t, eight), newSink(t)
	a := startConfig(t, sink.config(host.Library, time.Second, ""))
	up := func(want float64) func(tick) bool { return func(t tick) bool { return t.up[3] == want } }

	before := sink.wait(t, "GPU 3 up", time.Time{}, 3, up(1))
	host.Append(t, "gpu 3 hang nvmlDeviceGetUtilizationRates")
	hung := sink.wait(t, "GPU 3 hanging", before, 1, up(0))
	if reason := a.waitLog("GPU 3 does not answer")["reason"].(string); !strings.HasPrefix(reason, "nvmlDeviceGetUtilizationRates has not returned for ") {
		t.Errorf("the log does not name the call: %s", reason)
	}
	refused := run(t, "pause", "--for", "2s", "--socket", a.socket)
	line := oneLine(t, refused)
	if !strings.Contains(line, "GPU 3") || !strings.Contains(line, "nvmlDeviceGetUtilizationRates") {
		t.Errorf("pausing during a hang gives %q", line)
	}
	back := sink.wait(t, "GPU 3 hanging", hung, 6, up(0))
	p := a.waitPage(func(page) error { return nil })
	if v, ok := p.byGPU("gpu_up")["3"]; !ok || v != 0 {
		t.Errorf("gpu_up of GPU 3 is %v (present: %v) while it hangs", v, ok)
	}
	if _, ok := p.byGPU("gpu_memory_used_bytes")["3"]; ok {
		t.Error("a GPU that hangs has values on the page")
	}

	host.Script(t, eight)
	sink.wait(t, "GPU 3 back", back, 3, up(1))
	a.waitLog("GPU 3 answers again")
	a.allUp()

	ticks := sink.all()
	checkTicks(t, w, ticks, time.Second, 8, 3)
	for _, tick := range ticks {
		// A GPU that does not answer has gpu.health besides, and no measured value.
		if up := tick.up[3] == 1; up && tick.points[3] < 10 || !up && tick.points[3] > 1 {
			t.Errorf("GPU 3 at %s: up %v with %d points", tick.time.Format(time.TimeOnly), tick.up[3], tick.points[3])
		}
	}
	// That a hang makes only its first tick late is tested in internal/node, where time stands still.
	a.stop()
}

// A hung call must not keep the agent from exiting.
func TestEndDuringHang(t *testing.T) {
	t.Parallel()
	host := nvmltest.New(t, eight+"gpu 3 hang nvmlDeviceGetUtilizationRates\n")
	a := start(t, "--interval", "500ms", "--nvidia-library", host.Library)
	a.waitLog("GPU 3 does not answer")
	a.stop()
}

// A driver that is slow to start must not keep the agent from exiting, and is not logged then.
func TestEndDuringOpen(t *testing.T) {
	t.Parallel()
	host := nvmltest.New(t, "gpu * sleep nvmlInit* 2000\n")
	a := start(t, "--nvidia-library", host.Library)
	a.waitLog("serving metrics")
	a.stop()
	for _, e := range a.entries() {
		if e["level"] != "info" {
			t.Errorf("an agent that is ended while the driver starts says %v: %v", e["msg"], e["reason"])
		}
	}
}

// A GPU falls off the bus and returns after a driver reload. Until then only that GPU is missing,
// and the reload loses no tick.
func TestLost(t *testing.T) {
	t.Parallel()
	w := watchMachine(t)
	host, sink := nvmltest.New(t, eight), newSink(t)
	a := startConfig(t, sink.config(host.Library, time.Second, ""))
	allUp := func(t tick) bool {
		return maps.Equal(t.up, map[int64]float64{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1})
	}

	healthy := sink.wait(t, "all GPUs up", time.Time{}, 2, allUp)
	host.Append(t, "gpu 5 lost")
	lost := sink.wait(t, "GPU 5 lost", healthy, 1, func(t tick) bool { return t.up[5] == 0 })
	if reason := a.waitLog("GPU 5 does not answer")["reason"].(string); !strings.Contains(reason, "fallen off the bus") {
		t.Errorf("the log does not say what is wrong with GPU 5: %s", reason)
	}
	// At the next discovery, 10 s after the last, the driver is initialised anew, in vain.
	a.waitLog("nvidia: driver cannot be read")
	reload := sink.wait(t, "GPU 5 lost", lost, 3, func(t tick) bool { return t.up[5] == 0 })
	checkTicks(t, w, sink.all(), time.Second, 8, 5)

	host.Script(t, eight+"generation 1")
	sink.wait(t, "all GPUs up", reload, 3, allUp)
	a.waitLog("GPU 5 answers again")
	a.allUp()
	all := []int64{0, 1, 2, 3, 4, 5, 6, 7} // a reload takes the others down, too
	checkTicks(t, w, sink.all(), time.Second, 8, all...)
	a.stop()
}

// A driver that lacks functions lacks the values from them. Every other series is there,
// with the value it has under a full driver.
func TestOldDrivers(t *testing.T) {
	t.Parallel()
	const script = eight + "process 0 1 compute 1000000 50\nprocess 1 1 graphics 2000000 25\n"
	observe := func(t *testing.T, ok func(page) error, without ...string) page {
		host := nvmltest.Without(t, script, without...)
		config := newSink(t).config(host.Library, 2*time.Second, // long, so that a loaded machine answers in time
			"metrics: {gpu.process.memory.used: {enabled: true}, gpu.process.utilization: {enabled: true}}")
		// What workloads used grows from tick to tick.
		return startConfig(t, strings.Replace(config, "host_name: host", "host_name: host, workloads: {enabled: false}", 1)).waitPage(func(p page) error {
			maps.DeleteFunc(p, func(series string, _ float64) bool {
				return strings.HasPrefix(series, "gpumeter_agent_start_time_seconds{")
			})
			return ok(p)
		})
	}
	full := observe(t, func(p page) error {
		if n := len(p.byGPU("gpu_sm_active_ratio")); n != 8 { // which comes with the second tick
			return fmt.Errorf("%d GPUs have profiling", n)
		}
		return nil
	})
	f := func(without string, missing ...string) {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			want := maps.Clone(full)
			maps.DeleteFunc(want, func(series string, _ float64) bool {
				name, _, _ := strings.Cut(series, "{")
				return slices.Contains(missing, name)
			})
			for _, name := range missing {
				if !slices.Contains(full.names(), name) {
					t.Errorf("a full driver does not show %s", name)
				}
			}
			observe(t, func(p page) error {
				if diff := cmp.Diff(want, p); diff != "" {
					return fmt.Errorf("page (-want +got):\n%s", diff)
				}
				return nil
			}, without)
		})
	}
	f("nvmlGpm*", "gpu_dram_active_ratio", "gpu_interconnect_throughput_bytes_per_second",
		"gpu_pipe_active_ratio", "gpu_sm_active_ratio", "gpu_sm_occupancy_ratio")
	// The older call counts reserved memory as used, so that its used is another quantity.
	f("nvmlDeviceGetMemoryInfo_v2", "gpu_memory_used_bytes", "gpu_memory_utilization_ratio")
	f("nvmlDeviceGetProcessUtilization", "gpu_process_utilization_ratio")
}
