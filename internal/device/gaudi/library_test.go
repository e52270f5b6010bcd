//go:build linux

package gaudi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
)

var old = []string{
	"hlml_nic_get_link", "hlml_get_mac_addr_info", "hlml_device_get_*ecc*", "hlml_device_get_memory_error_counter",
	"hlml_device_get_replaced_rows*", "hlml_device_get_uuid", "hlml_device_get_current_clocks_throttle_reasons", "hlml_shutdown",
}

// A library that predates a function loses its values and nothing else.
func TestOldLibrary(t *testing.T) {
	lib := fake(t, script, old...)
	r, _ := open(t, untouched, lib)
	want := processes(whole(0, first, "gaudi-AN00000000", "AN00000000", 0.4), onFirst...)
	want.Modes, want.ECC, want.RowRemap, want.Interconnects, want.Throttles = device.Modes{}, nil, device.RowRemap{}, nil, nil
	if diff := cmp.Diff(want, read(t, devices(t, r)[0], device.Static)); diff != "" {
		t.Errorf("sample (-want +got):\n%s", diff)
	}
	if n := len(r.lib.Missing()); n < 8 {
		t.Errorf("%d functions are missing", n)
	}
}

// Sensors of later versions, and unknown bits.
func TestNewLibrary(t *testing.T) {
	r, _ := open(t, untouched, fake(t, script+"* new-sensors 1\n* temperature-3 60\n* temperature-4 50\n* threshold-2 105\n* threshold-1 0\n* throttle 9\n* rows-pending 1\n* ports 0x1\n"))
	s := read(t, devices(t, r)[0], device.Static)
	memory := device.Temperature{Sensor: "memory", Value: device.Of(60), Limits: []device.TemperatureCap{{Event: "operating", Limit: device.Of(105), Margin: device.Of(45)}}}
	if diff := cmp.Diff([]device.Temperature{memory, {Sensor: "vreg", Value: device.Of(50)}}, s.Temperatures[2:]); diff != "" {
		t.Errorf("temperatures (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]device.Throttle{
		{Cause: "power", Buckets: device.BucketPower | device.BucketSW, Active: true},
		{Cause: "thermal", Buckets: device.BucketThermal | device.BucketSW},
		{Cause: "bit_3", Buckets: device.BucketHW, Active: true},
	}, s.Throttles); diff != "" {
		t.Errorf("throttles (-want +got):\n%s", diff)
	}
	if limits := s.Temperatures[0].Limits; len(limits) != 2 || limits[1].Event != "shutdown" {
		t.Errorf("a threshold of 0 is reported: %+v", limits)
	}
	if s.RowRemap.Pending != device.Of(1) || len(s.Interconnects[0].Links) != 1 {
		t.Errorf("rows %+v, links %+v", s.RowRemap, s.Interconnects)
	}
}

// One failing call costs its own value and is named; the rest of the Sample is valid.
func TestPartialFailure(t *testing.T) {
	lib := fake(t, script+"1 ret hlml_device_get_memory_info 49\n1 ret hlml_device_get_power_usage 10\n1 ret hlml_device_get_pcie_replay_counter 21\n1 ret hlml_device_get_ecc_mode 77\n")
	r, _ := open(t, untouched, lib)
	list := devices(t, r)
	s, err := list[0].Read(t.Context(), device.Static)
	for _, want := range []string{"hlml_device_get_memory_info: unknown error", "hlml_device_get_power_usage: the firmware did not answer", "HLML error 77"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "replay") {
		t.Errorf("missing data is reported as an error: %v", err)
	}
	if s.Memory.Total.OK() || s.Powers[0].Instant.OK() || !s.Utilization.Compute.OK() || len(s.ECC) != 3 || s.Modes.ECC.OK() || s.PCIe.Replays.OK() {
		t.Errorf("sample: %+v", s)
	}
	read(t, list[1], device.Static)
	rewrite(t, lib, script)
	if s := read(t, list[0], device.Fast); !s.Memory.Total.OK() || s.Powers[0].Instant != device.Of(88) {
		t.Errorf("after the failure: %+v", s)
	}
}

// Unsupported queries are tried once per discovery, because each firmware call costs
// milliseconds.
func TestUnsupportedIsForgotten(t *testing.T) {
	lib := fake(t, strings.ReplaceAll(script, "* util 0\n", ""))
	r, _ := open(t, untouched, lib)
	d := devices(t, r)[1]
	util := func() device.Value { return read(t, d, device.Fast).Utilization.Compute }
	a := util()
	rewrite(t, lib, script)
	b := util()
	devices(t, r)
	if c := util(); a.OK() || b.OK() || c != device.Of(0) {
		t.Errorf("unsupported %v, asked again %v, after a discovery %v", a, b, c)
	}
}

