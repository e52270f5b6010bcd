//go:build linux

package amd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// capture returns the path of a capture from a real machine. Captures are not part of this
// repository.
func capture(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../../shared/fixtures/amd", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no captures found: %v", err)
	}
	return path
}

// line formats the main values of a real card's reading.
func line(s device.Sample) string {
	v := func(v device.Value, unit string) string {
		if f, ok := v.Get(); ok {
			return fmt.Sprintf("%.4g%s", f, unit)
		}
		return "-"
	}
	out := []string{s.ID.Model, s.ID.PCI, strings.TrimPrefix(s.ID.UUID, "amd-"), "busy " + v(s.Utilization.Compute, ""), "memory " + v(s.Memory.Total, "")}
	for _, t := range s.Temperatures {
		out = append(out, t.Sensor+" "+v(t.Value, ""))
		for _, l := range t.Limits {
			out = append(out, "/ "+v(l.Limit, ""))
		}
	}
	for _, p := range s.Powers {
		out = append(out, "power "+v(p.Instant, "")+" "+v(p.Average, "")+" of "+v(p.Enforced(), ""))
	}
	for _, c := range s.Clocks {
		out = append(out, c.Type+" "+v(c.Frequency.Div(1e6), "")+" of "+v(c.Limit.Div(1e6), ""))
	}
	for _, x := range s.Voltages {
		out = append(out, x.Rail+" "+v(x.Volts, "V"))
	}
	for _, f := range s.Fans {
		out = append(out, "fan "+v(f.RPM, ""))
	}
	for _, t := range s.Throttles {
		if t.Active {
			out = append(out, "throttled "+t.Cause)
		}
	}
	return strings.Join(append(out, "pcie "+v(s.PCIe.Generation, "")+" x"+v(s.PCIe.Width, "")+" energy "+v(s.Energy, "")), ", ")
}

// copyTree copies a capture. Some of its files are padded to a page, which the kernel does
// not do.
func copyTree(tr tree, to, from string) {
	tr.t.Helper()
	err := filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if e.Name() != "gpu_metrics" {
			b = bytes.TrimRight(b, "\x00")
		}
		tr.write(filepath.Join(to, strings.TrimPrefix(path, from)), string(b))
		return err
	})
	if err != nil {
		tr.t.Fatal(err)
	}
}

// Real Radeon cards, compared with the values seen on them.
func TestCapturedCards(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			copyTree(tr, "sys/class/drm", capture(t, "sysfs/"+name))
			list := devices(t, tr.open())
			if len(list) != 1 {
				t.Fatalf("%d devices", len(list))
			}
			if diff := cmp.Diff(want, line(read(t, list, device.Static)[0])); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	f("rx6900xt", "AMD Radeon RX 6800/6900, 0000:0c:00.0, 946d7e1ef9b172dd, busy 0.03, memory 1.716e+10, edge 56, / 100, / 105, hotspot 59, / 110, / 115, memory 54, / 100, / 105, vr_gfx 49, vr_soc 49, vr_mem 51, power - 36 of 289, graphics 500 of 2660, memory 1000 of 1000, soc 800 of 1200, video 0 of -, core 0.775V, soc 0.818V, memory 1.356V, fan 0, pcie 4 x16 energy -")
	f("rx7800xt", "AMD Radeon RX 7700/7800 XT, 0000:03:00.0, 0123456789abcdef-0000:03:00.0, busy 0.24, memory -, edge 24, / 100, / 105, hotspot 31, / 110, / 115, memory 48, / 108, / 113, vr_gfx 34, vr_soc 32, vr_mem 34, power - 32 of 236, graphics 2011 of 2254, memory 456 of 1218, soc 750 of 1500, video 25 of -, core 0.985V, soc 0.768V, memory 0.704V, fan 868, pcie 4 x16 energy -")
	f("rx7600s", "AMD Radeon RX 7600, 0000:03:00.0, 0123456789abcdef-0000:03:00.0, busy 0, memory -, edge 53, / 100, / 105, hotspot 54, / 100, / 105, memory 60, / 105, / 110, power - 1 of 95, graphics 1200 of 1841, memory 96 of 1000, soc 711 of 1280, video 25 of -, soc 0.727V, memory 0.687V, fan 0, pcie 4 x8 energy -")
	f("rx7900xtx", "AMD Radeon RX 7900, 0000:03:00.0, 0123456789abcdef-0000:03:00.0, busy 0.03, memory -, edge 53, / 100, / 105, hotspot 61, / 110, / 115, memory 68, / 108, / 113, power - 68 of 290, graphics 31 of 2219, memory 1249 of 1249, core 0.686V, fan 0, pcie 4 x16 energy -")
	f("vega56", "AMD Radeon RX Vega, 0000:0b:00.0, 0123456789abcdef-0000:0b:00.0, busy 0, memory 8.573e+09, edge 38, / 85, / 90, hotspot 38, / 105, / 110, memory 39, / 95, / 100, power - 8 of 260, graphics 26 of 1590, memory 167 of 920, core 0.762V, fan 5, pcie 3 x16 energy -")
	f("phoenix", "AMD Radeon 760M/780M, 0000:64:00.0, 0123456789abcdef-0000:64:00.0, busy 0, memory 4.295e+09, edge 25, power 3.142 3.103 of -, graphics 800 of 2700, memory 400 of 800, soc 400 of 1200, fabric 400 of 1600, video 800 of 2400, core 0.814V, nb 0.615V, pcie 4 x16 energy -")
	f("procfs-fixture-card0", "AMD Radeon RX Vega, 0000:09:00.0, 0123456789abcdef, busy 0.04, memory 8.573e+09, pcie 3 x16 energy -")
}

