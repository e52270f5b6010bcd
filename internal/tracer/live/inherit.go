//go:build linux

package live

import (
	"fmt"
	"time"

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

func ticks(uptime time.Duration) uint64 { return uint64(uptime / (time.Second / ticksPerSec)) }
