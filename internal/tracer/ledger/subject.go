package ledger

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Subject is the owner of series: a workload, or one of its processes, on one device. Its sums only
// grow while it exists, even as its processes end.
type Subject struct {
	Key   string // unique in the ledger, including ended subjects
	ID    device.ID
	PID   uint32    // 0 for all processes of the workload
	Pairs []Pair    // attributes of the workload and the device
	rest  bool      // combines all workloads beyond the limit
	Since time.Time // start of its sums
	Live  bool      // at least one of its processes runs
	ended time.Time // end of its last process; zero while live

	Ops       map[OpKey]*Operation
	Errors    map[ErrorKey]uint64
	Copies    map[string]uint64 // bytes by kind
	Kernels   map[string]*Kernel
	Comms     map[CommKey]*Comm
	Anomalies map[string]uint64 // by cause
	retired   bool              // a kernel was dropped
	parted    bool              // a communicator was dropped

	Busy, Wait, Bubble float64   // seconds
	Host               *Delays   // nil: not reported by the kernel
	Memory             *Memory   // current; nil: unknown
	Training           *Training // nil: none of its processes trains
}

// OpKey identifies a function of CUDA or NCCL.
type OpKey struct {
	Op    string
	Class tracer.Class
}

// ErrorKey identifies an error code that a function returned.
type ErrorKey struct {
	Op   string
	Code int32
}

// Operation is the distribution of call durations of one function.
type Operation struct{ Time Distribution }

// Kernel sums the launches under one name.
type Kernel struct {
	Launches    uint64
	Time        float64 // seconds, in the launching calls
	Grid, Block int64   // of the last launch; 0 if combined
	last        time.Time
	Since       time.Time // start of its series; zero: that of the subject
}

// Delays are the scheduling delays of the threads that launch work, in seconds.
type Delays struct {
	Queue, Blocked             float64
	QueueInCall, BlockedInCall float64
}

// Memory is the current memory of the processes, in bytes.
type Memory struct {
	Reserved, Peak uint64
	Allocated      uint64 // handed out by the frameworks' allocators
	Held           uint64 // reserved by those allocators
	Framework      bool
	Age            time.Duration
	Growth         float64 // bytes per second
	Leak           bool
}

// CommKey identifies a rank of a communicator.
type CommKey struct {
	ID   string
	Rank int
	Size int
}

// Comm is one rank's view of a communicator, or all communicators without an ID.
type Comm struct {
	Since    time.Time // start of its series; zero: that of the subject
	Sequence uint64
	Barrier  Distribution
	Last     time.Time // last use
	Live     bool
	ended    time.Time
	Behind   bool // other ranks wait for this one
	Grouped  bool // Behind is known
	Ops      map[CollKey]*Collective
	Bus      map[string]float64 // bytes per second as measured by NCCL since the previous reading, by collective
}

// CollKey identifies a kind of collective whose calls are summed.
type CollKey struct {
	Op, Datatype, Reduce string
	Peer                 int
}

// Collective sums the calls of one kind of collective.
type Collective struct {
	Time, Size Distribution
	Errors     uint64
	Bytes      uint64
	Fresh      uint64 // bytes since the previous reading
}

func newSubject(key string, id device.ID, pairs []Pair, pid uint32, since time.Time) *Subject {
	return &Subject{
		Key: key, ID: id, Pairs: pairs, PID: pid, Since: since,
		Ops: map[OpKey]*Operation{}, Errors: map[ErrorKey]uint64{}, Copies: map[string]uint64{},
		Kernels: map[string]*Kernel{}, Comms: map[CommKey]*Comm{}, Anomalies: map[string]uint64{},
	}
}

// begin resets the gauges before a reading.
func (s *Subject) begin() {
	s.Live, s.Memory = false, nil
	for _, c := range s.Comms {
		c.Live, c.Behind, c.Grouped, c.Bus = false, false, false, nil
		for _, op := range c.Ops {
			op.Fresh = 0
		}
	}
}

// Other is the name for everything beyond a limit.
const Other = "other"

// comm returns a communicator, or Other beyond the limit. last is the time of the previous reading.
func (s *Subject) comm(key CommKey, most int, last time.Time) (c *Comm, at CommKey, folded bool) {
	if c = s.Comms[key]; c != nil {
		return c, key, false
	}
	rest := CommKey{Other, -1, 0}
	if len(s.Comms) >= most && key != rest {
		c, at, _ = s.comm(rest, most, last)
		return c, at, true
	}
	c = &Comm{Ops: map[CollKey]*Collective{}}
	if s.parted {
		c.Since = last // an identical series may have existed before
	}
	s.Comms[key] = c
	return c, key, false
}

func (c *Comm) collective(key CollKey) *Collective {
	op := c.Ops[key]
	if op == nil {
		op = &Collective{}
		c.Ops[key] = op
	}
	return op
}
