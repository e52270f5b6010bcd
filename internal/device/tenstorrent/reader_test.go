//go:build linux

package tenstorrent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

// Every value of a whole machine: units, order by number, which file provides which value,
// and absence of what the hardware does not report.
func TestWholeMachine(t *testing.T) {
	var got []device.Sample
	for _, d := range devices(t, open(t, machine(t, lab()))) {
		s, err := d.Read(t.Context(), device.Static)
		check(t, err)
		got = append(got, s)
	}
	blackhole := func(n int, pci, asic string) device.Sample {
		return device.Sample{
			ID: device.ID{
				Vendor: "tenstorrent", UUID: "tenstorrent-0000046131924099-" + strings.ToLower(asic), Index: n,
				Model: "Tenstorrent Blackhole p300c", PCI: pci,
			},
			Info:         device.Info{Driver: "2.10.0", Architecture: "blackhole", Firmware: "19.11.0.0"},
			Temperatures: []device.Temperature{{Sensor: "edge", Value: device.Of(-1.5)}},
			Powers:       []device.Power{{Scope: "gpu", Instant: device.Of(0), Limits: []device.PowerLimit{{Type: "enforced", Watts: device.Of(125)}}}},
			Clocks:       []device.Clock{{Type: "ai", Frequency: device.Of(800e6)}},
			PCIe:         device.PCIe{Generation: device.Of(5), Width: device.Of(8)},
			Heartbeat:    device.Of(43874),
			Resets:       []device.ErrorCount{{Type: "thermal_trip", Count: device.Of(3)}},
			Aliases:      []string{fmt.Sprintf("tenstorrent.com/%d", n), fmt.Sprintf("tenstorrent/%d", n), "0000046131924099", asic},
		}
	}
	want := []device.Sample{
		{
			ID: device.ID{
				Vendor: "tenstorrent", UUID: "tenstorrent-0100014511708042-00000000000000a1",
				Model: "Tenstorrent Wormhole n300", PCI: "0000:41:00.0",
			},
			Info: device.Info{Driver: "2.10.0", Architecture: "wormhole", NUMA: "1", Firmware: "18.6.0.0"},
			Temperatures: []device.Temperature{{
				Sensor: "edge", Value: device.Of(46.25),
				Limits: []device.TemperatureCap{{Event: "slowdown", Limit: device.Of(75), Margin: device.Of(28.75)}},
			}},
			Powers:   []device.Power{{Scope: "gpu", Instant: device.Of(16), Limits: []device.PowerLimit{{Type: "enforced", Watts: device.Of(85)}}}},
			Clocks:   []device.Clock{{Type: "ai", Frequency: device.Of(1e9)}, {Type: "axi", Frequency: device.Of(900e6)}, {Type: "arc", Frequency: device.Of(540e6)}},
			Voltages: []device.Voltage{{Rail: "core", Volts: device.Of(0.76)}},
			Current:  device.Of(21),
			PCIe:     device.PCIe{Generation: device.Of(3), GenerationMax: device.Of(4), Width: device.Of(16), WidthMax: device.Of(16)},
			// 63 words came from the host, 6300 went to it.
			Interconnects: []device.Interconnect{{Type: "pcie", RX: device.Of(63 * 32), TX: device.Of(6300 * 32)}},
			Heartbeat:     device.Of(5000),
			Processes:     []device.Process{{PID: 17, Name: "tt-metal server", Type: "compute"}, {PID: 4242, Name: "python3", Type: "compute"}},
			Aliases:       []string{"tenstorrent.com/0", "tenstorrent/0", "0100014511708042", "00000000000000A1"},
		},
		blackhole(2, "0000:81:00.0", "FCF9BCF9E3C8B89E"),
		{
			ID:      device.ID{Vendor: "tenstorrent", UUID: "tenstorrent-3f6c1e-0000:c1:00.0", Index: 3, Model: "Tenstorrent Grayskull", PCI: "0000:c1:00.0"},
			Info:    device.Info{Driver: "2.10.0", Architecture: "grayskull", NUMA: "0"},
			Aliases: []string{"tenstorrent.com/3", "tenstorrent/3"},
		},
		blackhole(10, "0000:82:00.0", "FCF9BCF9E3C8B89F"),
	}
	want[3].Processes = []device.Process{{PID: 99, Type: "compute"}} // a process whose name is not visible
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	for _, wrong := range devicetest.CheckSources("sources.txt", want...) {
		t.Error(wrong)
	}
}

