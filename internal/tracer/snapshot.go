// Package tracer watches what processes ask of CUDA and NCCL, from the kernel, without
// their help. What it returns are plain values: counts that are exact and cumulative since
// a process was first seen, never samples.
package tracer

import "time"

// Snapshot is what is known at one moment. Everything counted is cumulative since Started,
// or since the process was first seen if that is later.
type Snapshot struct {
	Time      time.Time   `json:"time"`
	Started   time.Time   `json:"started"`
	Processes []Process   `json:"processes"` // by pid; one that ended is there once more, with Ended
	Libraries []Library   `json:"libraries"`
	Untraced  []Untraced  `json:"untraced,omitempty"`
	Losses    Losses      `json:"losses"`
	Events    []Event     `json:"events,omitempty"` // since the snapshot before, bounded
	Groups    []CommGroup `json:"groups,omitempty"`
}

// Process is one process that calls CUDA.
type Process struct {
	PID     uint32    `json:"pid"`
	Name    string    `json:"name"` // of the executable, as comm has it
	Since   time.Time `json:"since"`
	Ended   bool      `json:"ended,omitempty"`
	Older   bool      `json:"older,omitempty"` // it ran before us: names of its first kernels are unknown
	Devices []Device  `json:"devices,omitempty"`
	Ops     []OpStat  `json:"ops,omitempty"`
	Kernels []Kernel  `json:"kernels,omitempty"` // the top ones, see KernelsFolded
	// KernelsFolded is how many kernels are together in the last of Kernels, named other.
	KernelsFolded int    `json:"kernels_folded,omitempty"`
	Comms         []Comm `json:"comms,omitempty"`
	Host          Host   `json:"host"`
	// Measured is what NCCL's Inspector plugin has written down, where a program has it.
	Measured []Measured `json:"measured,omitempty"`
}

// Device is what a process does on one device.
type Device struct {
	Ordinal int    `json:"ordinal"`        // as CUDA numbers it in this process; -1: not known
	UUID    string `json:"uuid,omitempty"` // GPU-... or MIG-...; empty: CUDA has not said it
	Memory  Memory `json:"memory"`
	// Busy is the time from the first launch to the synchronisation that waited for it,
	// overlaps counted once: submitted to synced, an upper bound of what the device worked.
	Busy time.Duration `json:"busy"`
	// Wait is the time in synchronising calls, Bubble the time from the end of one to the
	// next launch of the same thread: the device had nothing new to do.
	Wait   time.Duration `json:"wait"`
	Bubble time.Duration `json:"bubble"`
	// WaitingSince is when the synchronisation began that has not returned; zero: none.
	WaitingSince time.Time `json:"waiting_since,omitzero"`
}

// Memory is what a process has of a device's memory, in bytes.
type Memory struct {
	Reserved    uint64 `json:"reserved"` // from the driver, now
	Peak        uint64 `json:"peak"`     // the most of Reserved
	Allocations uint64 `json:"allocations"`
	Frees       uint64 `json:"frees"`
	// Allocated is what the framework's allocator has given out of it, and Pool what it
	// says to hold; Framework: it was asked.
	Allocated uint64 `json:"allocated,omitempty"`
	Pool      uint64 `json:"pool,omitempty"`
	Framework bool   `json:"framework,omitempty"`
	// Oldest is the age of the oldest allocation that lives.
	Oldest time.Duration `json:"oldest,omitempty"`
	// Growth is bytes a second of Reserved over the last minutes, and Leak that it grows
	// without a plateau while less is freed than allocated.
	Growth float64 `json:"growth,omitempty"`
	Leak   bool    `json:"leak,omitempty"`
}

// Class is what kind of thing an operation does.
type Class string

// The classes.
const (
	Launch Class = "launch"
	Graph  Class = "graph"
	Copy   Class = "copy"
	Set    Class = "memset"
	Alloc  Class = "alloc"
	Free   Class = "free"
	Sync   Class = "sync"
	Load   Class = "load"
	Coll   Class = "collective" // NCCL
)

