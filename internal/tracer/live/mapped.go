//go:build linux

package live

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// mapper tells which processes map libraries. It is implemented by probe.Mappings.
type mapper interface {
	PIDs() []uint32
	Close() error
}

// watchMappings makes the tracer look at processes when they map a library that may have to be probed: one that was
// loaded long after the start of its process would otherwise be found up to a minute later.
func (t *Tracer) watchMappings() probe.Feature {
	f := probe.Feature{Name: "mappings", OK: true}
	m, err := probe.OpenMappings(func(path string) bool { return target.KindOf(path) != "" })
	if err != nil {
		f.OK, f.Reason = false, fmt.Sprintf("libraries that a process loads long after its start are found up to a minute later: %v", err)
		return f
	}
	t.mapper = m
	return f
}

// meetMappers looks at the processes that have mapped a library.
func (t *Tracer) meetMappers(now time.Time) {
	if t.mapper == nil {
		return
	}
	pids := t.mapper.PIDs()
	slices.Sort(pids)
	t.find.meetAll(slices.Compact(pids), now)
}

// meetAll looks at processes, and again soon: they may be about to map more.
func (d *discovery) meetAll(pids []uint32, now time.Time) {
	if len(pids) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	uptime, _ := target.ReadUptime(d.o.Proc)
	for _, pid := range pids {
		if p := d.meet(pid); p != nil {
			d.look(p, now, uptime)
			p.next = now
		}
	}
}
