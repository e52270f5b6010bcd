// Package anomaly says when a process got slower than it used to be, by how much, and which
// facts of the same time explain what part of the time it lost. It is pure: windows go in,
// anomalies come out, and the only clock is that of the windows. docs/anomalies.md has the
// rules in words.
package anomaly

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Window is what is known at the end of an interval, 10 seconds normally. What is counted
// in it is cumulative; the Detector remembers the window before.
type Window struct {
	Snapshot tracer.Snapshot       `json:"snapshot"`
	Devices  []DeviceFacts         `json:"devices,omitempty"`
	Hosts    map[uint32]host.Facts `json:"hosts,omitempty"` // by pid
}

// DeviceFacts is what the driver says of one device or partition. A partition has the
// sensors of its device. Absent is not 0.
type DeviceFacts struct {
	UUID       string         `json:"uuid"` // as CUDA has it: GPU-... or MIG-...
	SMClock    optional.Float `json:"sm_clock,omitzero"`
	SMClockMax optional.Float `json:"sm_clock_max,omitzero"` // hertz, both
	Power      optional.Float `json:"power,omitzero"`
	PowerLimit optional.Float `json:"power_limit,omitzero"` // watts, both; the limit in force
	// Utilization is the part of the time that kernels of anybody ran.
	Utilization optional.Float `json:"utilization,omitzero"`
	// The part of the window, 0 to 1, in which clocks were held down: by a cap of power in
	// software, by heat, and by the board itself.
	PowerCapped      optional.Float  `json:"power_capped,omitzero"`
	ThermalThrottled optional.Float  `json:"thermal_throttled,omitzero"`
	HWSlowdown       optional.Float  `json:"hw_slowdown,omitzero"`
	Processes        []DeviceProcess `json:"processes,omitempty"`
}

// DeviceProcess is one process on a device.
type DeviceProcess struct {
	PID         uint32         `json:"pid"`
	Name        string         `json:"name"`
	Workload    string         `json:"workload,omitempty"`   // for people, as "team x" or the name of a pod
	Utilization optional.Float `json:"utilization,omitzero"` // part of the time that its kernels ran
}

// Cause is a class of reasons for which time is lost.
type Cause string

// The causes. Communication is waiting for other ranks, Copy copies of the process itself.
const (
	Throttling    Cause = "throttling"
	PowerCap      Cause = "power_cap"
	Neighbour     Cause = "neighbour"
	HostDelay     Cause = "host_delay"
	Copy          Cause = "copy"
	Communication Cause = "communication"
	Unexplained   Cause = "unexplained"
)

// Causes are all of them.
var Causes = []Cause{Throttling, PowerCap, Neighbour, HostDelay, Copy, Communication, Unexplained}

// words are what people call the causes.
var words = map[Cause]string{
	Throttling: "throttling", PowerCap: "power cap", Neighbour: "a neighbour on the GPU", HostDelay: "host delay",
	Copy: "copies", Communication: "communication", Unexplained: "unexplained",
}

// State is where an anomaly is in its life.
type State string

// The states. Of each anomaly there is one that is Open, and later one of the others.
const (
	Open    State = "open"
	Ended   State = "ended"   // it is as fast as it was, or the process or its work ended
	Adopted State = "adopted" // it stayed so long that it is what is normal now
)

// The names of what is slower, beside those of operations.
const (
	Step       = "step"       // the time from launch to launch
	Sync       = "sync"       // one synchronisation that does not return
	Collective = "collective" // other ranks do not come
)