// A machine without the hardware, or whose driver found none, is a normal state.
func TestAbsent(t *testing.T) {
	for _, files := range []map[string]string{nil, {"sys/class/tenstorrent": "/"}, {"sys/class/tenstorrent/tenstorrent!x/tt_aiclk": "1"}} {
		if _, err := Open(t.Context(), Options{Root: machine(t, files)}); !errors.Is(err, device.ErrAbsent) {
			t.Errorf("%v: err = %v", files, err)
		}
	}
}

// A missing, empty, broken or unreadable file affects its own value and no other.
func TestDegraded(t *testing.T) {
	files := lab()
	root := machine(t, files)
	f := func(file, text string, get func(device.Sample) device.Value, want device.Value, wantErr string) {
		t.Helper()
		path := "sys/devices/pci0000:00/0000:41:00.0/" + file
		check(t, os.Remove(filepath.Join(root, path)))
		defer put(t, root, path, files[path])
		if text != "" {
			put(t, root, path, text)
		}
		list := devices(t, open(t, root))
		s, err := list[0].Read(t.Context(), device.Fast) // a first Read covers all tiers
		if got := get(s); got != want {
			t.Errorf("%s = %q gives %v, want %v", file, text, got, want)
		}
		if (err == nil) != (wantErr == "") || err != nil && (!strings.Contains(err.Error(), wantErr) || !strings.Contains(err.Error(), filepath.Base(file))) {
			t.Errorf("%s = %q: err = %v, want %q and the file", file, text, err, wantErr)
		}
		if !s.Clocks[len(s.Clocks)-1].Frequency.OK() || len(s.Processes) != 2 {
			t.Errorf("%s = %q costs other values: %+v", file, text, s)
		}
		if other, err := list[1].Read(t.Context(), device.Fast); err != nil || !other.Heartbeat.OK() {
			t.Errorf("%s = %q costs another chip: %v", file, text, err)
		}
	}
	const class = "tenstorrent/tenstorrent!0/"
	heartbeat := func(s device.Sample) device.Value { return s.Heartbeat }
	f(class+"tt_heartbeat", "", heartbeat, device.Value{}, "")
	f(class+"tt_heartbeat", "0", heartbeat, device.Of(0), "")
	f(class+"tt_heartbeat", "nan", heartbeat, device.Value{}, "is not an integer")
	f(class+"tt_heartbeat", " ", heartbeat, device.Value{}, "is not an integer")
	f(class+"tt_heartbeat", "/", heartbeat, device.Value{}, "is a directory")
	current := func(s device.Sample) device.Value { return s.Current }
	f("hwmon/hwmon7/curr1_input", "", current, device.Value{}, "")
	f("hwmon/hwmon7/curr1_input", "0", current, device.Of(0), "")
	f("hwmon/hwmon7/curr1_input", "21A", current, device.Value{}, "is not an integer")
	power := func(s device.Sample) device.Value { return s.Powers[0].Instant }
	f("hwmon/hwmon7/power1_input", "", power, device.Value{}, "")
	f("hwmon/hwmon7/power1_input", "/", power, device.Value{}, "is a directory")
	limit := func(s device.Sample) device.Value { return s.Powers[0].Enforced() }
	f("hwmon/hwmon7/power1_max", "", limit, device.Value{}, "")
	temperature := func(s device.Sample) device.Value { return s.Temperatures[0].Value }
	f("hwmon/hwmon7/temp1_input", "", temperature, device.Value{}, "")
	f("hwmon/hwmon7/temp1_input", "hot", temperature, device.Value{}, "is not an integer")
	// A missing counter would make the sum decrease.
	rx := func(s device.Sample) device.Value { return s.Interconnects[0].RX }
	f(class+"pcie_perf_counters/slv_rd_data_word_sent1", "", rx, device.Value{}, "")
	f(class+"pcie_perf_counters/slv_rd_data_word_sent1", "word", rx, device.Value{}, "is not an integer")
	f(class+"pcie_perf_counters/slv_rd_data_word_sent1", "4294967296", rx, device.Value{}, "")
	tx := func(s device.Sample) device.Value { return s.Interconnects[0].TX }
	f(class+"pcie_perf_counters/slv_rd_data_word_sent1", "", tx, device.Of(6300*32), "")
	width := func(s device.Sample) device.Value { return s.PCIe.Width }
	f("current_link_width", "wide", width, device.Value{}, "is not an integer")
	f("current_link_width", "0", width, device.Value{}, "")
	f("current_link_width", "1", width, device.Of(1), "")
}

