// Package anomaly detects that a process became slower than it used to be, by how much, and
// which concurrent facts explain which part of the lost time.
//
// The package is pure: windows go in, anomalies come out, and the only clock is that of the
// windows. Inputs are the tracer's snapshots, the driver's device facts and the kernel's
// process facts; any of them may be absent. docs/anomalies.md describes the rules.
package anomaly

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Window is the state at the end of an interval, normally 10 seconds. Counts are cumulative;
// the Detector remembers the previous window.
type Window struct {
	Snapshot tracer.Snapshot       `json:"snapshot"`
	Devices  []DeviceFacts         `json:"devices,omitempty"`
	Hosts    map[uint32]host.Facts `json:"hosts,omitempty"` // by pid
}

// DeviceFacts is what the driver reports about one device or partition. A partition has the
// sensors of its device. Absent is not 0.
type DeviceFacts struct {
	UUID       string         `json:"uuid"` // CUDA's UUID: GPU-... or MIG-...
	SMClock    optional.Float `json:"sm_clock,omitzero"`
	SMClockMax optional.Float `json:"sm_clock_max,omitzero"` // both in hertz
	Power      optional.Float `json:"power,omitzero"`
	PowerLimit optional.Float `json:"power_limit,omitzero"` // both in watts; the enforced limit
	// Utilization is the fraction of time in which any process's kernels ran.
	Utilization optional.Float `json:"utilization,omitzero"`
	// The fraction of the window, 0 to 1, in which clocks were reduced by a software power cap,
	// by temperature, or by the board itself.
	PowerCapped      optional.Float  `json:"power_capped,omitzero"`
	ThermalThrottled optional.Float  `json:"thermal_throttled,omitzero"`
	HWSlowdown       optional.Float  `json:"hw_slowdown,omitzero"`
	Processes        []DeviceProcess `json:"processes,omitempty"`
}

// DeviceProcess is one process on a device.
type DeviceProcess struct {
	PID         uint32         `json:"pid"`
	Name        string         `json:"name"`
	Workload    string         `json:"workload,omitempty"`   // human-readable, such as "team x" or a pod name
	Utilization optional.Float `json:"utilization,omitzero"` // fraction of time in which its kernels ran
}

// Cause is a class of reasons for lost time.
type Cause string

// The causes. Communication is waiting for other ranks; Copy is copies of the process itself;
// LateInput is a loop that sleeps until its loader has the next batch.
const (
	Throttling    Cause = "throttling"
	PowerCap      Cause = "power_cap"
	Neighbour     Cause = "neighbour"
	HostDelay     Cause = "host_delay"
	Copy          Cause = "copy"
	LateInput     Cause = "late_input"
	Communication Cause = "communication"
	Unexplained   Cause = "unexplained"
)

// Causes lists all causes.
var Causes = []Cause{Throttling, PowerCap, Neighbour, HostDelay, Copy, LateInput, Communication, Unexplained}

// words are the human-readable names of the causes.
var words = map[Cause]string{
	Throttling: "throttling", PowerCap: "power cap", Neighbour: "a neighbor on the GPU", HostDelay: "host delay",
	Copy: "copies", LateInput: "late input", Communication: "communication", Unexplained: "unexplained",
}

// State is the state of an anomaly.
type State string

// The states. Each anomaly is reported as Open once, and later as one of the others.
const (
	Open    State = "open"
	Ended   State = "ended"   // back to the old speed, or the process or its work ended
	Adopted State = "adopted" // lasted so long that it is the new normal
)

// What is slower, if not a single operation.
const (
	Step       = "step"       // the time from launch to launch
	Sync       = "sync"       // a synchronization that does not return
	Collective = "collective" // other ranks do not arrive
)

// Anomaly reports that one process became slower.
type Anomaly struct {
	State    State     `json:"state"`
	Time     time.Time `json:"time"`  // time of this state
	Since    time.Time `json:"since"` // start of the first slow window
	PID      uint32    `json:"pid"`
	Process  string    `json:"process"` // name of the executable
	Workload string    `json:"workload,omitempty"`
	Device   string    `json:"device,omitempty"` // UUID of the device used most
	Op       string    `json:"op"`               // step, sync, collective, or an operation: cuMemcpyHtoD_v2
	// Baseline and Observed are seconds per Op, before and now.
	Baseline float64 `json:"baseline"`
	Observed float64 `json:"observed"`
	// Lost is the time lost out of Over, the duration of the slow windows so far.
	Lost time.Duration `json:"lost"`
	Over time.Duration `json:"over"`
	// Explanations are the causes, largest first. Their shares of the lost time and
	// Unexplained add up to 1.
	Explanations []Explanation `json:"explanations,omitempty"`
	Unexplained  float64       `json:"unexplained"`
	// Changes are the parts of the process that take longer, largest first.
	Changes []Change `json:"changes,omitempty"`
}

// Explanation is the share of one cause in the lost time.
type Explanation struct {
	Cause   Cause   `json:"cause"`
	Share   float64 `json:"share"`
	Seconds float64 `json:"seconds"`
	Fact    string  `json:"fact"` // with numbers, before and now
}

// Change is an operation, or the bubble between operations, that takes longer than before.
type Change struct {
	Op       string  `json:"op"`
	Baseline float64 `json:"baseline"` // seconds per call, or per launch for the bubble
	Observed float64 `json:"observed"`
	Seconds  float64 `json:"seconds"` // excess in the last window
}

// Cause returns the largest cause, which may be Unexplained.
func (a Anomaly) Cause() Cause {
	if len(a.Explanations) == 0 || a.Unexplained > a.Explanations[0].Share {
		return Unexplained
	}
	return a.Explanations[0].Cause
}

// Text returns the anomaly as one sentence.
func (a Anomaly) Text() string {
	var b strings.Builder
	since, now := a.Since.UTC().Format(time.TimeOnly), a.Time.UTC().Format(time.TimeOnly)
	switch a.State {
	case Ended:
		fmt.Fprintf(&b, "%s %s from %s to %s", a.who(), a.what(true), since, now)
	case Adopted:
		fmt.Fprintf(&b, "%s %s since %s, which is the new normal", a.who(), a.what(false), since)
	default:
		fmt.Fprintf(&b, "%s %s since %s", a.who(), a.what(false), since)
	}
	fmt.Fprintf(&b, "; %s of %s lost: ", seconds(a.Lost.Seconds()), seconds(a.Over.Seconds()))
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
		return verb("does ", "did ") + percent(1-ratio(a.Baseline, a.Observed)) + " fewer launches per second"
	case Sync:
		return verb("waits in a synchronization that does not return", "waited in a synchronization that did not return")
	case Collective:
		return verb("waits for ranks that do not arrive", "waited for ranks that did not arrive")
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

// seconds formats a duration with a suitable unit.
func seconds(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.3g us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.1f s", s)
}
