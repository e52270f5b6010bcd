package cudareceiver

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// subject is what series are of: a workload, or one process of it, on one device. Its sums
// only grow while it is there, whichever of its processes end.
type subject struct {
	key   string
	id    device.ID
	pid   uint32 // 0: all processes of the workload
	pairs []pair // of the workload and the device
	rest  bool   // all workloads beyond the cap
	since time.Time
	live  bool
	ended time.Time // when the last of its processes did; zero: it has not

	ops       map[opKey]*operation
	errors    map[errorKey]uint64
	copies    map[string]uint64 // bytes by kind
	kernels   map[string]*kernel
	comms     map[commKey]*comm
	anomalies map[string]uint64 // by cause
	retired   bool              // a kernel was forgotten
	parted    bool              // a communicator was

	busy, wait, bubble float64 // seconds
	host               *delays // nil: the kernel does not say
	memory             *memory // of the moment; nil: not known
}

type opKey struct {
	op    string
	class tracer.Class
}

type errorKey struct {
	op   string
	code int32
}

// operation is how long calls of one function took.
type operation struct{ time distribution }

// kernel is what was launched under one name.
type kernel struct {
	launches    uint64
	time        float64 // seconds, in the launching calls
	grid, block int64   // of the last launch; 0: of several
	last        time.Time
	since       time.Time // when its series began; zero: with the subject
}

// delays are what threads that launch had from the host, in seconds.
type delays struct {
	queue, blocked             float64
	queueInCall, blockedInCall float64
}

// memory is what the processes have now, in bytes.
type memory struct {
	reserved, peak uint64
	allocated      uint64 // given out by frameworks
	held           uint64 // by those frameworks
	framework      bool
	age            time.Duration
	growth         float64
	leak           bool
}

type commKey struct {
	id   string
	rank int
	size int
}

// comm is one communicator as one of its ranks has it, or all whose ID is not known.
type comm struct {
	since    time.Time // when its series began; zero: with the subject
	sequence uint64
	barrier  distribution
	last     time.Time // when it was last used
	live     bool
	ended    time.Time
	behind   bool // others wait for it
	grouped  bool // it is known whether they do
	ops      map[collKey]*collective
	bus      map[string]float64 // bytes a second by NCCL's own measure since the reading before, by collective
}

type collKey struct {
	op, datatype, reduce string
	peer                 int
}

type collective struct {
	time, size distribution
	errors     uint64
	bytes      uint64
	fresh      uint64 // bytes since the reading before
}

func newSubject(key string, id device.ID, pairs []pair, pid uint32, since time.Time) *subject {
	return &subject{
		key: key, id: id, pairs: pairs, pid: pid, since: since,
		ops: map[opKey]*operation{}, errors: map[errorKey]uint64{}, copies: map[string]uint64{},
		kernels: map[string]*kernel{}, comms: map[commKey]*comm{}, anomalies: map[string]uint64{},
	}
}

// begin forgets what was of the moment before.
func (s *subject) begin() {
	s.live, s.memory = false, nil
	for _, c := range s.comms {
		c.live, c.behind, c.grouped, c.bus = false, false, false, nil
		for _, op := range c.ops {
			op.fresh = 0
		}
	}
}

// other is the name of all that is beyond a cap.
const other = "other"

// comm returns a communicator, that of all others beyond the cap. last is when the reading
// before was made.
func (s *subject) comm(key commKey, most int, last time.Time) (c *comm, at commKey, folded bool) {
	if c = s.comms[key]; c != nil {
		return c, key, false
	}
	rest := commKey{other, -1, 0}
	if len(s.comms) >= most && key != rest {
		c, at, _ = s.comm(rest, most, last)
		return c, at, true
	}
	c = &comm{ops: map[collKey]*collective{}}
	if s.parted {
		c.since = last // there may have been a series like it before
	}
	s.comms[key] = c
	return c, key, false
}

func (c *comm) collective(key collKey) *collective {
	op := c.ops[key]
	if op == nil {
		op = &collective{}
		c.ops[key] = op
	}
	return op
}
