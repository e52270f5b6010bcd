//go:build linux

package sampler

import (
	"fmt"
	"testing"
)

// BenchmarkLaunch says what a launch costs its process in CPU time, with the probes of a profile. The fake call
// itself takes nanoseconds. The second profile costs as much as one does beside an agent that traces, because
// the interrupt of the probe is there already.
func BenchmarkLaunch(b *testing.B) {
	for _, c := range []struct{ rate, profiles int }{{0, 0}, {1, 1}, {DefaultRate, 1}, {DefaultRate, 2}, {MaxRate, 1}} {
		b.Run(fmt.Sprintf("%d profiles of rate %d", c.profiles, c.rate), func(b *testing.B) {
			w := start(b, build(b, library(b)), "loop")
			launch := func() { w.does(fmt.Sprint(b.N)) }
			for range c.profiles {
				inner := launch
				launch = func() { taken(b, Options{Takes: only(w.pid()), Rate: c.rate}, inner) }
			}
			launch()
			w.in.Close()
			if err := w.cmd.Wait(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(w.cmd.ProcessState.UserTime()+w.cmd.ProcessState.SystemTime())/float64(b.N), "cpu-ns/launch")
		})
	}
}
