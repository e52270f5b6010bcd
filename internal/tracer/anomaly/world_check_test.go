package anomaly

import (
	"testing"
	"time"
)

// What a world counts could be real: counts never go back, work goes on, a device is not busy and
// idle at once, and threads do not sleep for longer than they exist.
func TestWorlds(t *testing.T) {
	for _, s := range shapes {
		w := newWorld(1, s.begin)
		var launches uint64
		windows := 0
		for w.now < 1200 {
			w.turn(func(x Window) {
				windows++
				p := &x.Snapshot.Processes[0]
				passed := x.Snapshot.Time.Sub(noon)
				if passed != time.Duration(windows)*window {
					t.Fatalf("%s: window %d ends after %v", s.name, windows, passed)
				}
				if n := p.Ops[0].Time.Count; n < launches {
					t.Fatalf("%s: %d launches after %d", s.name, n, launches)
				} else {
					launches = n
				}
				rounding := passed / 100
				if d := p.Devices[0]; d.Busy+d.Bubble > passed+rounding || d.Wait > d.Busy+rounding {
					t.Errorf("%s: after %v: %+v", s.name, passed, d)
				}
				if h := p.Host; h.Blocked+h.RunQueue > time.Duration(h.Threads)*passed+rounding || h.BlockedInCall > h.Blocked {
					t.Errorf("%s: after %v: %+v", s.name, passed, h)
				}
			})
		}
		if launches < 1000 {
			t.Errorf("%s: %d launches in 20 minutes", s.name, launches)
		}
	}
}
