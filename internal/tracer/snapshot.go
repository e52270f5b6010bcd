// Package tracer defines what is traced of processes that use CUDA and NCCL, and the values
// that result: Ops lists the traced functions, Snapshot holds the counts.
//
// Counts come from eBPF programs on the libraries' functions, without any cooperation of
// the processes. They are exact and cumulative since a process was first seen. Only the
// durations of launches are sampled, where measuring all of them would slow a process down.
// This package has plain values only; package live collects them, package probe
// talks to the kernel (Linux 5.15, CAP_BPF, CAP_PERFMON), and package anomaly interprets
// them. Times are those of the calls on the host: kernel execution times on the device are
// not measured.
package tracer

import (
	"errors"
	"time"
)

// ErrAsleep is the error of a tracer that was stopped for so long that its probes went to sleep. It has to be opened
// again.
var ErrAsleep = errors.New("the probes are asleep: nobody has renewed their lease for 10 minutes")

// Snapshot is the state at one moment. All counts are cumulative since Started, or since the
// process was first seen if that is later.
type Snapshot struct {
	Time      time.Time   `json:"time"`
	Started   time.Time   `json:"started"`
	Processes []Process   `json:"processes"` // by pid; a process that exited is listed once more, with Ended
	Libraries []Library   `json:"libraries"`
	Untraced  []Untraced  `json:"untraced,omitempty"`
	Losses    Losses      `json:"losses"`
	Events    []Event     `json:"events,omitempty"` // since the previous snapshot, bounded
	Groups    []CommGroup `json:"groups,omitempty"`
}

// Process is one process that uses CUDA.
type Process struct {
	PID     uint32    `json:"pid"`
	Name    string    `json:"name"` // comm of the process
	Since   time.Time `json:"since"`
	Ended   bool      `json:"ended,omitempty"`
	Older   bool      `json:"older,omitempty"` // started before tracing: names of its first kernels are unknown
	Devices []Device  `json:"devices,omitempty"`
	Ops     []OpStat  `json:"ops,omitempty"`
	Kernels []Kernel  `json:"kernels,omitempty"` // the top ones; see KernelsFolded
	// KernelsFolded is the number of kernels summed up in the last of Kernels, named other.
	KernelsFolded int `json:"kernels_folded,omitempty"`
	// Launches has the launches of all kernels by name, over all devices, at most MaxLaunches of them.
	Launches map[string]uint64 `json:"-"`
	Comms    []Comm            `json:"comms,omitempty"`
	Host     Host              `json:"host"`
	// Measured holds the records of NCCL's Inspector plugin, if the program has loaded it.
	Measured []Measured `json:"measured,omitempty"`
}

// MaxLaunches bounds Process.Launches.
const MaxLaunches = 2048

// Device is the activity of a process on one device.
type Device struct {
	Ordinal int    `json:"ordinal"`        // CUDA's number in this process; -1 if unknown
	UUID    string `json:"uuid,omitempty"` // GPU-... or MIG-...; empty if unknown
	Memory  Memory `json:"memory"`
	// Busy is the time from the first launch to the synchronization that waited for it, with
	// overlaps counted once: submitted to synced, an upper bound of the device's busy time.
	Busy time.Duration `json:"busy"`
	// Wait is the time in synchronizing calls, and the time in which copies waited for earlier work.
	// Bubble is the time from the end of such a wait to the next launch of the same thread: the
	// device had no new work.
	Wait   time.Duration `json:"wait"`
	Bubble time.Duration `json:"bubble"`
	// WaitingSince is when the pending synchronization began; zero if there is none.
	WaitingSince time.Time `json:"waiting_since,omitzero"`
}

// Memory is a process's use of a device's memory, in bytes.
type Memory struct {
	Reserved    uint64 `json:"reserved"` // currently allocated from the driver
	Peak        uint64 `json:"peak"`     // high-water mark of Reserved
	Allocations uint64 `json:"allocations"`
	Frees       uint64 `json:"frees"`
	// Allocated is what the framework's allocator has handed out, Pool what it holds.
	// Framework is set if the allocator reported, which it did at Reported.
	Allocated uint64    `json:"allocated,omitempty"`
	Pool      uint64    `json:"pool,omitempty"`
	Framework bool      `json:"framework,omitempty"`
	Reported  time.Time `json:"-"`
	// Oldest is the age of the oldest live allocation.
	Oldest time.Duration `json:"oldest,omitempty"`
	// Growth is the rate of Reserved over the last minutes in bytes per second. Leak is set if
	// Reserved grows without a plateau and less is freed than allocated.
	Growth float64 `json:"growth,omitempty"`
	Leak   bool    `json:"leak,omitempty"`
}

