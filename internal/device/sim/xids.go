package sim

import (
	"context"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// xidSource reports the XIDs that a GPU had since it was last read.
type xidSource struct {
	mu   sync.Mutex
	emit func(device.Event) // nil: Events is not running
	last map[*gpu]time.Duration
}

// Events implements device.EventReader. The simulated clock belongs to the caller, so an
// event is emitted when its device is next read, which is before that tick collects events.
func (n *node) Events(ctx context.Context, emit func(device.Event)) error {
	n.xids.mu.Lock()
	n.xids.emit, n.xids.last = emit, map[*gpu]time.Duration{}
	n.xids.mu.Unlock()
	<-ctx.Done()
	n.xids.mu.Lock()
	defer n.xids.mu.Unlock()
	n.xids.emit = nil
	return nil
}

// scriptedXID is one XID of a failing GPU.
type scriptedXID struct {
	after time.Duration // time since the onset
	code  int
	text  string
}

// scriptedXIDs are the first XIDs; afterwards the last one repeats.
var scriptedXIDs = []scriptedXID{
	{remapAt, 63, "Row Remapper: new row marked for remapping, reset gpu to activate."},
	{remapAt, 94, "Contained: SM (0x1). RST: No, D-RST: No"},
}

// xidEvery is the interval at which the last XID repeats.
const xidEvery = 41 * time.Minute

// emitXIDs emits the XIDs of g since it was last read.
func (n *node) emitXIDs(g *gpu, up time.Duration) {
	if !g.role.logsXIDs {
		return
	}
	n.xids.mu.Lock()
	defer n.xids.mu.Unlock()
	if n.xids.emit == nil {
		return
	}
	last, heard := n.xids.last[g]
	n.xids.last[g] = up
	if !heard || up < last { // XIDs from before Events started are not reported
		return
	}
	tell := func(c scriptedXID, at time.Duration) {
		if at > last && at <= up {
			n.xids.emit(device.Event{
				Time: n.start.Add(at), Device: g.id.UUID, PCI: g.id.PCI, Name: device.EventXID, Code: c.code, Message: c.text,
				PID: uint32(g.pid() + g.stay(at)), Process: g.role.process,
			})
		}
	}
	for _, c := range scriptedXIDs {
		tell(c, g.onset+c.after)
	}
	for at := g.onset + remapAt + xidEvery; at <= up; at += xidEvery {
		tell(scriptedXIDs[len(scriptedXIDs)-1], at)
	}
}