// Anomaly is that one process got slower.
type Anomaly struct {
	State    State     `json:"state"`
	Time     time.Time `json:"time"`  // of this state
	Since    time.Time `json:"since"` // when the first slow window began
	PID      uint32    `json:"pid"`
	Process  string    `json:"process"` // name of the executable
	Workload string    `json:"workload,omitempty"`
	Device   string    `json:"device,omitempty"` // UUID of the one it uses most
	Op       string    `json:"op"`               // step, sync, collective, or an operation: cuMemcpyHtoD_v2
	// Baseline and Observed are seconds for one Op, as it was and as it is.
	Baseline float64 `json:"baseline"`
	Observed float64 `json:"observed"`
	// Lost is the time that was lost of Over, the slow windows so far.
	Lost time.Duration `json:"lost"`
	Over time.Duration `json:"over"`
	// Explanations are the causes, the largest first. Their shares of the lost time and
	// Unexplained are 1 together.
	Explanations []Explanation `json:"explanations,omitempty"`
	Unexplained  float64       `json:"unexplained"`
	// Changes are where in the process the time went, the largest first.
	Changes []Change `json:"changes,omitempty"`
}

// Explanation is what a cause has of the lost time.
type Explanation struct {
	Cause   Cause   `json:"cause"`
	Share   float64 `json:"share"`
	Seconds float64 `json:"seconds"`
	Fact    string  `json:"fact"` // with numbers, as it was and as it is
}

// Change is an operation, or the bubble between them, that takes longer than it did.
type Change struct {
	Op       string  `json:"op"`
	Baseline float64 `json:"baseline"` // seconds a call, or a launch for the bubble
	Observed float64 `json:"observed"`
	Seconds  float64 `json:"seconds"` // more than it would have taken, in the last window
}

// Cause returns the largest cause, Unexplained if that is.
func (a Anomaly) Cause() Cause {
	if len(a.Explanations) == 0 || a.Unexplained > a.Explanations[0].Share {
		return Unexplained
	}
	return a.Explanations[0].Cause
}

// Text returns the anomaly in words, in one sentence.
func (a Anomaly) Text() string {
	var b strings.Builder
	since, now := a.Since.UTC().Format(time.TimeOnly), a.Time.UTC().Format(time.TimeOnly)
	switch a.State {
	case Ended:
		fmt.Fprintf(&b, "%s %s from %s to %s", a.who(), a.what(true), since, now)
	case Adopted:
		fmt.Fprintf(&b, "%s %s since %s, which is taken as normal from now on", a.who(), a.what(false), since)
	default:
		fmt.Fprintf(&b, "%s %s since %s", a.who(), a.what(false), since)
	}
	fmt.Fprintf(&b, "; it lost %s of %s: ", seconds(a.Lost.Seconds()), seconds(a.Over.Seconds()))
	var parts []string
	for _, e := range a.Explanations {
		if e.Share < 0.005 {
			continue
		}
		of := ""
		if len(parts) == 0 {
			of = " of the lost time"
		}
		parts = append(parts, fmt.Sprintf("%s%s is %s (%s)", percent(e.Share), of, words[e.Cause], e.Fact))
	}
	switch {
	case len(parts) == 0:
		parts = append(parts, "unexplained")
	case a.Unexplained >= 0.005:
		parts = append(parts, percent(a.Unexplained)+" unexplained")
	}
	b.WriteString(strings.Join(parts, ", "))
	return b.String()
}

func (a Anomaly) who() string {
	if a.Workload == "" {
		return fmt.Sprintf("%s (pid %d)", a.Process, a.PID)
	}
	return fmt.Sprintf("%s (pid %d, %s)", a.Process, a.PID, a.Workload)
}

func (a Anomaly) what(over bool) string {
	verb := func(now, then string) string {
		if over {
			return then
		}
		return now
	}
	switch a.Op {
	case Step:
		return verb("does ", "did ") + percent(1-ratio(a.Baseline, a.Observed)) + " fewer launches a second"
	case Sync:
		return verb("waits in one synchronisation that does not return", "waited in a synchronization that did not return")
	case Collective:
		return verb("waits for ranks that do not come", "waited for missing ranks")
	}
	return fmt.Sprintf("%s %s instead of %s for %s", verb("takes", "took"), seconds(a.Observed), seconds(a.Baseline), a.Op)
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// seconds writes a time with the unit that people use for it.
func seconds(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.3g us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.1f s", s)
}