// Class is the kind of an operation.
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

// OpStat holds the counts of one operation on one device.
type OpStat struct {
	Op     string    `json:"op"` // symbol without version suffixes: cuLaunchKernelEx
	Class  Class     `json:"class"`
	Device int       `json:"device"`         // ordinal; -1 if unknown
	Kind   string    `json:"kind,omitempty"` // for copies: htod, dtoh, dtod, htoh, peer, default
	Bytes  uint64    `json:"bytes,omitempty"`
	Time   Histogram `json:"time"`
	// Wait is the part of Time in which copies waited for work that was submitted before them: what
	// they took longer than their bytes take. It is also part of Device.Wait.
	Wait   time.Duration `json:"wait,omitempty"`
	Errors []CodeCount   `json:"errors,omitempty"` // nonzero results by code
}

// CodeCount is the number of times a result code was returned.
type CodeCount struct {
	Code  int32  `json:"code"`
	Count uint64 `json:"count"`
}

// Histogram has buckets whose bounds are powers of sqrt(2), in seconds or bytes: bucket i
// holds values above 2^((i+Offset)/2) up to 2^((i+1+Offset)/2). That is an OpenTelemetry
// exponential histogram of scale 1.
type Histogram struct {
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum"` // seconds or bytes
	Offset  int      `json:"offset"`
	Buckets []uint64 `json:"buckets,omitempty"`
}

// Kernel holds the counts of one kernel of a process.
type Kernel struct {
	Name   string        `json:"name"`   // demangled; unknown if the name was looked up before tracing started
	Symbol string        `json:"symbol"` // mangled, at most 255 bytes
	Device int           `json:"device"`
	Count  uint64        `json:"count"`
	Time   time.Duration `json:"time"` // time in the launching call, not on the device
	Grid   [3]uint32     `json:"grid"` // last launch
	Block  [3]uint32     `json:"block"`
	Shared uint32        `json:"shared"` // dynamic shared memory, bytes
}

// Comm is one NCCL communicator of a process.
type Comm struct {
	// Key identifies the communicator among all that the process has or had, even if ID is
	// unknown. It has no meaning outside the process.
	Key string `json:"key"`
	// Address is that of NCCL's ncclComm in the process.
	Address uint64   `json:"-"`
	ID      string   `json:"id"`   // NCCL's hash, the same in all ranks; empty if unknown
	Rank    int      `json:"rank"` // -1 if unknown
	Size    int      `json:"size"`
	Device  int      `json:"device"`
	Ops     []CollOp `json:"ops,omitempty"`
	// Sequence counts the collectives of the communicator. LastEnter and LastOp are the time
	// and the name of the last one.
	Sequence  uint64    `json:"sequence"`
	LastEnter time.Time `json:"last_enter,omitzero"`
	LastOp    string    `json:"last_op,omitempty"`
	// BarrierWait is the time in the first synchronization after a collective.
	BarrierWait Histogram `json:"barrier_wait"`
	Ended       bool      `json:"ended,omitempty"` // destroyed, finalized or aborted
	Aborted     bool      `json:"aborted,omitempty"`
}

// CollOp holds the counts of one kind of collective of a communicator.
type CollOp struct {
	Op     string    `json:"op"`       // AllReduce, AllGather, Send and so on
	Type   string    `json:"datatype"` // float32, bfloat16 and so on
	Reduce string    `json:"reduce_op,omitempty"`
	Peer   int       `json:"peer"` // peer of Send and Recv; root of Broadcast and Reduce; otherwise -1
	Time   Histogram `json:"time"` // duration of the call
	Size   Histogram `json:"size"` // bytes: element count times type size
	Errors uint64    `json:"errors,omitempty"`
}

// CommGroup is one communicator across the ranks on this machine.
type CommGroup struct {
	ID    string     `json:"id"`
	Size  int        `json:"size"`
	Ranks []RankSeen `json:"ranks"` // by rank
	// Behind lists the ranks that have not entered the latest collective while another rank
	// has been waiting since Waiting. Empty if no rank is behind.
	Behind  []int     `json:"behind,omitempty"`
	Waiting time.Time `json:"waiting,omitzero"`
	// Missing lists the ranks, on any machine, that do not answer NCCL's RAS service or that
	// started fewer collectives than others. RAS is queried only while a rank waits.
	Missing []int `json:"missing,omitempty"`
}

