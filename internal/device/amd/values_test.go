//go:build linux

package amd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// one reads a machine with one card that has the given files.
func one(t *testing.T, files map[string]string, more ...func(tree)) (device.Sample, error) {
	t.Helper()
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", files)
	for _, f := range more {
		f(tr)
	}
	return devices(t, tr.open())[0].Read(t.Context(), device.Static)
}

// A missing file, a file that contains 0, and a broken file are three different cases.
func TestDegraded(t *testing.T) {
	folders := map[string]bool{}
	f := func(name, content string, get func(device.Sample) device.Value, want device.Value, wantErr string) {
		t.Helper()
		files := map[string]string{"numa_node": "1\n"}
		if content != "" {
			files[name] = content
		}
		s, err := one(t, files)
		if got := get(s); got != want {
			t.Errorf("%s %q is %v, want %v", name, content, got, want)
		}
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s %q: error %v, want %q", name, content, err, wantErr)
		}
		if s.Info.NUMA != "1" {
			t.Errorf("%s %q: the other values are missing", name, content)
		}
		if folders[name] {
			return
		}
		folders[name] = true
		s, err = one(t, map[string]string{"numa_node": "1\n"}, func(tr tree) { tr.folder("sys/class/drm/card0/device/" + name) })
		if get(s).OK() || err == nil || !strings.Contains(err.Error(), name) || s.Info.NUMA != "1" {
			t.Errorf("%s that cannot be read: %v, %v", name, get(s), err)
		}
	}
	busy := func(s device.Sample) device.Value { return s.Utilization.Compute }
	f("gpu_busy_percent", "", busy, device.Value{}, "")
	f("gpu_busy_percent", "0\n", busy, device.Of(0), "")
	f("gpu_busy_percent", "100\n", busy, device.Of(1), "")
	f("gpu_busy_percent", "101\n", busy, device.Value{}, "")
	f("gpu_busy_percent", "-1\n", busy, device.Value{}, "")
	f("gpu_busy_percent", "N/A\n", busy, device.Value{}, "gpu_busy_percent")
	f("gpu_busy_percent", "NaN\n", busy, device.Value{}, "gpu_busy_percent")
	f("gpu_busy_percent", "\n", busy, device.Value{}, "gpu_busy_percent")
	used := func(s device.Sample) device.Value { return s.Memory.Used }
	f("mem_info_vram_used", "0\n", used, device.Of(0), "")
	f("mem_info_vram_used", "x\n", used, device.Value{}, "mem_info_vram_used")
	power := func(s device.Sample) device.Value {
		if len(s.Powers) == 0 {
			return device.Value{}
		}
		return s.Powers[0].Draw()
	}
	f("hwmon/hwmon0/power1_input", "", power, device.Value{}, "")
	f("hwmon/hwmon0/power1_input", "0\n", power, device.Of(0), "")
	f("hwmon/hwmon0/power1_input", "35500000\n", power, device.Of(35.5), "")
	f("hwmon/hwmon0/power1_average", "3000000\n", power, device.Of(3), "")
	f("hwmon/hwmon0/power1_input", "?\n", power, device.Value{}, "power1_input")
	temp := func(s device.Sample) device.Value {
		if len(s.Temperatures) == 0 {
			return device.Value{}
		}
		return s.Temperatures[0].Value
	}
	f("hwmon/hwmon0/temp1_input", "-5000\n", temp, device.Of(-5), "")
	f("hwmon/hwmon0/temp1_input", "0\n", temp, device.Of(0), "")
	f("hwmon/hwmon0/temp1_input", "hot\n", temp, device.Value{}, "temp1_input")
	f("hwmon/hwmon0/temp2_label", "junction\n", temp, device.Value{}, "")
	volts := func(s device.Sample) device.Value {
		if len(s.Voltages) == 0 {
			return device.Value{}
		}
		return s.Voltages[0].Volts
	}
	f("hwmon/hwmon0/in1_input", "615\n", volts, device.Of(0.615), "")
	corrected := func(s device.Sample) device.Value {
		if len(s.ECC) == 0 {
			return device.Value{}
		}
		return s.ECC[0].Count
	}
	f("ras/umc_err_count", "ce: 0\n", corrected, device.Of(0), "")
	f("ras/umc_err_count", "ce: many\n", corrected, device.Value{}, "umc_err_count")
	retired := func(s device.Sample) device.Value { return s.PageRetirement.Uncorrected }
	f("ras/gpu_vram_bad_pages", "", retired, device.Value{}, "")
	f("ras/gpu_vram_bad_pages", "0x1 : 0x1000 : P\n", retired, device.Of(0), "")
	f("ras/gpu_vram_bad_pages", "0x1 : 0x1000 : X\n", retired, device.Value{}, "gpu_vram_bad_pages")
	ecc := func(s device.Sample) device.Value { return s.Modes.ECC }
	f("ras/features", "feature mask: 0x0\n", ecc, device.Of(0), "")
	f("ras/features", "feature mask: 0x3f\numc: ...\n", ecc, device.Of(1), "")
	f("ras/features", "none\n", ecc, device.Value{}, "ras/features")
	replays := func(s device.Sample) device.Value { return s.PCIe.Replays }
	f("pcie_replay_count", "0\n", replays, device.Of(0), "")
	aer := func(s device.Sample) device.Value {
		if len(s.PCIe.Errors) == 0 {
			return device.Value{}
		}
		return s.PCIe.Errors[0].Count
	}
	f("aer_dev_fatal", "DLP 0\nTOTAL_ERR_FATAL 2\n", aer, device.Of(2), "")
	f("aer_dev_fatal", "DLP 0\n", aer, device.Value{}, "aer_dev_fatal")
	table := func(s device.Sample) device.Value { return s.Energy }
	f("gpu_metrics", "", table, device.Value{}, "")
	f("gpu_metrics", "\x08\x00\x01\x0a....", table, device.Value{}, "v1.10: unknown layout")
	f("gpu_metrics", "\x78\x00\x01\x03....", table, device.Value{}, "v1.3: truncated")
	f("gpu_metrics", "\x78\x00\x01\x03"+strings.Repeat("x", 5000), table, device.Value{}, "v1.3: larger")
}