// OpStat is what is known of one operation on one device.
type OpStat struct {
	Op     string      `json:"op"` // the symbol without its version suffixes: cuLaunchKernelEx
	Class  Class       `json:"class"`
	Device int         `json:"device"`         // ordinal, -1 unknown
	Kind   string      `json:"kind,omitempty"` // of a copy: htod, dtoh, dtod, htoh, peer, default
	Bytes  uint64      `json:"bytes,omitempty"`
	Time   Histogram   `json:"time"`
	Errors []CodeCount `json:"errors,omitempty"` // results that are not 0, by code
}

// CodeCount is how often a code was returned.
type CodeCount struct {
	Code  int32  `json:"code"`
	Count uint64 `json:"count"`
}

// Histogram has buckets whose bounds are powers of the square root of 2, in seconds or
// bytes: bucket i holds values above 2^((i+Offset)/2) up to 2^((i+1+Offset)/2), which is an
// exponential histogram of scale 1 in OpenTelemetry.
type Histogram struct {
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum"` // seconds or bytes
	Offset  int      `json:"offset"`
	Buckets []uint64 `json:"buckets,omitempty"`
}

// Kernel is what is known of one kernel of a process.
type Kernel struct {
	Name   string        `json:"name"`   // demangled; unknown where the name was asked for before us
	Symbol string        `json:"symbol"` // as the program has it, up to 255 bytes
	Device int           `json:"device"`
	Count  uint64        `json:"count"`
	Time   time.Duration `json:"time"` // in the launching call, not on the device
	Grid   [3]uint32     `json:"grid"` // of the last launch
	Block  [3]uint32     `json:"block"`
	Shared uint32        `json:"shared"` // bytes of dynamic shared memory
}

// Comm is one NCCL communicator of a process.
type Comm struct {
	// Key tells it from all others its process has or had, also where ID is not known. It
	// says nothing outside of the process.
	Key    string   `json:"key"`
	ID     string   `json:"id"`   // hash of its unique id, the same in all ranks; of a split, of its parent and colour; empty: it was made before us
	Rank   int      `json:"rank"` // -1: it was made before us
	Size   int      `json:"size"`
	Device int      `json:"device"`
	Ops    []CollOp `json:"ops,omitempty"`
	// Sequence counts the collectives of the communicator, LastEnter is when the last was
	// called and LastOp which it was.
	Sequence  uint64    `json:"sequence"`
	LastEnter time.Time `json:"last_enter,omitzero"`
	LastOp    string    `json:"last_op,omitempty"`
	// BarrierWait is the time in the first synchronisation after a collective.
	BarrierWait Histogram `json:"barrier_wait"`
	Ended       bool      `json:"ended,omitempty"` // destroyed, finalised or aborted
	Aborted     bool      `json:"aborted,omitempty"`
}

// CollOp is one kind of collective of a communicator.
type CollOp struct {
	Op     string    `json:"op"`       // AllReduce, AllGather, Send, ...
	Type   string    `json:"datatype"` // float32, bfloat16, ...
	Reduce string    `json:"reduce_op,omitempty"`
	Peer   int       `json:"peer"` // of Send and Recv; root of Broadcast and Reduce; else -1
	Time   Histogram `json:"time"` // of the call
	Size   Histogram `json:"size"` // bytes: count times the size of the type
	Errors uint64    `json:"errors,omitempty"`
}

// CommGroup is one communicator as the ranks on this machine see it.
type CommGroup struct {
	ID    string     `json:"id"`
	Size  int        `json:"size"`
	Ranks []RankSeen `json:"ranks"` // by rank
	// Behind are the ranks that have not entered what the furthest has, while another has
	// been waiting since Waiting: the ones to look at. Empty: none.
	Behind  []int     `json:"behind,omitempty"`
	Waiting time.Time `json:"waiting,omitzero"`
	// Missing are the ranks, on any machine, that NCCL's own service gets no answer from or
	// has seen begin fewer collectives than others. It is asked only while a rank waits.
	Missing []int `json:"missing,omitempty"`
}

