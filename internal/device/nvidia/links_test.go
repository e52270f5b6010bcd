//go:build linux

package nvidia

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// NVLink 5 has no totals and counts bytes. A missing counter must not affect the others.
func TestNVLink5(t *testing.T) {
	h := nvmltest.New(t, `
gpu 0 arch 10
gpu 0 nvlinks 2
field 0 202/0 100
field 0 202/1 200
field 0 204/0 10
field 0 204/1 20
field 0 206/0 unsupported
field 0 206/1 unsupported
field 0 208/0 3
field 0 208/1 4
field 0 215/0 1
`)
	s, err := devices(t, openFake(t, h, newClock()))[0].Read(t.Context(), device.Slow)
	if err != nil {
		t.Fatal(err)
	}
	n := s.Interconnects[len(s.Interconnects)-1]
	if n.Type != "nvlink" || n.TX != device.Of(300) || n.RX != device.Of(30) {
		t.Errorf("%s moved %v out and %v in", n.Type, n.TX, n.RX)
	}
	got := map[string]device.Value{}
	for _, e := range n.Errors {
		got[e.Type] = e.Count
	}
	if got["receive"] != device.Of(7) || got["recovery"] != device.Of(1) || got["malformed_packet"].OK() {
		t.Errorf("errors: %v", got)
	}
}

// Catches totals over links that fall when one link is silent, or when the driver does not
// answer for its own total: increase() would count all links once more.
func TestSilentNVLink(t *testing.T) {
	type total struct{ TX, RX, Errors device.Value }
	f := func(name, start string, steps ...string) []total {
		t.Helper()
		h := nvmltest.New(t, start)
		d := devices(t, openFake(t, h, newClock()))[0]
		var got []total
		for _, script := range append([]string{start}, steps...) {
			h.Script(t, script)
			s, err := d.Read(t.Context(), device.Slow)
			if err != nil {
				t.Fatal(name, err)
			}
			n := s.Interconnects[len(s.Interconnects)-1]
			x := total{TX: n.TX, RX: n.RX}
			for _, e := range n.Errors {
				if e.Type == "receive" {
					x.Errors = e.Count
				}
			}
			got = append(got, x)
		}
		return got
	}
	of, no := device.Of, device.Value{}
	const five = "gpu 0 arch 10\ngpu 0 nvlinks 2\nfield 0 202/0 18e12\nfield 0 202/1 200\nfield 0 204/0 10\nfield 0 204/1 20\nfield 0 208/0 3\nfield 0 208/1 4\n"
	got := f("NVLink 5", five, five+"field 0 202/0 untouched\nfield 0 208/0 untouched\nfield 0 204/1 25\n", five+"field 0 165/0 untouched\n", five+"field 0 202/0 18000000000007\n")
	want := []total{{of(18e12 + 200), of(30), of(7)}, {of(18e12 + 200), of(35), of(7)}, {of(18e12 + 200), of(30), of(7)}, {of(18e12 + 207), of(30), of(7)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("NVLink 5 (-want +got):\n%s", diff)
	}
	const four = "gpu 0 nvlinks 2\nfield 0 138/0 1\nfield 0 138/1 2\nfield 0 138/4294967295 4\nfield 0 139/4294967295 5\n"
	got = f("NVLink 4", four, four+"field 0 138/4294967295 untouched\nfield 0 139/4294967295 untouched\n", four)
	want = []total{{TX: of(4 * kibi), RX: of(5 * kibi)}, {TX: no, RX: no}, {TX: of(4 * kibi), RX: of(5 * kibi)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("NVLink 4 (-want +got):\n%s", diff)
	}
}