// A driver that has no table for a GPU returns an empty file.
func TestEmptyTable(t *testing.T) {
	s, err := one(t, map[string]string{"gpu_metrics": "", "gpu_busy_percent": "3\n"})
	if s.Utilization.Compute != device.Of(0.03) || err != nil {
		t.Errorf("%v, %v", s.Utilization, err)
	}
}

// A block that cannot be read or parsed affects no other block.
func TestBrokenBlocks(t *testing.T) {
	s, err := one(t, map[string]string{"ras/df_err_count": "?", "ras/umc_err_count": "ue: 4\nce: 0\n"}, func(tr tree) {
		tr.folder("sys/class/drm/card0/device/ras/athub_err_count")
	})
	want := []device.ECC{
		{Type: "corrected", Lifetime: "volatile", Count: device.Of(0)},
		{Type: "uncorrected", Lifetime: "volatile", Count: device.Of(4)},
		{Type: "corrected", Lifetime: "volatile", Location: "umc", Count: device.Of(0)},
		{Type: "uncorrected", Lifetime: "volatile", Location: "umc", Count: device.Of(4)},
	}
	if diff := cmp.Diff(want, s.ECC); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "athub_err_count") || !strings.Contains(err.Error(), "df_err_count") {
		t.Errorf("%v", err)
	}
}

// An empty list of bad pages means none, not unknown.
func TestNoBadPages(t *testing.T) {
	s, err := one(t, map[string]string{"ras/gpu_vram_bad_pages": ""})
	want := device.PageRetirement{Uncorrected: device.Of(0), Pending: device.Of(0), Failure: device.Of(0)}
	if s.PageRetirement != want || err != nil {
		t.Errorf("%+v, %v", s.PageRetirement, err)
	}
	// A GPU with many bad pages has a list longer than a page.
	pages := strings.Repeat("0x00000123 : 0x00001000 : R\n", 1000) + "0x1 : 0x1000 : F\n"
	s, err = one(t, map[string]string{"ras/gpu_vram_bad_pages": pages})
	want = device.PageRetirement{Uncorrected: device.Of(1000), Pending: device.Of(0), Failure: device.Of(1)}
	if s.PageRetirement != want || err != nil {
		t.Errorf("%+v, %v", s.PageRetirement, err)
	}
	_, err = one(t, map[string]string{"ras/gpu_vram_bad_pages": strings.Repeat(pages, 50)})
	if err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("%v", err)
	}
}

