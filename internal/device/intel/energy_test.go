//go:build linux

package intel

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// step is one update of a meter: seconds since the last one, what the channels read, and
// the expected result.
type step struct {
	after         float64
	read          []device.Value
	energy, watts device.Value
}

func TestMeter(t *testing.T) {
	none := device.Value{}
	v := func(list ...float64) []device.Value {
		var out []device.Value
		for _, x := range list {
			out = append(out, device.Of(x))
		}
		return out
	}
	of := device.Of
	f := func(what string, steps ...step) {
		t.Helper()
		var m meter
		now := time.Unix(1000, 0)
		for i, s := range steps {
			now = now.Add(time.Duration(s.after * float64(time.Second)))
			if s.after < 0 { // the GPU slept
				m.pause()
			}
			energy, watts := m.update(now, s.read)
			if diff := cmp.Diff([]device.Value{s.energy, s.watts}, []device.Value{energy, watts}); diff != "" {
				t.Errorf("%s, step %d (-want +got):\n%s", what, i, diff)
			}
		}
	}
	f("no channel", step{0, nil, none, none}, step{10, nil, none, none})
	f("the card before the package",
		step{0, v(100, 50), of(100), none},
		step{10, v(300, 70), of(300), of(20)},
		step{5, v(350, 90), of(350), of(10)})
	f("the card at 0: the package, for good",
		step{0, v(0, 50), of(50), none},
		step{10, v(0, 70), of(70), of(2)},
		step{10, v(5, 90), of(90), of(2)})
	f("both at 0 after the driver was loaded: whichever moves first",
		step{0, v(0, 0), none, none},
		step{10, v(0, 30), of(30), none},
		step{10, v(0, 60), of(60), of(3)})
	f("the only channel at 0 is 0",
		step{0, v(0), of(0), none},
		step{10, v(40), of(40), of(4)})
	f("a counter that stands still is not 0 W",
		step{0, v(100), of(100), none},
		step{10, v(100), of(100), none},
		step{10, v(120), of(120), of(2)})
	f("the card stops: the package goes on from there, without a jump",
		step{0, v(1000, 50), of(1000), none},
		step{4, v(1000, 90), of(1000), none}, // perhaps only refreshed slowly
		step{6, v(1000, 150), of(1000), none},
		step{10, v(1000, 250), of(1100), of(10)},
		step{10, v(1000, 350), of(1200), of(10)})
	f("a reset begins at what the driver says, the second time",
		step{0, v(500), of(500), none},
		step{10, v(20), none, none},
		step{10, v(50), of(50), none},
		step{10, v(80), of(80), of(3)})
	f("a single 0 is neither a reset nor followed by megawatts",
		step{0, v(5e8), of(5e8), none},
		step{10, v(0), none, none},
		step{10, v(5e8 + 200), of(5e8 + 200), none},
		step{10, v(5e8 + 300), of(5e8 + 300), of(10)})
	f("what cannot be read is absent, and the power after it unknown",
		step{0, v(500), of(500), none},
		step{10, []device.Value{none}, none, none},
		step{10, v(700), of(700), none},
		step{10, v(800), of(800), of(10)})
	f("the clock stood or went back",
		step{0, v(500), of(500), none},
		step{0, v(510), of(510), none},
		step{-5, v(520), of(520), none},
		step{1, v(530), of(530), of(10)})
}

// Whatever the channels do, the counter decreases only if the channel in use did, and power
// is never negative.
func FuzzMeter(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 40, 50, 60, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m meter
		now := time.Unix(0, 0)
		var last device.Value
		var prev []device.Value
		for i := 0; i+2 < len(b); i += 3 {
			now = now.Add(time.Duration(b[i]) * 100 * time.Millisecond)
			read := []device.Value{device.Of(float64(b[i+1])), device.Of(float64(b[i+2]))}
			using := m.using
			energy, watts := m.update(now, read)
			if w, _ := watts.Get(); w < 0 {
				t.Fatalf("%v W", w)
			}
			e, ok := energy.Get()
			before, had := last.Get()
			if ok && had && e < before {
				now, _ := read[using].Get()
				if was, _ := prev[using].Get(); now >= was {
					t.Fatalf("the counter fell from %v to %v", before, e)
				}
			}
			last, prev = energy, read
		}
	})
}
