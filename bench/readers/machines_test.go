//go:build bench

package readers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/amd"
	"github.com/gpumeter/gpumeter/internal/device/gaudi"
	"github.com/gpumeter/gpumeter/internal/device/intel"
	"github.com/gpumeter/gpumeter/internal/device/neuron"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/device/tenstorrent"
	"github.com/gpumeter/gpumeter/internal/device/tpu"
	"github.com/gpumeter/gpumeter/internal/dlopen"
	"github.com/gpumeter/gpumeter/internal/local/fleettest"
)

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

// copies writes a machine with n copies of the device in a file of the fleet. names returns replacements for
// each copy, in pairs. more is the text of further files.
func copies(t *testing.T, file string, n int, names func(i int) []string, more ...string) (root string, m machine) {
	t.Helper()
	load := must[fleettest.Tree](t)
	all, one := load(fleettest.Load("tree/host.txt")), load(fleettest.Load("tree/"+file))
	for i := range n {
		maps.Copy(all, one.Rename(names(i)...))
	}
	for _, text := range more {
		for p, e := range load(fleettest.Parse(text)) {
			if _, there := all[p]; !there {
				all[p] = e
			}
		}
	}
	m = machine{root: t.TempDir(), clock: &clock{time.Now()}}
	values := map[string]string{"now": strconv.FormatInt(time.Now().AddDate(1, 0, 0).Unix(), 10)}
	if err := all.Write(m.root, 0, values); err != nil {
		t.Fatal(err)
	}
	moving, step := all.Moving(), 0
	m.tick = func() error { // the drivers' counters move
		step += 10
		return moving.Write(m.root, step, values)
	}
	return m.root, m
}

func newNVIDIA(t *testing.T, n int) machine {
	h := nvmltest.New(t, fmt.Sprintf("gpus %d\n", n))
	r := must[*nvidia.Reader](t)(nvidia.Open(t.Context(), nvidia.Options{Library: h.Library, Root: t.TempDir()}))
	return machine{reader: r, how: "none"}
}

// underEvery returns files of the compute driver, which lists every process under every GPU or partition,
// whether the process uses it or not.
func underEvery(processes, pid, gpuID, gpus int) string {
	var b strings.Builder
	for p := range processes {
		for g := range gpus {
			fmt.Fprintf(&b, "sys/class/kfd/kfd/proc/%d/vram_%d = 0\n", pid+p, gpuID+g)
		}
	}
	return b.String()
}

func newMI210(t *testing.T, n int) machine {
	root, m := copies(t, "amd-mi210.txt", n, func(i int) []string {
		return []string{
			"card10", fmt.Sprintf("card%d", 10+i), "renderD136", fmt.Sprintf("renderD%d", 136+i), "226:136", fmt.Sprintf("226:%d", 136+i),
			"drm_render_minor 136", fmt.Sprintf("drm_render_minor %d", 136+i), "0000:26:00.0", fmt.Sprintf("0000:%02x:00.0", 0x26+i),
			"location_id 9728", fmt.Sprintf("location_id %d", (0x26+i)<<8), "1901f3a8c0de4242", fmt.Sprintf("%x", 0x1901f3a8c0de4242+i),
			"1801989232040755778", strconv.Itoa(1801989232040755778 + i), "nodes/10", fmt.Sprintf("nodes/%d", 10+i),
			"2600", strconv.Itoa(2600 + i), "proc/500", fmt.Sprintf("proc/%d", 500+i),
		}
	}, underEvery(n, 500, 2600, n))
	m.reader = must[*amd.Reader](t)(amd.Open(t.Context(), amd.Options{Root: root, Now: m.clock.now}))
	return m
}