// Tiers: what is read at every tick, and what is kept from the last slow one.
func TestTiers(t *testing.T) {
	lib := fake(t, script)
	r, _ := open(t, untouched, lib)
	d := devices(t, r)[0]
	read(t, d, device.Static)
	rewrite(t, lib, script+"* util 90\n* power 500000\n* throttle 0\n* memory-used 1\n* temperature-0 70\n* replays 7\n* threshold-1 99\n")
	want := processes(whole(0, first, "01P4-HL3090A0-18-U4V193-22-07-01", "AN00000000", 0.9), onFirst...)
	want.Powers[0].Instant, want.Memory.Used, want.Throttles[1].Active = device.Of(500), device.Of(1), false
	if diff := cmp.Diff(want, read(t, d, device.Fast)); diff != "" {
		t.Errorf("fast (-want +got):\n%s", diff)
	}
	want.Temperatures[0].Value, want.PCIe.Replays = device.Of(70), device.Of(7)
	for i, margin := range []float64{25, 30, 40} {
		want.Temperatures[0].Limits[i].Margin = device.Of(margin)
	}
	if diff := cmp.Diff(want, read(t, d, device.Slow)); diff != "" {
		t.Errorf("slow (-want +got):\n%s", diff)
	}
	want.Temperatures[0].Limits[1] = device.TemperatureCap{Event: "slowdown", Limit: device.Of(99), Margin: device.Of(29)}
	if diff := cmp.Diff(want, read(t, d, device.Static)); diff != "" {
		t.Errorf("static (-want +got):\n%s", diff)
	}
}

// A Sample that was returned does not change with the next Read.
func TestSampleIsFixed(t *testing.T) {
	lib := fake(t, script)
	r, _ := open(t, untouched, lib)
	d := devices(t, r)[0]
	s := read(t, d, device.Static)
	rewrite(t, lib, script+"* temperature-0 90\n* power 1000\n* ports-up 0\n")
	read(t, d, device.Static)
	if diff := cmp.Diff(processes(whole(0, first, "01P4-HL3090A0-18-U4V193-22-07-01", "AN00000000", 0.4), onFirst...), s); diff != "" {
		t.Errorf("it changed (-want +got):\n%s", diff)
	}
}

// The header states no unit for energy: the counter is used once it is plausible compared
// with power.
func TestEnergy(t *testing.T) {
	const start = 5_000_000 // mJ
	f := func(name string, perSecond float64, want bool) {
		t.Helper()
		e := energy{}
		now := time.Unix(0, 0).Add(time.Hour)
		if e.plausible(start, 500, now) || e.plausible(start, 500, now.Add(9*time.Second)) {
			t.Errorf("%s: used before it was checked", name)
		}
		if got := e.plausible(start+30*perSecond, 500, now.Add(30*time.Second)); got != want {
			t.Errorf("%s: %v", name, got)
		}
		// The decision stands, whatever power does, and also when the counter restarts.
		if got := e.plausible(start+31*perSecond, 0, now.Add(31*time.Second)) || e.plausible(5, 90, now.Add(time.Minute)); got != want {
			t.Errorf("%s, later: %v", name, got)
		}
	}
	f("J", 500, true)
	f("J of an idle time before", 80, true)
	f("J of a busy time before", 1500, true)
	f("mJ taken for J", 500_000, false)
	f("kJ taken for J", 0.5, false)
	f("stands still", 0, false)

	lib := fake(t, script)
	r, c := open(t, untouched, lib)
	d := devices(t, r)[0]
	if s := read(t, d, device.Static); s.Energy.OK() {
		t.Errorf("energy %v at once", s.Energy)
	}
	c.advance(30 * time.Second)
	rewrite(t, lib, script+"1 energy 7640000\n") // 88 W for 30 s
	if s := read(t, d, device.Slow); s.Energy != device.Of(7640) {
		t.Errorf("energy %v", s.Energy)
	}
	if s := read(t, d, device.Fast); s.Energy != device.Of(7640) {
		t.Errorf("energy %v at a fast Read", s.Energy)
	}
	rewrite(t, lib, script+"1 ret hlml_device_get_total_energy_consumption 21\n")
	if s := read(t, d, device.Slow); s.Energy.OK() {
		t.Errorf("energy %v without an answer", s.Energy)
	}
}