// Real tables of version 1.3, compared with the values noted when they were captured.
func TestCapturedTables(t *testing.T) {
	f := func(name string, want map[string]float64, absent ...string) {
		t.Helper()
		b, err := os.ReadFile(capture(t, "sysfs/"+name+"/device/gpu_metrics"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := decode(b, gpuLayouts, gpuPacked)
		if err != nil {
			t.Fatal(err)
		}
		for field, v := range want {
			if got := m.get(field); got != device.Of(v) {
				t.Errorf("%s: %s is %v, want %v", name, field, got, v)
			}
		}
		for _, field := range append(absent, "average_socclk_frequency", "gfx_activity_acc", "temperature_hbm", "firmware_timestamp") {
			if v := m.get(field); v.OK() {
				t.Errorf("%s: %s is %v", name, field, v)
			}
		}
	}
	f("rx6900xt/card0", map[string]float64{
		"temperature_edge": 56, "temperature_hotspot": 59, "temperature_mem": 54, "average_gfx_activity": 3, "average_socket_power": 36,
		"energy_accumulator": 17691682, "average_gfxclk_frequency": 41, "current_gfxclk": 500, "average_uclk_frequency": 993, "current_uclk": 1000,
		"pcie_link_width": 16, "pcie_link_speed": 160, "voltage_soc": 818, "voltage_gfx": 775, "voltage_mem": 1356,
	})
	f("rx7800xt/card1", map[string]float64{
		"temperature_edge": 24, "temperature_hotspot": 31, "temperature_mem": 48, "average_gfx_activity": 24, "average_socket_power": 32,
		"energy_accumulator": 0, "current_fan_speed": 868,
	})
	f("rx7600s/card1", map[string]float64{
		"temperature_edge": 53, "temperature_hotspot": 54, "temperature_mem": 60, "average_socket_power": 1, "throttle_status": 2,
		"indep_throttle_status": 1 << 36, "pcie_link_width": 8,
	})
}

// Synthetic tables, written independently from the kernel's structs, value by value.
func TestCapturedSynthetic(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(capture(t, "gpu_metrics-synthetic"), "*.bin"))
	if err != nil || len(files) < 7 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(strings.TrimSuffix(file, ".bin") + ".expected.json")
			if err != nil {
				t.Fatal(err)
			}
			var want map[string]any
			d := json.NewDecoder(strings.NewReader(string(text)))
			if err := d.Decode(&want); err != nil {
				t.Fatal(err)
			}
			k := kindsOf[""]
			if strings.HasPrefix(filepath.Base(file), "part") {
				k = kindsOf["partition"]
			}
			m, err := decode(b, k.layouts, k.packed)
			if err != nil {
				t.Fatal(err)
			}
			n := checkAll(t, m, want, 0)
			if attrs, ok := want["attrs"].([]any); ok {
				for _, a := range attrs {
					a := a.(map[string]any)
					n += checkAll(t, m, map[string]any{packedNames[int(a["id"].(float64))]: a["values"]}, 0)
				}
			}
			if n < 10 {
				t.Errorf("only %d values", n)
			}
		})
	}
}