func newMI300X(t *testing.T, n int) machine {
	root, m := copies(t, "amd-mi300x.txt", n, func(i int) []string {
		render, node := 128+2*i, 1+2*i
		return []string{
			"card1", fmt.Sprintf("card%d", node), "card2", fmt.Sprintf("card%d", node+1),
			"renderD128", fmt.Sprintf("renderD%d", render), "renderD129", fmt.Sprintf("renderD%d", render+1),
			"drm_render_minor 128", fmt.Sprintf("drm_render_minor %d", render), "drm_render_minor 129", fmt.Sprintf("drm_render_minor %d", render+1),
			"0000:05:00.0", fmt.Sprintf("0000:%02x:00.0", 5+i), "location_id 1280", fmt.Sprintf("location_id %d", (5+i)<<8),
			"location_id 268436736", fmt.Sprintf("location_id %d", 1<<28|(5+i)<<8), "amdgpu_xcp_0", fmt.Sprintf("amdgpu_xcp_%d", i),
			"e3aa1c0d5b6f7081", fmt.Sprintf("%x", uint64(0xe3aa1c0d5b6f7081)+uint64(i)),
			"16404955436344635521", strconv.FormatUint(16404955436344635521+uint64(i), 10),
			"nodes/1", fmt.Sprintf("nodes/%d", node), "nodes/2", fmt.Sprintf("nodes/%d", node+1),
			"1001", strconv.Itoa(1000 + node), "1002", strconv.Itoa(1001 + node), "proc/4242", fmt.Sprintf("proc/%d", 4242+i),
		}
	}, underEvery(n, 4242, 1001, 2*n))
	m.reader = must[*amd.Reader](t)(amd.Open(t.Context(), amd.Options{Root: root, Now: m.clock.now}))
	return m
}

func newIntel(t *testing.T, n int) machine {
	root, m := copies(t, "intel-b580.txt", n, func(i int) []string {
		return []string{
			"0000:17:03.0", fmt.Sprintf("0000:17:%02x.0", 3+i), "0000:1d:00.0", fmt.Sprintf("0000:%02x:00.0", 0x40+i),
			"card21", fmt.Sprintf("card%d", 21+i), "226:21", fmt.Sprintf("226:%d", 21+i),
			"renderD149", fmt.Sprintf("renderD%d", 149+i), "226:149", fmt.Sprintf("226:%d", 149+i), "proc/1200", fmt.Sprintf("proc/%d", 1200+i),
		}
	})
	m.reader = must[*intel.Reader](t)(intel.Open(t.Context(), intel.Options{Root: root, Now: m.clock.now}))
	return m
}

func newTenstorrent(t *testing.T, n int) machine {
	root, m := copies(t, "tenstorrent-wormhole.txt", n, func(i int) []string {
		return []string{
			"tenstorrent!0", fmt.Sprintf("tenstorrent!%d", i), "driver/tenstorrent/0/", fmt.Sprintf("driver/tenstorrent/%d/", i),
			"0000:41:00.0", fmt.Sprintf("0000:%02x:00.0", 0x41+i), "00000000000000A1", fmt.Sprintf("00000000000001%02X", i),
		}
	})
	m.reader = must[*tenstorrent.Reader](t)(tenstorrent.Open(t.Context(), tenstorrent.Options{Root: root, Now: m.clock.now}))
	return m
}

func newNeuron(t *testing.T, n int) machine {
	root, m := copies(t, "neuron-0.txt", n, func(i int) []string {
		return []string{"neuron0", fmt.Sprintf("neuron%d", i), "A1B2C3D400", fmt.Sprintf("A1B2C3D4%02d", i), "proc/42", fmt.Sprintf("proc/%d", 4200+i)}
	})
	// neuron-monitor writes one line per second; the reader uses the last.
	monitor := filepath.Join(root, "neuron-monitor.json")
	line := must[[]byte](t)(json.Marshal(monitorLine(n)))
	files := m.tick
	m.tick = func() error {
		if err := os.WriteFile(monitor, append(line, '\n'), 0o600); err != nil {
			return err
		}
		if err := os.Chtimes(monitor, m.clock.t, m.clock.t); err != nil {
			return err
		}
		return files()
	}
	m.reader = must[*neuron.Reader](t)(neuron.Open(t.Context(), neuron.Options{Root: root, Monitor: monitor, Now: m.clock.now}))
	return m
}

