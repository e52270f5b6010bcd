//go:build linux

package tenstorrent

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A chip in reset has no values, no error and the same identity. Its counters continue
// afterwards.
func TestReset(t *testing.T) {
	root := machine(t, lab())
	r := open(t, root)
	before := devices(t, r)
	first, err := before[0].Read(t.Context(), device.Static)
	check(t, err)
	hush(t, filepath.Join(root, "sys/devices/pci0000:00/0000:41:00.0"))

	for _, tier := range []device.Tier{device.Fast, device.Slow, device.Static} {
		s, err := before[0].Read(t.Context(), tier)
		if err != nil {
			t.Errorf("tier %d: a reset is an error: %v", tier, err)
		}
		if s.Heartbeat.OK() || s.Current.OK() || s.Clocks != nil || s.Interconnects != nil || s.Voltages != nil {
			t.Errorf("tier %d: values during a reset: %+v", tier, s)
		}
		if tier >= device.Slow && (s.Temperatures != nil || s.Powers != nil) {
			t.Errorf("tier %d: limits during a reset: %+v", tier, s)
		}
		if diff := cmp.Diff(first.Aliases, s.Aliases); diff != "" || s.Info.Firmware != "18.6.0.0" {
			t.Errorf("tier %d: the identity is lost: %s", tier, diff)
		}
	}
	if after := devices(t, r); len(after) != 4 || after[0] != before[0] {
		t.Errorf("a chip in reset has a new Device after a discovery: %v", after)
	}
	// The same holds for a chip with a fan and a count of thermal shutdowns.
	const blackhole = "sys/devices/pci0000:00/0000:81:00.0"
	put(t, root, blackhole+"/hwmon/hwmon11/fan1_input", "1000")
	s, err := before[1].Read(t.Context(), device.Static)
	if err != nil || s.Fans == nil || s.Resets == nil {
		t.Errorf("before the reset: %v %+v", err, s)
	}
	hush(t, filepath.Join(root, blackhole))
	s, err = before[1].Read(t.Context(), device.Slow)
	if err != nil || s.Fans != nil || s.Resets != nil {
		t.Errorf("in the reset: %v %+v", err, s)
	}
	for name, text := range lab() {
		if strings.HasPrefix(name, blackhole) {
			put(t, root, name, text)
		}
	}
	// A chip with the same number at another address is not mistaken for it.
	put(t, root, "sys/devices/pci0000:00/0000:41:00.0/tenstorrent/tenstorrent!0/device", "-> ../../../0000:42:00.0")
	put(t, root, "sys/devices/pci0000:00/0000:42:00.0/device", "0x401e")
	if after, err := r.Devices(t.Context()); len(after) != 3 || err == nil {
		t.Errorf("another chip in reset: %d devices, err %v", len(after), err)
	}
	put(t, root, "sys/devices/pci0000:00/0000:41:00.0/tenstorrent/tenstorrent!0/device", "-> ../../../0000:41:00.0")
	// A chip that cannot be identified yet is omitted, and the others are not.
	list, err := open(t, root).Devices(t.Context())
	if len(list) != 3 || err == nil || !strings.Contains(err.Error(), "tenstorrent 0: the chip is being reset") {
		t.Errorf("first seen in a reset: %d devices, err %v", len(list), err)
	}
	for name, text := range chipFiles("0", "0000:41:00.0", wormholeClass, wormholePCI) {
		put(t, root, name, text)
	}
	again, err := before[0].Read(t.Context(), device.Fast)
	if diff := cmp.Diff(first.Heartbeat, again.Heartbeat); diff != "" || err != nil {
		t.Errorf("after the reset: %v %s", err, diff)
	}
}

