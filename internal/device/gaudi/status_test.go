//go:build linux

package gaudi

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// What the driver reports for an accelerator that does not work. Its firmware is not
// queried meanwhile, because a call would wait for the end of the reset.
func TestStatus(t *testing.T) {
	root, lib := machine(t, server()), fake(t, script)
	f := func(word string, code float64, asked bool) {
		t.Helper()
		put(t, root, busDir+first+"/hard_reset_cnt", "2")
		r, _ := open(t, root, lib)
		d := devices(t, r)[0]
		before := read(t, d, device.Static)
		put(t, root, busDir+first+"/status", word)
		put(t, root, busDir+first+"/hard_reset_cnt", "3")
		for _, tier := range []device.Tier{device.Fast, device.Slow, device.Static} {
			s := read(t, d, tier)
			if s.Status != device.Of(code) || s.Utilization.Compute.OK() != asked || (s.Powers != nil) != asked || (s.Clocks != nil) != asked || (s.Temperatures != nil) != asked {
				t.Errorf("%s: %+v", word, s)
			}
			if cmp.Diff(before.Aliases, s.Aliases) != "" || s.Info != before.Info || len(s.Processes) != 2 {
				t.Errorf("%s: identity or processes are missing: %+v", word, s)
			}
			if tier >= device.Slow && s.Resets[0].Count != device.Of(3) {
				t.Errorf("%s: resets %v", word, s.Resets)
			}
		}
		if after := devices(t, r); len(after) != 3 || after[0] != d {
			t.Errorf("%s: new Device after a discovery", word)
		}
		put(t, root, busDir+first+"/status", "Operational")
		want := before
		want.Resets = []device.ErrorCount{{Type: "hard", Count: device.Of(3)}, {Type: "soft", Count: device.Of(0)}}
		if diff := cmp.Diff(want, read(t, d, device.Fast)); diff != "" {
			t.Errorf("%s: after it (-want +got):\n%s", word, diff)
		}
	}
	f("In reset", 1, false)
	f("Disabled", 2, false)
	f("Malfunction", 2, false)
	f("In device creation", 4, true)
	f("In reset after device release", 5, false)
	f("On holiday", 99, false)
}

// The driver rejects the accelerator until it is reset.
func TestNeedsReset(t *testing.T) {
	root := machine(t, server())
	r, _ := open(t, root, fake(t, script))
	list := devices(t, r)
	put(t, root, busDir+first+"/status", "Needs reset")
	s, err := list[0].Read(t.Context(), device.Slow)
	if diff := cmp.Diff(device.Sample{ID: list[0].ID()}, s); !errors.Is(err, device.ErrNeedsReset) || diff != "" {
		t.Errorf("err %v, sample %s", err, diff)
	}
	read(t, list[1], device.Slow)
	// The accelerator is listed from the start, under its name from sysfs.
	r, _ = open(t, root, fake(t, script))
	if list := devices(t, r); len(list) != 3 || list[0].ID().UUID != "gaudi-9b0c-0000:33:00.0" {
		t.Errorf("first seen when it needs a reset: %v", list[0].ID())
	}
}

// An accelerator first seen during a reset would get a temporary identity: it is omitted
// until the reset ends, and the others are not.
func TestFirstSeenInReset(t *testing.T) {
	root := machine(t, server())
	put(t, root, busDir+first+"/status", "In reset")
	r, _ := open(t, root, fake(t, script))
	list, err := r.Devices(t.Context())
	if len(list) != 2 || err == nil || !strings.Contains(err.Error(), "accel0 is being reset") {
		t.Errorf("%d devices, err %v", len(list), err)
	}
	put(t, root, busDir+first+"/status", "Operational")
	after := devices(t, r)
	if len(after) != 3 || after[1] != list[0] || after[0].ID().UUID != "01P4-HL3090A0-18-U4V193-22-07-01" {
		t.Errorf("after the reset: %v", after)
	}
}