func monitorLine(n int) map[string]any {
	var runtimes, counters []any
	for i := range n {
		cores, memory := map[string]any{}, map[string]any{}
		for _, core := range []int{2 * i, 2*i + 1} {
			cores[strconv.Itoa(core)] = map[string]any{"neuroncore_utilization": 25.5}
			memory[strconv.Itoa(core)] = map[string]any{"constants": 1 << 20, "tensors": 1 << 32}
		}
		runtimes = append(runtimes, map[string]any{"pid": 4200 + i, "error": "", "report": map[string]any{
			"neuroncore_counters": map[string]any{"period": 1.0, "neuroncores_in_use": cores, "error": ""},
			"memory_used": map[string]any{"period": 1.0, "error": "", "neuron_runtime_used_bytes": map[string]any{
				"host": 5, "neuron_device": 1 << 33, "usage_breakdown": map[string]any{"neuroncore_memory_usage": memory},
			}},
		}})
		counters = append(counters, map[string]any{"neuron_device_index": i, "mem_ecc_corrected": 3, "sram_ecc_corrected": 0})
	}
	return map[string]any{
		"neuron_runtime_data":  runtimes,
		"system_data":          map[string]any{"neuron_hw_counters": map[string]any{"period": 1.0, "neuron_devices": counters, "error": ""}},
		"neuron_hardware_info": map[string]any{"neuron_device_count": n, "neuroncore_per_device_count": 2, "neuron_device_memory_size": 32 << 30, "error": ""},
	}
}

func newGaudi(t *testing.T, n int) machine {
	root, m := copies(t, "gaudi-0.txt", n, func(i int) []string {
		return []string{"0000:33:00.0", fmt.Sprintf("0000:%02x:00.0", 0x33+i), "accel0", fmt.Sprintf("accel%d", i), "proc/17", fmt.Sprintf("proc/%d", 1700+i)}
	})
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the fake HLML library needs gcc: ", err)
	}
	script := fmt.Sprintf("count %d\n", n)
	for line := range strings.Lines(must[string](t)(fleettest.Script("gaudi.conf"))) {
		if strings.HasPrefix(line, "* ") {
			script += line
		}
	}
	for i := range n {
		script += fmt.Sprintf("%d text pci 0000:%02x:00.0\n%d text uuid U-%02d\n%d text serial S-%02d\n", i, 0x33+i, i, i, i, i)
	}
	library := must[string](t)(fleettest.HLML(t.TempDir(), script))
	m.reader = must[*gaudi.Reader](t)(gaudi.Open(t.Context(), gaudi.Options{Root: root, Library: library, Now: m.clock.now}))
	lib := must[*dlopen.Library](t)(dlopen.Open(library)) // the same library: it shares the reader's session
	m.calls, m.how = bareHLML(lib, n), "the calls of HLML"
	return m
}

// call is an HLML function with the arguments after the handle.
type call struct {
	name string
	args []uintptr
}

// answer is the output buffer. It is not a local variable, because those may move.
var (
	answer [64]uint64
	out    = uintptr(unsafe.Pointer(&answer))
	next   = uintptr(unsafe.Pointer(&answer[32]))
)

// The reader's calls on an accelerator that supports them: on each Read, and on slow reads. The others were
// reported as not supported.
var (
	fastCalls = []call{
		{"hlml_device_get_utilization_rates", []uintptr{out}},
		{"hlml_device_get_memory_info", []uintptr{out}},
		{"hlml_device_get_current_clocks_throttle_reasons", []uintptr{out}},
		{"hlml_device_get_power_usage", []uintptr{out}},
	}
	slowCalls = []call{
		{"hlml_device_get_pcie_replay_counter", []uintptr{out}},
		{"hlml_device_get_clock_info", []uintptr{0, out}},
		{"hlml_device_get_temperature", []uintptr{0, out}},
		{"hlml_device_get_temperature", []uintptr{1, out}},
		{"hlml_device_get_temperature", []uintptr{3, out}},
		{"hlml_device_get_temperature", []uintptr{4, out}},
		{"hlml_device_get_total_energy_consumption", []uintptr{out}},
		{"hlml_device_get_ecc_mode", []uintptr{out, next}},
		{"hlml_device_get_total_ecc_errors", []uintptr{0, 0, out}},
		{"hlml_device_get_total_ecc_errors", []uintptr{0, 1, out}},
		{"hlml_device_get_total_ecc_errors", []uintptr{1, 0, out}},
		{"hlml_device_get_total_ecc_errors", []uintptr{1, 1, out}},
		{"hlml_device_get_replaced_rows", []uintptr{0, out, 0}},
		{"hlml_device_get_replaced_rows", []uintptr{1, out, 0}},
		{"hlml_device_get_replaced_rows_pending_status", []uintptr{out}},
		{"hlml_get_mac_addr_info", []uintptr{out, next}},
		{"hlml_nic_get_link", []uintptr{22, out}},
		{"hlml_nic_get_link", []uintptr{23, out}},
	}
)