// The unit of the energy counter is known only for Instinct. A Radeon's number would be
// mistaken for joules.
func TestEnergy(t *testing.T) {
	f := func(table, gfx, value string, want device.Value) {
		t.Helper()
		s, err := one(t, nil, func(tr tree) {
			tr.table("sys/class/drm/card0/device/gpu_metrics", table, "energy_accumulator "+value)
			if gfx != "" {
				tr.write("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 4\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 256\ngfx_target_version "+gfx+"\n")
			}
		})
		if s.Energy != want || err != nil {
			t.Errorf("%s of gfx %s: %v, %v, want %v", table, gfx, s.Energy, err, want)
		}
	}
	f("v1.3", "90010", "131072", device.Of(2))
	f("v1.1", "90008", "131072", device.Of(2))
	f("v1.0", "90006", "131072", device.Of(2))
	f("v1.3", "100300", "131072", device.Value{})
	f("v1.3", "", "131072", device.Value{})
	f("v1.4", "", "131072", device.Of(2))
	f("v1.8", "90402", "0", device.Value{})
}

// Catches 0 W for the busy second die of an MI250: the firmware measures the package on its
// first die only.
func TestTwoDies(t *testing.T) {
	f := func(pciID, watts, hwmon string, want []device.Power) {
		t.Helper()
		s, err := one(t, nil, func(tr tree) {
			tr.write("sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\nPCI_ID="+pciID+"\nPCI_SLOT_NAME=0000:01:00.0\n")
			tr.write("sys/class/drm/card0/device/hwmon/hwmon0/power1_average", hwmon)
			tr.table("sys/class/drm/card0/device/gpu_metrics", "v1.3", "average_socket_power "+watts+"\naverage_gfx_activity 97")
		})
		if diff := cmp.Diff(want, s.Powers); diff != "" || err != nil || s.Utilization.Compute != device.Of(0.97) {
			t.Errorf("%s with %s W: %v, %v (-want +got):\n%s", pciID, watts, err, s.Utilization.Compute, diff)
		}
	}
	f("1002:7408", "480", "480000000", []device.Power{{Scope: "module", Average: device.Of(480)}})
	f("1002:7408", "0", "0", nil)
	f("1002:740C", "0", "0", nil)
	f("1002:740F", "90", "90000000", []device.Power{{Scope: "gpu", Average: device.Of(90)}})
	f("1002:73BF", "0", "0", []device.Power{{Scope: "gpu", Average: device.Of(0)}})
}

