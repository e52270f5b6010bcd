// Package profile is a profile of what launches kernels: stacks from the outermost Python line to the
// kernel, with calls, estimated time on the device, and the time that threads waited. It holds values only;
// package sampler takes a profile of this machine, and package encode writes it.
package profile

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Kinds of frames.
const (
	Python = "python"
	Native = "native"
	Kernel = "kernel" // on the device; always the innermost
	Wait   = "wait"   // a call that waits for the device; always the innermost
	Note   = "note"   // not a frame: says what is missing here
)

// Notes that stand where frames are missing.
const (
	NotSampled   = "[not sampled]"              // launches of a kernel of which no sample was taken
	NoPython     = "[thread without Python]"    // none of Python's threads
	Cut          = "[outer frames cut]"         // more frames than fit
	Broken       = "[Python frames unreadable]" // changed while they were read, or hostile
	Unresolved   = "[gone before it was read]"  // the process exited, or the function was freed
	NativeCut    = "[native frames unknown]"    // code without frame pointers
	Backward     = "[backward pass]"            // above it is who called it, below a thread of its own
	StackLost    = "[stack not kept]"           // the kernel's map of stacks was full
	UnknownImage = "[unknown code]"             // outside of all mapped files
)

// Frame is one function.
type Frame struct {
	Kind     string
	Function string
	File     string // source of a Python function; library of a native one
	Line     int    // 0: unknown
}

// Sample is what was observed in one stack of one process.
type Sample struct {
	PID    uint32
	Frames []Frame // the outermost first

	Samples uint64
	Calls   uint64        // launches or waits; adds up to the counted launches of each kernel
	GPU     time.Duration // estimated time on the device; see Process.Estimated
	Wait    time.Duration
	Threads uint64 // on the device, of these launches; the basis of the estimate
}

// Process is one that was profiled.
type Process struct {
	PID      uint32
	Name     string
	Python   string // such as 3.11; empty: none, or not understood
	Problem  string // why frames of Python or launches are missing
	Launches uint64 // counted, not sampled
	Samples  uint64
	// Busy is how long the process had work on its devices, at most: from a launch to the synchronization
	// behind it. It is divided among the kernels. 0: unknown.
	Busy time.Duration
	// Workload has the attributes of the workload, such as k8s.pod.name.
	Workload map[string]string
}

// Losses say what is missing.
type Losses struct {
	Counts, Samples, Stacks, Threads uint64
}

// Profile is one profile.
type Profile struct {
	Start     time.Time
	Duration  time.Duration
	Rate      int // samples a second of a thread that launches
	Host      string
	Processes []Process
	Samples   []Sample
	Losses    Losses
}

// Launches returns the number of launches of all processes.
func (p *Profile) Launches() (n uint64) {
	for _, x := range p.Processes {
		n += x.Launches
	}
	return n
}

// Sort brings samples and processes into an order that depends on their contents only, and merges samples
// of equal stacks.
func (p *Profile) Sort() {
	slices.SortFunc(p.Processes, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	slices.SortStableFunc(p.Samples, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), slices.CompareFunc(a.Frames, b.Frames, compare))
	})
	out := p.Samples[:0]
	for _, s := range p.Samples {
		if n := len(out); n > 0 && out[n-1].PID == s.PID && slices.Equal(out[n-1].Frames, s.Frames) {
			out[n-1].Samples += s.Samples
			out[n-1].Calls += s.Calls
			out[n-1].GPU += s.GPU
			out[n-1].Wait += s.Wait
			out[n-1].Threads += s.Threads
			continue
		}
		out = append(out, s)
	}
	p.Samples = out
}

func compare(a, b Frame) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Function, b.Function), strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
}

// leaf returns the innermost frame: a kernel or a wait.
func (s *Sample) leaf() Frame {
	if len(s.Frames) == 0 {
		return Frame{}
	}
	return s.Frames[len(s.Frames)-1]
}