func bareHLML(lib *dlopen.Library, n int) func(device.Tier) {
	functions := map[string]dlopen.Func{}
	for _, c := range append(fastCalls[:len(fastCalls):len(fastCalls)], slowCalls...) {
		functions[c.name] = lib.Lookup(c.name)
	}
	handles := make([]uintptr, n)
	for i := range handles {
		lib.Lookup("hlml_device_get_handle_by_index").Call(uintptr(i), out)
		handles[i] = uintptr(answer[0])
	}
	return func(tier device.Tier) {
		list := fastCalls
		if tier == device.Slow {
			list = append(list[:len(list):len(list)], slowCalls...)
		}
		for _, h := range handles {
			for _, c := range list {
				answer[0] = 0 // capacity in rows
				functions[c.name].Call(append([]uintptr{h}, c.args...)...)
			}
		}
	}
}

// serveTPU is the workload that owns the chips: it serves their metrics until killed, and prints its port.
func serveTPU(chips int) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	return fleettest.TPU(chips).Serve(l)
}

func newTPU(t *testing.T, n int) machine {
	cmd := exec.CommandContext(t.Context(), must[string](t)(os.Executable()), "-tpu", strconv.Itoa(n))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout := must[io.ReadCloser](t)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	var port int
	if _, err := fmt.Fscan(stdout, &port); err != nil {
		t.Fatal(err)
	}
	load := must[fleettest.Tree](t)
	all := load(fleettest.Load("tree/host.txt"))
	maps.Copy(all, load(fleettest.Load("tree/tpu-0.txt")))
	for i := 1; i < n; i++ {
		maps.Copy(all, load(fleettest.Load("tree/tpu-1.txt")).Rename("0000:00:05.0", fmt.Sprintf("0000:00:%02x.0", 4+i), "iommu_groups/1", fmt.Sprintf("iommu_groups/%d", i)))
		maps.Copy(all, load(fleettest.Parse(fmt.Sprintf("proc/77/fd/%d -> /dev/vfio/%d\n", 10+i, i))))
	}
	m := machine{root: t.TempDir(), pace: 600 * time.Millisecond, how: "the questions over gRPC"}
	if err := all.Write(m.root, 0, map[string]string{"port": strconv.Itoa(port), "hexport": fmt.Sprintf("%04X", port)}); err != nil {
		t.Fatal(err)
	}
	m.reader = must[*tpu.Reader](t)(tpu.Open(t.Context(), tpu.Options{Root: m.root, Exporter: tpu.NoExporter}))
	conn := must[*grpc.ClientConn](t)(grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	m.calls = func(device.Tier) {
		for _, metric := range []string{
			"tpu.runtime.hbm.memory.total.bytes", "tpu.runtime.hbm.memory.usage.bytes", "tpu.runtime.tensorcore.dutycycle.percent",
			"tpu.runtime.hbm.utilization.percent", "tpu.runtime.tensorcore.idle_duration.seconds", "hlo.queue.size.gauge",
		} {
			request, reply := append([]byte{1<<3 | 2, byte(len(metric))}, metric...), []byte(nil)
			const method = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
			if err := conn.Invoke(context.Background(), method, &request, &reply, grpc.ForceCodec(raw{})); err != nil {
				t.Error(err)
			}
		}
	}
	return m
}

// raw passes wire messages through unchanged.
type raw struct{}

func (raw) Name() string                  { return "proto" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
