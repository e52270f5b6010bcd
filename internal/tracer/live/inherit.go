//go:build linux

package live

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// kept is what the file is recognized by after a restart of the agent.
func (id identity) kept() probe.Identity {
	return probe.Identity{
		Content: fmt.Sprintf("%s %s %d %d", id.kind, id.buildID, id.inode, id.size),
		Device:  id.device, Overlay: id.overlay,
	}
}

// inherit removes what a previous agent has probed and no process uses any more.
func (d *discovery) inherit(now time.Time) {
	switch {
	case d.swept:
	case d.first.IsZero():
		d.first = now
	case now.Sub(d.first) > unusedFor:
		d.swept = true
		_ = d.kernel.Sweep() // what is left is removed with everything else
	}
}

// beat keeps the cost of probes in allocators low.
func (d *discovery) beat(reports uint64, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.pulse.beat(reports, now)
	}
}

// current clears what a framework reported too long ago.
func (d *discovery) current(m *tracer.Memory, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pulse.current(m, now)
}

func ticks(uptime time.Duration) uint64 { return uint64(uptime / (time.Second / ticksPerSec)) }