// checkAll compares the values of one row and returns how many there were.
func checkAll(t *testing.T, m *metrics, want map[string]any, row int) (n int) {
	t.Helper()
	for name, v := range want {
		switch {
		case name == "xcp_stats":
			for k, stats := range v.([]any) {
				n += checkAll(t, m, stats.(map[string]any), k)
			}
			continue
		case slices.Contains([]string{"structure_size", "format_revision", "content_revision", "attr_count", "attrs"}, name):
			continue
		}
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		if m.count(name) != len(list) {
			t.Errorf("%s has %d values, want %d", name, m.count(name), len(list))
		}
		for i, v := range list {
			want := device.Value{}
			if f, ok := v.(float64); ok {
				want = device.Of(f)
			}
			if got := m.at(name, row, i); got != want {
				t.Errorf("%s[%d][%d] is %v, want %v", name, row, i, got, want)
			}
			n++
		}
	}
	return n
}

// Real topologies of Instinct machines.
func TestCapturedTopologies(t *testing.T) {
	f := func(name string, gpus, parts, count, cus int, arch string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.link("sys/class/kfd/kfd/topology", capture(t, "kfd-topology/"+name))
			nodes, err := topology(tr.options().sys())
			if err != nil || len(nodes) != count {
				t.Fatalf("%d nodes, %v", len(nodes), err)
			}
			byGPU := map[string]int{}
			for _, n := range nodes {
				byGPU[n.unique]++
				if byGPU[n.unique] == 1 { // the GPU's own card, as in sysfs
					tr.card(len(byGPU), n.pci, map[string]string{"unique_id": n.unique + "\n"})
				}
				if n.cus != cus || architecture(n.gfx) != arch || n.render == "" {
					t.Errorf("%+v", n)
				}
			}
			list := devices(t, tr.open())
			want := gpus
			if parts > 1 {
				want += count
			}
			if len(list) != want || len(byGPU) != gpus {
				t.Errorf("%d devices of %d GPUs", len(list), len(byGPU))
			}
			uuids := map[string]bool{}
			for _, d := range list {
				if uuids[d.ID().UUID] {
					t.Errorf("%s appears twice", d.ID().UUID)
				}
				uuids[d.ID().UUID] = true
				s, err := d.Read(t.Context(), device.Static)
				if err != nil || d.ID().Parent != "" && (s.Slice.Held != 1 || s.Slice.Of > parts || s.Slice.Of < parts-1) {
					t.Errorf("%s: %v, %v", d.ID().UUID, s.Slice, err)
				}
			}
		})
	}
	f("topo-mi300-cpx/topology", 8, 8, 63, 38, "gfx942") // this kernel ran out of minor numbers for the last partition
	f("topo-mi210-xgmi-pcie", 8, 1, 8, 104, "gfx90a")
	f("topology-parsing-mi308/topology", 8, 4, 32, 20, "gfx942")
}

// The processes of a synthetic KFD tree, on the real MI308X whose ids it uses.
func TestCapturedProcesses(t *testing.T) {
	tr := newTree(t)
	tr.link("sys/class/kfd/kfd/topology", capture(t, "kfd-topology/topology-parsing-mi308/topology"))
	tr.link("sys/class/kfd/kfd/proc", capture(t, "kfd-proc-synthetic/sys/class/kfd/kfd/proc"))
	tr.card(1, "0000:0a:00.0", map[string]string{"unique_id": fmt.Sprintf("%016x\n", uint64(598046273873802902))})
	list := devices(t, tr.open())
	got := map[string][]device.Process{}
	for _, s := range read(t, list, device.Fast) {
		if s.Processes != nil {
			got[s.ID.UUID] = s.Processes
		}
	}
	want := map[string][]device.Process{"amd-084cafeae17e7696-xcp0": {
		{PID: 3903703, Type: "compute", MemoryUsed: device.Of(12333932544), Occupancy: device.Of(1)},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Real lines of the kernel log.
func TestCapturedLog(t *testing.T) {
	f := func(name string, want map[string]int) {
		t.Helper()
		b, err := os.ReadFile(capture(t, "kernel-log/"+name))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for l := range strings.Lines(string(b)) {
			// "kern  :err   : 2024-10-07T10:17:15,145363-04:00 text"
			if _, rest, ok := strings.Cut(l, ": 20"); ok {
				_, text, _ := strings.Cut(rest, " ")
				if e, ok := parseLine(text); ok {
					got[e.Name]++
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("amdgpu-lines.txt", map[string]int{device.EventECC: 9, device.EventHang: 5})
	f("dmesg_sample.log", map[string]int{device.EventECC: 4})
}