// A 32-bit counter continues across a wraparound, and restarts after a reset.
func TestTraffic(t *testing.T) {
	root := machine(t, lab())
	d := devices(t, open(t, root))[0]
	const file = "sys/devices/pci0000:00/0000:41:00.0/tenstorrent/tenstorrent!0/"
	rx := func(words, heartbeat string) device.Value {
		t.Helper()
		put(t, root, file+"pcie_perf_counters/mst_posted_wr_data_word_sent0", words)
		put(t, root, file+"tt_heartbeat", heartbeat)
		s, err := d.Read(t.Context(), device.Fast)
		check(t, err)
		if len(s.Interconnects) == 0 {
			return device.Value{}
		}
		return s.Interconnects[0].RX
	}
	const others = 62
	got := []device.Value{
		rx("4294967290", "5000"), // counted before the first read
		rx("4294967295", "5100"),
		rx("4", "5200"), // wrapped: 5 words more
		rx("3", "5300"), // a step back
		rx("1000", "5400"),
		rx("0", "5450"), // misread
		rx("1000", "5500"),
		rx("7", "10"), // reset
		rx("8", "20"),
	}
	want := []device.Value{
		device.Of((4294967290 + others) * 32), device.Of((4294967295 + others) * 32), device.Of((4294967300 + others) * 32),
		device.Of((4294967300 + others) * 32), device.Of((4294968296 + others) * 32), device.Of((4294968296 + others) * 32), device.Of((4294968296 + others) * 32), device.Of((7 + others) * 32), device.Of((8 + others) * 32),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
}

// Tiers: what is read at every tick, and what is kept from the last slow or first Read.
func TestTiers(t *testing.T) {
	root := machine(t, lab())
	d := devices(t, open(t, root))[0]
	_, err := d.Read(t.Context(), device.Static)
	check(t, err)
	const bus = "sys/devices/pci0000:00/0000:41:00.0/"
	put(t, root, bus+"tenstorrent/tenstorrent!0/tt_fw_bundle_ver", "18.7.0.0")
	put(t, root, bus+"hwmon/hwmon7/power1_max", "90000000")
	put(t, root, bus+"hwmon/hwmon7/power1_input", "50000000")
	read := func(tier device.Tier) string {
		t.Helper()
		s, err := d.Read(t.Context(), tier)
		check(t, err)
		draw, _ := s.Powers[0].Instant.Get()
		limit, _ := s.Powers[0].Enforced().Get()
		return fmt.Sprint(draw, limit, s.Info.Firmware)
	}
	got := []string{read(device.Fast), read(device.Slow), read(device.Static)}
	if diff := cmp.Diff([]string{"50 8518.6.0.0", "50 9018.6.0.0", "50 9018.7.0.0"}, got); diff != "" {
		t.Errorf("draw, limit and firmware (-want +got):\n%s", diff)
	}
	// After a chip was lost for a moment, everything is read again.
	away := filepath.Join(root, "away")
	check(t, os.Rename(filepath.Join(root, bus), away))
	if _, err := d.Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("err = %v", err)
	}
	check(t, os.Rename(away, filepath.Join(root, bus)))
	put(t, root, bus+"tenstorrent/tenstorrent!0/tt_fw_bundle_ver", "18.8.0.0")
	if got := read(device.Fast); got != "50 9018.8.0.0" {
		t.Errorf("after it was lost: %s", got)
	}
}

// Wormhole's counters are read at most once a second, because reading disturbs the chip.
// Their last values are kept meanwhile, unless the chip was reset.
func TestTrafficIsRare(t *testing.T) {
	root := machine(t, lab())
	now := time.Unix(1000, 0)
	r, err := Open(t.Context(), Options{Root: root, Now: func() time.Time { return now }})
	check(t, err)
	d := devices(t, r)[0]
	const file = "sys/devices/pci0000:00/0000:41:00.0/tenstorrent/tenstorrent!0/"
	rx := func(words, heartbeat string, later time.Duration) device.Value {
		t.Helper()
		now = now.Add(later)
		put(t, root, file+"pcie_perf_counters/mst_posted_wr_data_word_sent0", words)
		put(t, root, file+"tt_heartbeat", heartbeat)
		s, err := d.Read(t.Context(), device.Static)
		check(t, err)
		return s.Interconnects[0].RX
	}
	got := []device.Value{rx("1", "10", 0), rx("2", "11", 999*time.Millisecond), rx("3", "12", time.Millisecond), rx("4", "1", time.Millisecond)}
	if diff := cmp.Diff([]device.Value{device.Of(63 * 32), device.Of(63 * 32), device.Of(65 * 32), device.Of(66 * 32)}, got); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
}

