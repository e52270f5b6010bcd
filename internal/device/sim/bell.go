package sim

import (
	"context"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// bell rings when a GPU had an error since it was last looked at.
type bell struct {
	mu   sync.Mutex
	emit func(device.Event) // nil: nobody listens
	last map[*gpu]time.Duration
}

// Events implements device.EventReader. The clock is somebody else's: an event is told
// when its device is read next, which is before that tick collects what was heard.
func (n *node) Events(ctx context.Context, emit func(device.Event)) error {
	n.bell.mu.Lock()
	n.bell.emit, n.bell.last = emit, map[*gpu]time.Duration{}
	n.bell.mu.Unlock()
	<-ctx.Done()
	n.bell.mu.Lock()
	defer n.bell.mu.Unlock()
	n.bell.emit = nil
	return nil
}

// cry is an XID of a GPU that fails.
type cry struct {
	after time.Duration // the onset
	code  int
	text  string
}

// cries are the first XIDs; then the last is repeated.
var cries = []cry{
	{remapAt, 63, "Row Remapper: new row marked for remapping, reset gpu to activate."},
	{remapAt, 94, "Contained: SM (0x1). RST: No, D-RST: No"},
}

// cryEvery is the time between the XIDs that follow.
const cryEvery = 41 * time.Minute

// ring tells of the XIDs of g since it was last read.
func (n *node) ring(g *gpu, up time.Duration) {
	if !g.role.cries {
		return
	}
	n.bell.mu.Lock()
	defer n.bell.mu.Unlock()
	if n.bell.emit == nil {
		return
	}
	last, heard := n.bell.last[g]
	n.bell.last[g] = up
	if !heard || up < last { // what was before is somebody else's to tell
		return
	}
	tell := func(c cry, at time.Duration) {
		if at > last && at <= up {
			n.bell.emit(device.Event{
				Time: n.start.Add(at), Device: g.id.UUID, PCI: g.id.PCI, Name: device.EventXID, Code: c.code, Message: c.text,
				PID: uint32(g.pid() + g.stay(at)), Process: g.role.process,
			})
		}
	}
	for _, c := range cries {
		tell(c, g.onset+c.after)
	}
	for at := g.onset + remapAt + cryEvery; at <= up; at += cryEvery {
		tell(cries[len(cries)-1], at)
	}
}
