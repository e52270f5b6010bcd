package anomaly

import "math"

// A loss is a loss only if the same work took longer. The tracer sees launches, not what they
// calculate: a longer sequence, a larger batch or a fuller request has the same launches and
// keeps the device busy for longer. So the time on the device, at the clock it had, is the
// measure of work, and more of it is more work. What can be shown is
//
//   - a cause with facts of its own: a lower clock, a neighbor, a CPU that was not there;
//   - for a loop that repeats the same work, that its launches came later although the device
//     had no more to do and the program did not sleep.
const (
	repeats  = 15   // windows of a loop, at least
	evenly   = 0.03 // deviation of its step, as a fraction of it
	alike    = 0.05 // difference up to which work is the same, as a fraction
	mostly   = 0.5  // part of the lost time that decides
	restless = 0.10 // part of the windows in which a loop may have less to do
	memory   = 2160 // windows over which that part is taken: six hours
	dimmed   = 0.95 // of the usual power: the device waits for others in its kernels
)

// moreWork returns the seconds in which the device calculated more than the same launches
// usually need. Clocks are accounted for: half the clock takes twice the time for the same
// work. If nobody knows how long the process was on the device, it is the time that the host
// waited for it more, unless the clock is known to be lower.
func (j *judge) moreWork() float64 {
	if more, ok := j.moreCycles(); ok {
		return more
	}
	waited, ok := j.phase.excess(j.sample.values, "wait")
	if !ok || j.clock() < 0.97 {
		return 0
	}
	return waited * j.sample.launches
}

// moreCycles returns moreWork if the driver knows the process's time on the device.
func (j *judge) moreCycles() (float64, bool) {
	now, there := j.sample.values["cycles"]
	usual, ok := j.phase.signals["cycles"].median()
	gpu, known := j.phase.signals["gpu"].median()
	if !there || !ok || !known {
		return 0, false
	}
	return max(0, now/usual-1) * gpu * j.sample.launches, true
}

// clock returns the lowest clock of the process's devices as a fraction of the usual one. It is 1
// if it is unknown.
func (j *judge) clock() float64 {
	lowest := 1.0
	for _, on := range j.placed {
		now, there := j.sample.values["clock "+on.uuid]
		usual, ok := j.phase.signals["clock "+on.uuid].median()
		if ok && there {
			lowest = min(lowest, now/usual)
		}
	}
	return lowest
}

// sameInput reports whether nothing shows that the input has another size: bytes copied for a
// launch and the grids of kernels are as usual.
func (j *judge) sameInput() bool {
	s := j.sample
	if usual, ok := j.phase.signals["copied"].median(); ok && math.Abs(s.values["copied"]-usual) > alike*usual+1 {
		return false
	}
	other := 0.0
	for name, blocks := range s.grids {
		if r, ok := j.phase.grids[name]; ok && !r.contains(blocks) {
			other += s.mix[name]
		}
	}
	return other <= alike
}

// loop reports whether the process repeats the same work: its steps were even, it was never
// known to have nothing to do, and this window has the same work per launch. A server has
// neither even steps nor the same work, unless it is saturated with requests of one size.
func (j *judge) loop() bool {
	step := j.phase.signals[Step]
	usual, ok := step.median()
	if !ok || len(step.values) < repeats || step.deviation() > evenly*usual || step.quantile(0.9) > (1+margin)*usual {
		return false
	}
	return j.idle <= restless && distance(j.phase.mix, j.sample.mix) <= alike
}

// sameWork reports whether a launch keeps the device busy for as long as usual, or for as many
// cycles: a device with less to do may lower its clock. Unknown is as usual.
func (j *judge) sameWork() bool {
	own, there := j.sample.values["gpu"]
	// The driver's number is a percentage, with an error of about two.
	tolerance := alike + ratio(0.02*j.sample.seconds, own*j.sample.launches)
	same := !there
	for _, name := range []string{"gpu", "cycles"} {
		usual, ok := j.phase.signals[name].median()
		same = same || !ok || math.Abs(j.sample.values[name]-usual) <= tolerance*usual
	}
	return same
}

// slept returns for how many seconds more than usual the process slept outside of calls, by
// choice. While one thread launches, the others sleep: if the step takes longer, so do they.
func (j *judge) slept() (float64, bool) {
	more, ok := j.phase.excess(j.sample.values, "sleep")
	longer, _ := j.phase.excess(j.sample.values, Step)
	return max(0, more-j.sleepers()*longer) * j.sample.launches, ok
}

// sleepers returns the number of launching threads that sleep while another one launches.
func (j *judge) sleepers() float64 {
	asleep, _ := j.phase.signals["sleep"].median()
	step, _ := j.phase.signals[Step].median()
	return min(max(0, float64(j.sample.threads-1)), math.Floor(ratio(asleep, step)+0.15))
}

// rests reports whether the process was asleep by choice for more than a tenth of the window.
func (j *judge) rests() bool {
	asleep, ok := j.sample.sleep.Get()
	_, known := j.phase.signals["sleep"].median()
	return ok && known && asleep/j.sample.seconds-j.sleepers() > material
}

// lateInput: a loop sleeps before its next launch, although it used to find its input there.
func (j *judge) lateInput() (claim, bool) {
	slept, ok := j.slept()
	asleep, _ := j.phase.signals["sleep"].median()
	step, _ := j.phase.signals[Step].median()
	if !ok || ratio(asleep, step)-j.sleepers() > evenly*2 || !j.loop() || !j.sameInput() || !j.sameWork() {
		return claim{}, false
	}
	return claim{LateInput, slept, "the launching threads slept " + seconds(slept) + " more between calls, with nothing on the host to wait for"}, true
}

// span is the range of a number in quiet windows.
type span struct{ low, high float64 }

func (r span) contains(v float64) bool { return v >= r.low*(1-alike) && v <= r.high*(1+alike) }