// A chip that disappeared is lost, and affects no other.
func TestLost(t *testing.T) {
	root := machine(t, lab())
	r := open(t, root)
	list := devices(t, r)
	_, err := list[0].Read(t.Context(), device.Static)
	check(t, err)
	check(t, os.Remove(class(root, "0")))
	check(t, os.RemoveAll(filepath.Join(root, "sys/devices/pci0000:00/0000:41:00.0")))
	for _, tier := range []device.Tier{device.Fast, device.Slow} {
		s, err := list[0].Read(t.Context(), tier)
		if !errors.Is(err, device.ErrLost) {
			t.Errorf("err = %v", err)
		}
		if diff := cmp.Diff(device.Sample{ID: list[0].ID()}, s); diff != "" {
			t.Errorf("a lost chip has values: %s", diff)
		}
	}
	if _, err := list[1].Read(t.Context(), device.Fast); err != nil {
		t.Errorf("the neighboring chip: %v", err)
	}
	if rest := devices(t, r); len(rest) != 3 {
		t.Errorf("%d devices", len(rest))
	}
	// Another chip took its number: the old Device must not report the new chip's values.
	for name, text := range chipFiles("0", "0000:42:00.0", wormholeClass, wormholePCI) {
		put(t, root, name, text)
	}
	if _, err := list[0].Read(t.Context(), device.Slow); !errors.Is(err, device.ErrLost) {
		t.Errorf("another chip at its place: %v", err)
	}
}

// Kernel error codes: no data is silence, no device is a loss, anything else is an error.
func TestFail(t *testing.T) {
	f := func(code error, lost bool, errs int) {
		t.Helper()
		c := &chip{}
		c.fail(code)
		if c.lost != lost || len(c.errs) != errs {
			t.Errorf("%v: lost %v, errors %v", code, c.lost, c.errs)
		}
	}
	path := func(code error) error { return &fs.PathError{Op: "read", Path: "tt_aiclk", Err: code} }
	f(nil, false, 0)
	f(path(unix.ENODATA), false, 0)
	f(path(unix.EAGAIN), false, 0)
	f(path(unix.ENOENT), false, 0)
	f(path(unix.ENODEV), true, 0)
	f(path(unix.EIO), false, 1)
	f(path(unix.EACCES), false, 1)
}

// With a driver that does not list its processes, they are found by their open files at the
// slow tier. Processes that exited are gone at the next fast tick.
func TestProcessesByFiles(t *testing.T) {
	files := lab()
	for _, n := range []string{"0", "2", "3", "10"} {
		delete(files, "proc/driver/tenstorrent/"+n+"/pids")
	}
	files["proc/4242/fd/3"] = "-> /dev/tenstorrent/0"
	files["proc/4242/fd/4"] = "-> /dev/tenstorrent/0"
	files["proc/17/fd/9"] = "-> /dev/tenstorrent/0"
	files["proc/18/fd/9"] = "-> /dev/tenstorrent/01"
	files["proc/18/comm"] = "other"
	root := machine(t, files)
	d := devices(t, open(t, root))[0]
	pids := func(tier device.Tier) (list []uint32) {
		t.Helper()
		s, err := d.Read(t.Context(), tier)
		check(t, err)
		for _, p := range s.Processes {
			list = append(list, p.PID)
		}
		return list
	}
	got := [][]uint32{pids(device.Static)}
	check(t, os.RemoveAll(filepath.Join(root, "proc/17")))
	got = append(got, pids(device.Fast))
	put(t, root, "proc/19/comm", "new")
	put(t, root, "proc/19/fd/3", "-> /dev/tenstorrent/0")
	got = append(got, pids(device.Fast), pids(device.Slow))
	if diff := cmp.Diff([][]uint32{{17, 4242}, {4242}, {4242}, {19, 4242}}, got); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	// A broken list is an error that names the file, not an idle chip.
	put(t, root, "proc/driver/tenstorrent/0/pids", "4242\nroot")
	if _, err := d.Read(t.Context(), device.Fast); err == nil || !strings.Contains(err.Error(), "tenstorrent/0/pids") {
		t.Errorf("err = %v", err)
	}
}

func TestCancelled(t *testing.T) {
	d := devices(t, open(t, machine(t, lab())))[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := d.Read(ctx, device.Fast); !errors.Is(err, context.Canceled) || s.Heartbeat.OK() {
		t.Errorf("%v %v", s.Heartbeat, err)
	}
}
