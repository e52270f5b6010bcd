//go:build linux

package intel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
)

// client is one user of the GPU as the driver counts them: one open of a DRM node. A file
// descriptor that was inherited, duplicated or passed to another process is the same
// client.
type client struct {
	pid  uint32 // the first process that holds it
	name string
	at   time.Time // time of the reading
	use  fdinfo
	busy device.Value // ratio of time on the render and compute engines
}

// maxFiles bounds the number of files read per GPU and tick.
const maxFiles = 4096

// readClients reads which processes use the GPU, how much of its memory they hold and how
// busy they keep it. Device totals are reported only if no client can be missing.
func (g *gpu) readClients(ctx context.Context) {
	s := &g.sample
	s.Processes, s.Utilization, s.Memory.Used = nil, device.Engines{}, device.Value{}
	found, err := g.r.scan.find(ctx)
	if err != nil {
		g.fail(err)
		return
	}
	if found.err != nil {
		g.fail(fmt.Errorf("cannot find the processes on the GPU: %w", found.err))
	}
	now := make(map[uint64]client)
	whole := found.whole() && !g.virtual
	read := 0
	for _, f := range found.files {
		if !slices.Contains(g.minors, f.minor) {
			continue
		}
		if read++; read > maxFiles {
			g.fail(errors.New("too many processes have the GPU open"))
			whole = false
			break
		}
		c, err := g.readClient(f)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
			continue // closed meanwhile
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			whole = false // reported by Diagnose; other users' processes are not an error
			continue
		default:
			g.fail(err)
			whole = false
			continue
		}
		if c.use.pdev != "" && c.use.pdev != g.id.PCI {
			continue // the fd was reused for another GPU's file since the search
		}
		if c.use.pdev == "" || !c.use.identified {
			whole = false // this kernel does not count clients: i915 before Linux 5.19
			continue
		}
		if _, twice := now[c.use.client]; twice {
			continue
		}
		if before, ok := g.clients[c.use.client]; ok {
			c.use.keep(&before.use)
			c.busy = c.use.busy(&before.use, c.at.Sub(before.at))
		} else if c.use.idle() {
			c.busy = device.Of(0) // an idle client has done no work since it appeared
		}
		now[c.use.client] = c
	}
	g.clients = now
	s.Processes = processes(now)
	if whole {
		s.Utilization.Compute, s.Memory.Used = total(now)
	}
}

// readClient reads one open file. The driver produces the content and may hang.
func (g *gpu) readClient(f openFile) (c client, err error) {
	const most = 16384 // bytes; a driver that sets every key fills a quarter of it
	pid := g.r.proc.Join(strconv.FormatUint(uint64(f.pid), 10))
	name := "fdinfo/" + strconv.Itoa(f.fd)
	file := string(pid.Join(name))
	g.reading.Store(&file)
	b, err := pid.Bytes(name, most)
	if err != nil {
		return c, err
	}
	c = client{pid: f.pid, at: g.r.opts.Now()}
	if c.use, err = parseFdinfo(string(b)); err != nil {
		return c, fmt.Errorf("cannot parse %s: %w", file, err)
	}
	c.name, _ = pid.Text("comm") // if the process has exited, it is listed once more, without a name
	return c, nil
}

// keepClients replaces readClients while the GPU sleeps: asking the driver would wake the
// GPU, and nothing runs. Clients that still exist keep their last known values.
func (g *gpu) keepClients(ctx context.Context) {
	s := &g.sample
	s.Processes, s.Utilization, s.Memory.Used = nil, device.Engines{}, device.Value{}
	found, err := g.r.scan.find(ctx)
	if err != nil {
		g.fail(err)
		return
	}
	there := map[uint32]bool{}
	for _, f := range found.files {
		if slices.Contains(g.minors, f.minor) {
			there[f.pid] = true
		}
	}
	kept := make(map[uint64]client)
	for id, c := range g.clients {
		if there[c.pid] {
			c.busy = device.Of(0)
			kept[id] = c
		}
	}
	g.clients = kept
	s.Processes = processes(kept)
	if found.whole() && !g.virtual {
		s.Utilization.Compute = device.Of(0)
	}
}

// processes groups the clients by process.
func processes(clients map[uint64]client) []device.Process {
	ids := make([]uint64, 0, len(clients))
	for id := range clients {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	by := map[uint32][]client{}
	for _, id := range ids {
		by[clients[id].pid] = append(by[clients[id].pid], clients[id])
	}
	var list []device.Process
	for pid, mine := range by {
		p := device.Process{PID: pid, Name: mine[0].name, Type: "compute"}
		p.Utilization, p.MemoryUsed = sum(mine)
		if !slices.ContainsFunc(mine, func(c client) bool { return c.use.computes() }) {
			p.Type = "graphics"
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b device.Process) int { return cmp.Compare(a.PID, b.PID) })
	return list
}

func total(clients map[uint64]client) (busy, memory device.Value) {
	list := make([]client, 0, len(clients))
	for _, c := range clients {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b client) int { return cmp.Compare(a.use.client, b.use.client) })
	return sum(list)
}

// sum adds up clients. If a value is unknown for one client, the sum is unknown.
func sum(list []client) (busy, memory device.Value) {
	var b, m float64
	busyKnown, memoryKnown := true, true
	for _, c := range list {
		v, ok := c.busy.Get()
		b, busyKnown = b+v, busyKnown && ok
		v, ok = c.use.vram.Get()
		m, memoryKnown = m+v, memoryKnown && ok
	}
	if busyKnown {
		busy = device.Of(min(b, 1))
	}
	if memoryKnown {
		memory = device.Of(m)
	}
	return busy, memory
}