// Measured holds one kind of collective of a rank as measured by NCCL, on the device where
// NCCL can. The Inspector plugin records only a sample of the collectives.
type Measured struct {
	Comm  string        `json:"comm"` // NCCL's communicator hash
	Rank  int           `json:"rank"`
	Size  int           `json:"size"`
	Op    string        `json:"op"`
	Count uint64        `json:"count"`
	Bytes uint64        `json:"bytes"` // message bytes
	Time  time.Duration `json:"time"`
	Bus   float64       `json:"bus"` // bus bytes as defined by nccl-tests; divided by Time, the bus bandwidth
}

// RankSeen is the progress of one rank.
type RankSeen struct {
	Rank     int       `json:"rank"`
	PID      uint32    `json:"pid"`
	Sequence uint64    `json:"sequence"`
	Last     time.Time `json:"last"`
	LastOp   string    `json:"last_op"`
}

// Host holds the scheduling of the threads that launch work, cumulative.
type Host struct {
	Threads int `json:"threads"` // threads that have launched work
	// RunQueue is the time the threads were runnable without a CPU, Blocked the time they
	// slept; InCall is the same, but only inside traced calls.
	RunQueue       time.Duration `json:"run_queue"`
	Blocked        time.Duration `json:"blocked"`
	RunQueueInCall time.Duration `json:"run_queue_in_call"`
	BlockedInCall  time.Duration `json:"blocked_in_call"`
	Switches       uint64        `json:"switches"`
	Known          bool          `json:"known"` // false if scheduler events are not available
}

// Library is one probed file.
type Library struct {
	Path    string `json:"path"` // as mapped by a process
	BuildID string `json:"build_id,omitempty"`
	Kind    string `json:"kind"`   // cuda, nccl, torch
	Probes  int    `json:"probes"` // number of probed symbols
	Slow    int    `json:"slow"`   // probes that need single-stepping
	Skipped int    `json:"skipped,omitempty"`
	Mode    string `json:"mode"` // session, multi, perf
	Problem string `json:"problem,omitempty"`
}

// Untraced is a process on a GPU that is not traced.
type Untraced struct {
	PID    uint32 `json:"pid"`
	Reason string `json:"reason"` // one of no_library, permission_denied, attach_failed
	Detail string `json:"detail,omitempty"`
}

// Losses counts what is missing from the numbers, cumulative. If all are 0, nothing is.
type Losses struct {
	Events   uint64            `json:"events"`    // the ring buffer was full
	Limited  uint64            `json:"limited"`   // events suppressed by the rate limit; their calls are still counted
	MapFull  map[string]uint64 `json:"map_full"`  // by map: entries folded or not counted
	Missed   uint64            `json:"missed"`    // probe hits that the kernel skipped
	Nested   uint64            `json:"nested"`    // calls nested too deeply to follow
	NoReturn uint64            `json:"no_return"` // calls without an observed return
	Unnamed  uint64            `json:"unnamed"`   // launches of kernels without a known name
	Faults   uint64            `json:"faults"`    // arguments that could not be read
	Spared   uint64            `json:"spared"`    // calls that are counted, but whose duration was not measured: tracing would have cost too much
}

// Event is a single call worth reporting.
type Event struct {
	Time     time.Time     `json:"time"` // start of the call
	PID      uint32        `json:"pid"`
	TID      uint32        `json:"tid"`
	Type     string        `json:"type"` // call (if recording), outlier, error, comm_init, comm_end, exit
	Op       string        `json:"op"`
	Device   int           `json:"device"`
	Duration time.Duration `json:"duration"`
	Code     int32         `json:"code"` // result code
	Bytes    uint64        `json:"bytes,omitempty"`
	Kernel   string        `json:"kernel,omitempty"`
	Stream   uint64        `json:"stream,omitempty"`
	RunQueue time.Duration `json:"run_queue,omitempty"` // during the call
	Blocked  time.Duration `json:"blocked,omitempty"`
	Comm     string        `json:"comm,omitempty"` // Comm.ID
	Rank     int           `json:"rank,omitempty"`
	Size     int           `json:"size,omitempty"`
}