// The model name of a chip whose board or PCI id is unknown.
func TestNewChip(t *testing.T) {
	f := func(class, pci map[string]string, model, arch string) {
		t.Helper()
		d := devices(t, open(t, machine(t, chipFiles("0", "0000:01:00.0", class, pci))))[0]
		s, err := d.Read(t.Context(), device.Static)
		check(t, err)
		if d.ID().Model != model || s.Info.Architecture != arch {
			t.Errorf("%v %v: model %q, architecture %q", class, pci, d.ID().Model, s.Info.Architecture)
		}
	}
	f(map[string]string{"tt_card_type": "unknown"}, map[string]string{"device": "0xb140"}, "Tenstorrent Blackhole", "blackhole")
	f(map[string]string{"tt_card_type": "p999"}, map[string]string{"device": "0xfeed", "hwmon/hwmon0/name": "blackhole"}, "Tenstorrent Blackhole p999", "blackhole")
	f(map[string]string{"tt_card_type": "p999"}, map[string]string{"device": "0xfeed", "hwmon/hwmon0/name": "grendel"}, "Tenstorrent p999", "")
}

// The same chip keeps its Device; a chip that replaced it gets a new one.
func TestRediscovery(t *testing.T) {
	root := machine(t, lab())
	r := open(t, root)
	before, after := devices(t, r), devices(t, r)
	for i := range before {
		if before[i] != after[i] {
			t.Errorf("chip %d has a new Device", i)
		}
	}
	put(t, root, "sys/devices/pci0000:00/0000:41:00.0/tenstorrent/tenstorrent!0/tt_serial", "0100014511708043")
	after = devices(t, r)
	if before[0] == after[0] || before[1] != after[1] || !strings.Contains(after[0].ID().UUID, "8043") {
		t.Errorf("after an exchange: %v", after[0].ID())
	}
}

// Sixteen chips with gaps in their numbers are ordered by number, not as strings.
func TestManyChips(t *testing.T) {
	files := map[string]string{}
	var want []int
	for i := range 16 {
		n := i * 3
		want = append(want, n)
		maps.Copy(files, chipFiles(fmt.Sprint(n), fmt.Sprintf("0000:%02x:00.0", i+1), map[string]string{"tt_serial": fmt.Sprintf("%016X", i)}, nil))
	}
	var got []int
	for _, d := range devices(t, open(t, machine(t, files))) {
		got = append(got, d.ID().Index)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// Two chips with the same identity would mix up their values.
func TestTwins(t *testing.T) {
	files := lab()
	files["sys/devices/pci0000:00/0000:82:00.0/tenstorrent/tenstorrent!10/tt_asic_id"] = "FCF9BCF9E3C8B89E"
	list, err := open(t, machine(t, files)).Devices(t.Context())
	if len(list) != 3 || err == nil || !strings.Contains(err.Error(), "tenstorrent 10: has the same serial number and chip id as tenstorrent 2") {
		t.Errorf("%d devices, err %v", len(list), err)
	}
	// Without a chip id, the address distinguishes them.
	for _, n := range []string{"0000:81:00.0/tenstorrent/tenstorrent!2", "0000:82:00.0/tenstorrent/tenstorrent!10"} {
		delete(files, "sys/devices/pci0000:00/"+n+"/tt_asic_id")
	}
	if list := devices(t, open(t, machine(t, files))); len(list) != 4 || list[3].ID().UUID != "tenstorrent-0000046131924099-0000:82:00.0" {
		t.Errorf("without chip ids: %v", list)
	}
	// A chip that cannot be read does not affect the others, and keeps its identity when it
	// can be read again.
	const serial = "sys/devices/pci0000:00/0000:41:00.0/tenstorrent/tenstorrent!0/tt_serial"
	root := machine(t, lab())
	r := open(t, root)
	before := devices(t, r)
	put(t, root, serial, "/")
	list, err = r.Devices(t.Context())
	if len(list) != 3 || err == nil || !strings.Contains(err.Error(), "tt_serial") {
		t.Errorf("%d devices, err %v", len(list), err)
	}
	put(t, root, serial, wormholeClass["tt_serial"])
	if after := devices(t, r); after[0] != before[0] || after[1] != before[1] {
		t.Error("new Device after a failed discovery")
	}
}