// Catches sensors that a board does not have and that read 0.
func TestNoSensor(t *testing.T) {
	s, err := one(t, nil, func(tr tree) {
		const hwmon = "sys/class/drm/card0/device/hwmon/hwmon0/"
		tr.table("sys/class/drm/card0/device/gpu_metrics", "v1.3", "temperature_edge 45\ntemperature_mem 0\ntemperature_vrsoc 0\nvoltage_gfx 0\nvoltage_soc 818\nvoltage_mem 0")
		tr.write(hwmon+"temp3_label", "mem")
		tr.write(hwmon+"temp3_input", "0")
		tr.write(hwmon+"in0_input", "0")
	})
	want := device.Sample{
		ID: s.ID, Info: s.Info, Aliases: s.Aliases,
		Temperatures: []device.Temperature{{Sensor: "edge", Value: device.Of(45)}}, Voltages: []device.Voltage{{Rail: "soc", Volts: device.Of(0.818)}},
	}
	if diff := cmp.Diff(want, s); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// APU tables use other units: only their clocks and flags are read.
func TestAPU(t *testing.T) {
	for _, table := range []string{"v2.0", "v2.1", "v2.2", "v2.3", "v2.4"} {
		lines := "temperature_gfx 4500\naverage_gfx_activity 700\naverage_socket_power 12000\ncurrent_gfxclk 800\ncurrent_uclk 2800\ncurrent_fclk 1600\ncurrent_vclk 400\n"
		var want []device.Throttle
		switch table {
		case "v2.0", "v2.1":
			lines += "throttle_status 8\n"
			want = []device.Throttle{{Cause: "bit_3", Buckets: device.BucketHW, Active: true}}
		default:
			lines += "throttle_status 8\nindep_throttle_status 16\n"
			want = independent("spl")
		}
		s, err := one(t, map[string]string{"gpu_busy_percent": "7\n"}, func(tr tree) {
			tr.table("sys/class/drm/card0/device/gpu_metrics", table, lines)
		})
		if err != nil || s.Utilization.Compute != device.Of(0.07) || s.Temperatures != nil || s.Powers != nil {
			t.Errorf("%s: %v, %v, %v, %v", table, err, s.Utilization, s.Temperatures, s.Powers)
		}
		clocks := []device.Clock{
			{Type: "graphics", Frequency: device.Of(800e6)},
			{Type: "memory", Frequency: device.Of(2800e6)},
			{Type: "fabric", Frequency: device.Of(1600e6)},
			{Type: "video", Frequency: device.Of(400e6)},
		}
		if diff := cmp.Diff(clocks, s.Clocks); diff != "" {
			t.Errorf("%s (-want +got):\n%s", table, diff)
		}
		if diff := cmp.Diff(want, s.Throttles); diff != "" {
			t.Errorf("%s (-want +got):\n%s", table, diff)
		}
	}
	s, err := one(t, nil, func(tr tree) {
		tr.table("sys/class/drm/card0/device/gpu_metrics", "v3.0", "average_gfx_activity 5\naverage_gfxclk_frequency 700\naverage_vclk_frequency 300\n")
	})
	want := []device.Clock{{Type: "graphics", Frequency: device.Of(700e6)}, {Type: "video", Frequency: device.Of(300e6)}}
	if diff := cmp.Diff(want, s.Clocks); diff != "" || err != nil || s.Throttles != nil || s.Utilization.Compute.OK() {
		t.Errorf("v3.0: %v, %v (-want +got):\n%s", err, s.Throttles, diff)
	}
}

// Video engines, in whichever column a version has them.
func TestVideo(t *testing.T) {
	f := func(table, lines string, decoder, jpeg device.Value) {
		t.Helper()
		s, err := one(t, nil, func(tr tree) { tr.table("sys/class/drm/card0/device/gpu_metrics", table, lines) })
		if s.Utilization.Decoder != decoder || s.Utilization.JPEG != jpeg || err != nil {
			t.Errorf("%s: %+v, %v", table, s.Utilization, err)
		}
	}
	none := device.Value{}
	f("v1.3", "average_mm_activity 12", device.Of(0.12), none)
	f("v1.4", "vcn_activity 10 20 30 40", device.Of(0.25), none)
	f("v1.5", "vcn_activity 10\njpeg_activity 50 0", device.Of(0.1), device.Of(0.25))
	f("v1.6", "xcp0.vcn_busy 10\nxcp7.vcn_busy 30\nxcp3.jpeg_busy 5", device.Of(0.2), device.Of(0.05))
	f("v1.8", "", none, none)
}

func TestPCIe(t *testing.T) {
	f := func(lines string, files map[string]string, gen, width device.Value) {
		t.Helper()
		s, err := one(t, files, func(tr tree) { tr.table("sys/class/drm/card0/device/gpu_metrics", "v1.3", lines) })
		if s.PCIe.Generation != gen || s.PCIe.Width != width || err != nil {
			t.Errorf("%q %v: %+v, %v", lines, files, s.PCIe, err)
		}
	}
	sysfs := map[string]string{"current_link_speed": "16.0 GT/s PCIe\n", "current_link_width": "16\n"}
	for speed, gen := range map[int]float64{25: 1, 50: 2, 80: 3, 160: 4, 320: 5, 640: 6} {
		f(fmt.Sprintf("pcie_link_speed %d\npcie_link_width 8", speed), sysfs, device.Of(gen), device.Of(8))
	}
	f("", sysfs, device.Of(4), device.Of(16))
	f("pcie_link_speed 0\npcie_link_width 0", sysfs, device.Of(4), device.Of(16))
	f("", map[string]string{"current_link_speed": "Unknown\n", "current_link_width": "0\n"}, device.Value{}, device.Value{})
	f("", nil, device.Value{}, device.Value{})
}

// Links from a table without link states, on a board with two links.
func TestXGMI(t *testing.T) {
	s, err := one(t, nil, func(tr tree) {
		tr.table("sys/class/drm/card0/device/gpu_metrics", "v1.4",
			"xgmi_link_width 16\nxgmi_link_speed 32\nxgmi_read_data_acc 1 18446744073709551615 3\nxgmi_write_data_acc 0 18446744073709551615 4")
	})
	of := device.Of
	want := []device.Interconnect{{Type: "xgmi", TX: of(4 * 1024), RX: of(4 * 1024), Links: []device.Link{
		{Index: 0, TX: of(0), RX: of(1024)},
		{Index: 2, TX: of(4096), RX: of(3072)},
	}}}
	if diff := cmp.Diff(want, s.Interconnects); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// Catches totals over links that fall while a link does not report.
func TestSilentXGMI(t *testing.T) {
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", nil)
	const file = "sys/class/drm/card0/device/gpu_metrics"
	tr.table(file, "v1.4", "xgmi_read_data_acc 1 300\nxgmi_write_data_acc 2 400")
	d := devices(t, tr.open())
	got := []device.Value{read(t, d, device.Static)[0].Interconnects[0].RX}
	tr.change(file, "v1.4", "xgmi_read_data_acc 2 18446744073709551615")
	got = append(got, read(t, d, device.Fast)[0].Interconnects[0].RX)
	tr.change(file, "v1.4", "xgmi_read_data_acc 2 305")
	got = append(got, read(t, d, device.Fast)[0].Interconnects[0].RX)
	want := []device.Value{device.Of(301 * 1024), device.Of(302 * 1024), device.Of(307 * 1024)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
}

// A link that is up at an unknown speed has no bandwidth limit, not a limit of 0.
func TestXGMISpeed(t *testing.T) {
	s, err := one(t, nil, func(tr tree) {
		tr.table("sys/class/drm/card0/device/gpu_metrics", "v1.7", "xgmi_link_status 1 2 2 2 2 2 2 2")
	})
	want := []device.Interconnect{{Type: "xgmi", Links: []device.Link{{Up: device.Of(1)}}}}
	if diff := cmp.Diff(want, s.Interconnects); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestLevels(t *testing.T) {
	f := func(text string, want device.Value) {
		t.Helper()
		if got := parseLevels(text); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	f("0: 500Mhz\n1: 31Mhz *\n2: 2219Mhz\n", device.Of(2219e6))
	f("S: 19Mhz *\n0: 500Mhz\n1: 2400MHz\n", device.Of(2400e6))
	f("0: 8.0GT/s, x16\n", device.Value{})
	f("0: 0Mhz *\n", device.Value{})
	f("", device.Value{})
	f("1:\n2: Mhz\nMhz", device.Value{})
}

func FuzzParsers(f *testing.F) {
	f.Add("0: 500Mhz\n1: 2219Mhz *\n")
	f.Add("ue: 1\nce: 2\nde: 3\n")
	f.Add("0x00000123 : 0x00001000 : R\n")
	f.Add("simd_count 608\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 18446744073709551615\nunique_id 5\n")
	f.Add("16.0 GT/s PCIe")
	f.Add("DRIVER=amdgpu\nPCI_SLOT_NAME=0000:05:00.0")
	f.Add("pid:12-id:3")
	f.Fuzz(func(t *testing.T, s string) {
		if v, ok := parseLevels(s).Get(); ok && !(v > 0 && v <= (1<<32)*mega) {
			t.Errorf("%q has a level of %v", s, v)
		}
		if n, err := parseRAS(s); err != nil && n != nil {
			t.Errorf("%q: %v and %v", s, n, err)
		}
		if r, p, fl, err := parseBadPages(s); r+p+fl > strings.Count(s, "\n")+1 || err != nil && r+p+fl > 0 {
			t.Errorf("%q: %d %d %d %v", s, r, p, fl, err)
		}
		if n, ok := parseNode(s); ok && (n.cus < 0 || n.gfx < 0 || !strings.HasSuffix(n.pci, ".0")) {
			t.Errorf("%q: %+v", s, n)
		}
		if gen := sysfs.LinkGeneration(s); gen < 0 || gen > 7 {
			t.Errorf("%q is generation %d", s, gen)
		}
		for k, v := range parseUevent(s) {
			if !strings.Contains(s, k+"="+v) {
				t.Errorf("%q: invented %q=%q", s, k, v)
			}
		}
		if pid, ok := parsePID(s); ok && pid == 0 {
			t.Errorf("%q is process 0", s)
		}
		if id := hexID(s); id != "" && hexID(id) != id {
			t.Errorf("%q is %s", s, id)
		}
		modelOf(s)
	})
}