// A lost accelerator affects no other, and comes back with a new session as the same
// Device. An accelerator that stays lost does not restart the session at every discovery.
func TestLostAndReturned(t *testing.T) {
	lib := fake(t, script)
	r, c := open(t, untouched, lib)
	list := devices(t, r)
	rewrite(t, lib, script+"1 ret hlml_device_get_power_usage 15\n1 ret hlml_device_get_uuid 15\n")
	s, err := list[0].Read(t.Context(), device.Fast)
	if diff := cmp.Diff(device.Sample{ID: list[0].ID()}, s); !errors.Is(err, device.ErrLost) || diff != "" {
		t.Fatalf("err %v, sample %s", err, diff)
	}
	read(t, list[1], device.Fast)
	begun := r.begun
	if found, err := r.Devices(t.Context()); len(found) != 3 || !errors.Is(err, device.ErrLost) || !r.begun.Equal(begun) {
		t.Errorf("soon after the loss: %d devices, err %v", len(found), err)
	}
	r.stale.Store(true)
	c.advance(2 * time.Minute)
	found, err := r.Devices(t.Context())
	if len(found) != 3 || found[0] != list[0] || !errors.Is(err, device.ErrLost) || r.begun.Equal(begun) {
		t.Fatalf("%d devices, err %v, session of %v", len(found), err, r.begun)
	}
	if s := read(t, list[1], device.Fast); !s.Utilization.Compute.OK() {
		t.Error("the neighboring accelerator has no library values after the new session")
	}
	// The library does not list the accelerator: only the values from the files are left.
	if s := read(t, list[0], device.Fast); s.Utilization.Compute.OK() || s.Status != device.Of(0) {
		t.Errorf("without the library: %+v", s)
	}
	begun = r.begun
	r.stale.Store(true)
	c.advance(10 * time.Second)
	if _, err := r.Devices(t.Context()); err == nil || !r.begun.Equal(begun) {
		t.Errorf("a new session after 10 s, err %v", err)
	}
	rewrite(t, lib, script)
	found = devices(t, r)
	if s := read(t, found[0], device.Fast); found[0] != list[0] || s.Utilization.Compute != device.Of(0.4) {
		t.Errorf("after it came back: %v", s.Utilization.Compute)
	}
	c.advance(2 * time.Minute)
	devices(t, r) // for the loss reported meanwhile
	begun = r.begun
	c.advance(2 * time.Minute)
	devices(t, r)
	if !r.begun.Equal(begun) {
		t.Error("a new session although nothing was lost since")
	}
}

// A call that hangs is named, and does not delay other accelerators.
func TestHangBlocksNobody(t *testing.T) {
	lib := fake(t, script)
	r, _ := open(t, untouched, lib)
	list := devices(t, r)
	rewrite(t, lib, script+"1 hang hlml_device_get_power_usage\n")
	done := make(chan error, 1)
	go func() {
		_, err := list[0].Read(t.Context(), device.Fast)
		done <- err
	}()
	await.True(t, "a hung call", func() bool { return list[0].(device.Busy).Busy() == "hlml_device_get_power_usage" })
	waiting := make(chan error, 1)
	go func() {
		_, err := r.Devices(t.Context())
		waiting <- err
	}()
	for range 5 {
		read(t, list[1], device.Fast)
	}
	if err := r.lock(t.Context(), 10*time.Millisecond); !errors.Is(err, vendorlib.ErrBusy) {
		t.Errorf("the library was closed during a call: %v", err)
	}
	rewrite(t, lib, script)
	if err := <-done; err != nil {
		t.Errorf("the call that hung returned %v", err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("the discovery that waited returned %v", err)
	}
	if busy := list[0].(device.Busy).Busy(); busy != "" {
		t.Errorf("still busy with %q", busy)
	}
}

// An accelerator that hangs during discovery does not affect those already known.
func TestDiscoveryHang(t *testing.T) {
	root, lib := untouched, fake(t, script)
	r, _ := open(t, root, lib)
	list := devices(t, r)
	list[0].(*aip).gone.Store(true)
	rewrite(t, lib, script+"1 hang hlml_device_get_uuid\n")
	done := make(chan error, 1)
	go func() {
		_, err := r.Devices(t.Context())
		done <- err
	}()
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		read(t, list[1], device.Slow)
	}
	select {
	case err := <-done:
		t.Fatalf("the discovery did not hang: %v", err)
	default:
	}
	rewrite(t, lib, script)
	if err := <-done; err != nil {
		t.Errorf("the discovery that hung returned %v", err)
	}
}

