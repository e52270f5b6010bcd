package ledger

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Subject is what series are of: a workload, or one process of it, on one device. Its sums
// only grow while it is there, whichever of its processes end.
type Subject struct {
	Key   string // tells the subject from all others of the ledger, also from those that ended
	ID    device.ID
	PID   uint32    // 0: all processes of the workload
	Pairs []Pair    // of the workload and the device
	rest  bool      // all workloads beyond the cap
	Since time.Time // when its sums began
	Live  bool      // one of its processes runs
	ended time.Time // when the last of its processes did; zero: it has not

	Ops       map[OpKey]*Operation
	Errors    map[ErrorKey]uint64
	Copies    map[string]uint64 // bytes by kind
	Kernels   map[string]*Kernel
	Comms     map[CommKey]*Comm
	Anomalies map[string]uint64 // by cause
	retired   bool              // a kernel was forgotten
	parted    bool              // a communicator was

	Busy, Wait, Bubble float64 // seconds
	Host               *Delays // nil: the kernel does not say
	Memory             *Memory // of the moment; nil: not known
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

// Operation is how long calls of one function took.
type Operation struct{ Time Distribution }

// Kernel is what was launched under one name.
type Kernel struct {
	Launches    uint64
	Time        float64 // seconds, in the launching calls
	Grid, Block int64   // of the last launch; 0: of several
	last        time.Time
	Since       time.Time // when its series began; zero: with the subject
}

// Delays are what threads that launch had from the host, in seconds.
type Delays struct {
	Queue, Blocked             float64
	QueueInCall, BlockedInCall float64
}

// Memory is what the processes have now, in bytes.
type Memory struct {
	Reserved, Peak uint64
	Allocated      uint64 // given out by frameworks
	Held           uint64 // by those frameworks
	Framework      bool
	Age            time.Duration
	Growth         float64 // bytes a second
	Leak           bool
}

// CommKey identifies a rank of a communicator.
type CommKey struct {
	ID   string
	Rank int
	Size int
}

// Comm is one communicator as one of its ranks has it, or all whose ID is not known.
type Comm struct {
	Since    time.Time // when its series began; zero: with the subject
	Sequence uint64
	Barrier  Distribution
	Last     time.Time // when it was last used
	Live     bool
	ended    time.Time
	Behind   bool // others wait for it
	Grouped  bool // it is known whether they do
	Ops      map[CollKey]*Collective
	Bus      map[string]float64 // bytes a second by NCCL's own measure since the reading before, by collective
}

// CollKey identifies a kind of collective: all calls of it are summed.
type CollKey struct {
	Op, Datatype, Reduce string
	Peer                 int
}

// Collective is what the calls of one kind of collective moved.
type Collective struct {
	Time, Size Distribution
	Errors     uint64
	Bytes      uint64
	Fresh      uint64 // bytes since the reading before
}

func newSubject(key string, id device.ID, pairs []Pair, pid uint32, since time.Time) *Subject {
	return &Subject{
		Key: key, ID: id, Pairs: pairs, PID: pid, Since: since,
		Ops: map[OpKey]*Operation{}, Errors: map[ErrorKey]uint64{}, Copies: map[string]uint64{},
		Kernels: map[string]*Kernel{}, Comms: map[CommKey]*Comm{}, Anomalies: map[string]uint64{},
	}
}

// begin forgets what was of the moment before.
func (s *Subject) begin() {
	s.Live, s.Memory = false, nil
	for _, c := range s.Comms {
		c.Live, c.Behind, c.Grouped, c.Bus = false, false, false, nil
		for _, op := range c.Ops {
			op.Fresh = 0
		}
	}
}

// Other is the name of all that is beyond a cap.
const Other = "other"

// comm returns a communicator, that of all others beyond the cap. last is when the reading
// before was made.
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
		c.Since = last // there may have been a series like it before
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