// Measured is what a rank did with one kind of collective by NCCL's own measure, which is
// of the work on the device where NCCL can see it. The plugin writes down a sample of them.
type Measured struct {
	Comm  string        `json:"comm"` // NCCL's hash of the communicator
	Rank  int           `json:"rank"`
	Size  int           `json:"size"`
	Op    string        `json:"op"`
	Count uint64        `json:"count"`
	Bytes uint64        `json:"bytes"` // of the messages
	Time  time.Duration `json:"time"`
	Bus   float64       `json:"bus"` // bytes over the bus, as NCCL's tests count them; by Time it is the bandwidth
}

// RankSeen is how far one rank is.
type RankSeen struct {
	Rank     int       `json:"rank"`
	PID      uint32    `json:"pid"`
	Sequence uint64    `json:"sequence"`
	Last     time.Time `json:"last"`
	LastOp   string    `json:"last_op"`
}

// Host is what the threads that launch work had from the host, cumulative.
type Host struct {
	Threads int `json:"threads"` // that have launched
	// RunQueue is the time they were ready and did not get a CPU, Blocked the time they
	// slept; InCall the same inside traced calls only.
	RunQueue       time.Duration `json:"run_queue"`
	Blocked        time.Duration `json:"blocked"`
	RunQueueInCall time.Duration `json:"run_queue_in_call"`
	BlockedInCall  time.Duration `json:"blocked_in_call"`
	Switches       uint64        `json:"switches"`
	Known          bool          `json:"known"` // false: the kernel does not let us see the scheduler
}

// Library is one file with probes in it.
type Library struct {
	Path    string `json:"path"` // as a process has it mapped
	BuildID string `json:"build_id,omitempty"`
	Kind    string `json:"kind"`   // cuda, nccl, torch
	Probes  int    `json:"probes"` // symbols that are probed
	Slow    int    `json:"slow"`   // of them, those that cost a single step
	Skipped int    `json:"skipped,omitempty"`
	Mode    string `json:"mode"` // session, multi, perf
	Problem string `json:"problem,omitempty"`
}

// Untraced is a process on a GPU that we do not see.
type Untraced struct {
	PID    uint32 `json:"pid"`
	Reason string `json:"reason"` // a word: no_library, permission_denied, attach_failed
	Detail string `json:"detail,omitempty"`
}

// Losses are what is missing from the numbers, cumulative. All 0: nothing is.
type Losses struct {
	Events   uint64            `json:"events"`    // the ring was full
	Limited  uint64            `json:"limited"`   // events beyond the rate limit; counted all the same
	MapFull  map[string]uint64 `json:"map_full"`  // by map; what was folded or not counted
	Missed   uint64            `json:"missed"`    // probes the kernel skipped
	Nested   uint64            `json:"nested"`    // calls deeper than we follow
	NoReturn uint64            `json:"no_return"` // calls whose return was not seen
	Unnamed  uint64            `json:"unnamed"`   // launches of kernels whose name is not known
	Faults   uint64            `json:"faults"`    // arguments that could not be read
}

// Event is one call worth telling apart.
type Event struct {
	Time     time.Time     `json:"time"` // when the call began
	PID      uint32        `json:"pid"`
	TID      uint32        `json:"tid"`
	Type     string        `json:"type"` // call (recorded on request), outlier, error, comm_init, comm_end, exit
	Op       string        `json:"op"`
	Device   int           `json:"device"`
	Duration time.Duration `json:"duration"`
	Code     int32         `json:"code"` // its result
	Bytes    uint64        `json:"bytes,omitempty"`
	Kernel   string        `json:"kernel,omitempty"`
	Stream   uint64        `json:"stream,omitempty"`
	RunQueue time.Duration `json:"run_queue,omitempty"` // during the call
	Blocked  time.Duration `json:"blocked,omitempty"`
	Comm     string        `json:"comm,omitempty"` // Comm.ID
	Rank     int           `json:"rank,omitempty"`
	Size     int           `json:"size,omitempty"`
}