// An unusable library is an error next to the values from the files, and is retried.
func TestBrokenLibrary(t *testing.T) {
	root := untouched
	lib := fake(t, "init 9\n")
	r, _ := open(t, root, lib)
	list, err := r.Devices(t.Context())
	if len(list) != 3 || !errors.Is(err, errDriverNotLoaded) || !strings.Contains(err.Error(), soname) {
		t.Fatalf("%d devices, err %v", len(list), err)
	}
	if diff := cmp.Diff(fromSysfs(2, second), read(t, list[1], device.Static)); diff != "" {
		t.Errorf("sample (-want +got):\n%s", diff)
	}
	rewrite(t, lib, script)
	if list := devices(t, r); list[0].ID().UUID != "01P4-HL3090A0-18-U4V193-22-07-01" {
		t.Errorf("after the library could be initialized: %v", list[0].ID())
	}

	// A library already initialized elsewhere in the process is not an error.
	rewrite(t, lib, script)
	text := filepath.Join(t.TempDir(), soname)
	check(t, os.WriteFile(text, []byte("not a library"), 0o600))
	other := fake(t, script, "hlml_init*")
	for _, o := range []Options{{Library: text}, {LibraryDirs: []string{filepath.Dir(text)}}, {Library: other}, {Library: "/nowhere/" + soname}} {
		o.Root = root
		r, err := Open(t.Context(), o)
		check(t, err)
		list, err := r.Devices(t.Context())
		if len(list) != 3 || err == nil || !strings.Contains(err.Error(), soname) {
			t.Errorf("%+v: %d devices, err %v", o, len(list), err)
		}
		check(t, r.Close())
	}
}

// The library is searched where Intel installs it, below the host's root.
func TestLibrarySearch(t *testing.T) {
	root := machine(t, server())
	lib := fake(t, script)
	b, err := os.ReadFile(lib)
	check(t, err)
	put(t, root, "usr/lib/habanalabs/"+soname, string(b))
	put(t, root, "usr/lib/habanalabs/fake.conf", script)
	r, _ := open(t, root, "")
	if s := read(t, devices(t, r)[0], device.Fast); s.Utilization.Compute != device.Of(0.4) {
		t.Errorf("utilization %v", s.Utilization.Compute)
	}
}

// An accelerator that HLML cannot open, or whose address it does not report, has the values
// from the files.
func TestLibraryWithoutOne(t *testing.T) {
	root := untouched
	for _, lines := range []string{
		"1 ret hlml_device_get_handle_by_index 49\n", "1 ret hlml_device_get_pci_info 49\n", "1 text pci elsewhere\n", "count 1\n",
	} {
		r, _ := open(t, root, fake(t, script+lines))
		list := devices(t, r)
		a, b := read(t, list[0], device.Static), read(t, list[2], device.Static)
		if diff := cmp.Diff(processes(fromSysfs(0, first), onFirst...), a); diff != "" || !b.Utilization.Compute.OK() {
			t.Errorf("%q: %v (-want +got):\n%s", lines, b.Utilization.Compute, diff)
		}
	}
	r, _ := open(t, root, fake(t, script, "hlml_device_get_count"))
	if list, err := r.Devices(t.Context()); len(list) != 3 || err == nil || !strings.Contains(err.Error(), "cannot count") {
		t.Errorf("%d devices, err %v", len(list), err)
	}
}

// What HLML writes must fit into these structs, with room for versions that write more.
func TestLayout(t *testing.T) {
	for name, room := range map[string][2]uintptr{
		"memory":      {unsafe.Sizeof(memory{}), 24},
		"utilization": {unsafe.Sizeof(utilization{}), 8},
		"pci info":    {unsafe.Sizeof(pciInfo{}), 84},
		"ports":       {unsafe.Sizeof(ports{}), 16},
	} {
		if room[0] < room[1] {
			t.Errorf("%s: %d bytes, the library of 1.24 writes %d", name, room[0], room[1])
		}
	}
	if o := unsafe.Offsetof(pciInfo{}.busID); o != 4 {
		t.Errorf("the bus id is at %d", o)
	}
	if o := []uintptr{unsafe.Offsetof(memory{}.free), unsafe.Offsetof(memory{}.total), unsafe.Offsetof(memory{}.used)}; !cmp.Equal(o, []uintptr{0, 8, 16}) {
		t.Errorf("memory is at %v", o)
	}
	if diff := cmp.Diff([]int{0, 63, 64, 255}, ports{1<<63 | 1, 1, 0, 1 << 63}.list()); diff != "" {
		t.Errorf("ports: %s", diff)
	}
}
