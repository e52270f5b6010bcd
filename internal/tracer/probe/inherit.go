package probe

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// begin loads the programs that are called by probes, with the maps of the previous agent if there are any.
func (p *Probe) begin(o Options, names []string) error {
	if p.keeper == nil {
		return p.load(o, names, nil)
	}
	dir := p.keeper.folder(o, p.mode)
	spec, err := loadKernel()
	if err != nil {
		return err
	}
	if all := p.keeper.maps(dir, slices.Collect(maps.Keys(spec.Maps))); all != nil {
		err := p.load(o, names, all)
		closeMaps(all)
		if err == nil && p.awake() {
			p.inherited, p.keeper.dir = true, dir
			return p.keeper.find()
		}
		p.alive = time.Time{}
		if err := p.unload(); err != nil {
			return err
		}
	}
	if err := p.load(o, names, nil); err != nil {
		return err
	}
	if err := p.keeper.pin(dir, p.all); err != nil {
		p.unkept = errors.Join(err, p.keeper.close(true))
		p.keeper = nil
		return nil
	}
	p.keeper.dir = dir
	p.stay()
	return nil
}

// awake reports whether the kept probes have been at work until now, and keeps them so.
func (p *Probe) awake() bool {
	var until uint64
	var asleep uint32
	now := clock(unix.CLOCK_MONOTONIC)
	if err := p.variables[kernelVarUntil].Get(&until); err != nil || until < now {
		return false
	}
	p.alive = time.Now().Add(-lease + time.Duration(until-now))
	p.stay()
	err := p.variables[kernelVarAsleep].Get(&asleep) // after that: it may have happened meanwhile
	return err == nil && asleep == 0
}

// stay keeps the probes at work for another lease.
func (p *Probe) stay() {
	if p.keeper != nil {
		_ = p.variables[kernelVarUntil].Set(clock(unix.CLOCK_MONOTONIC) + uint64(lease)) // memory of ours, and of that size
	}
}

// remember sets when tracing began, or learns it from the previous agent.
func (p *Probe) remember() error {
	zero := time.Now().Add(-time.Duration(clock(unix.CLOCK_MONOTONIC))).UnixNano()
	p.booted = uint64(uptime())
	began, at := p.variables[kernelVarBegan], p.variables[kernelVarClockZero]
	var err error
	if p.inherited {
		err = errors.Join(began.Get(&p.booted), at.Get(&zero), p.unwatch())
	} else {
		err = errors.Join(began.Set(p.booted), at.Set(zero))
	}
	p.wall = time.Unix(0, zero)
	return err
}

// unwatch ends what the previous agent has requested events for.
func (p *Probe) unwatch() error {
	var keys []kernelWatchKey
	err := each(p.maps.Watches, func(k kernelWatchKey, _ *uint64) { keys = append(keys, k) })
	for i := range keys {
		err = errors.Join(err, p.maps.Watches.Delete(&keys[i]))
	}
	epoch := p.variables[kernelVarWatchEpoch]
	err = errors.Join(err, epoch.Get(&p.watching))
	p.watching++
	return errors.Join(err, epoch.Set(p.watching))
}

// Began returns the uptime at which tracing began, which a previous agent may have done.
func (p *Probe) Began() time.Duration { return time.Duration(p.booted) }

// Reports returns how often the allocators of frameworks have reported.
func (p *Probe) Reports() (n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.variables != nil {
		_ = p.variables[kernelVarTorchReports].Get(&n) // memory of ours, and of that size
	}
	return n
}

// Started returns the same as a time of day.
func (p *Probe) Started() time.Time {
	asleep := clock(unix.CLOCK_BOOTTIME) - clock(unix.CLOCK_MONOTONIC)
	return p.wall.Add(time.Duration(p.booted - asleep))
}

// Inherited returns until when a previous agent, which has left its maps and probes to this one, was
// running; zero if there was none.
func (p *Probe) Inherited() time.Time { return p.alive }

// Leave makes Close leave maps and probes to the next agent, if they are kept.
func (p *Probe) Leave() { p.leaving.Store(p.keeper != nil) }

// Sweep removes the probes of the previous agent that nobody has attached again.
func (p *Probe) Sweep() error {
	if p.keeper == nil {
		return nil
	}
	return p.keeper.sweep()
}

// inherit returns the attachment of a previous agent.
func (p *Probe) inherit(id Identity, points []Point) (_ Attachment, ok bool) {
	if p.keeper == nil || id.Content == "" {
		return Attachment{}, false
	}
	list := p.keeper.take(id, digest(id, points))
	if len(list) == 0 {
		return Attachment{}, false
	}
	a := &attached{p: p}
	for _, l := range list {
		a.pins = append(a.pins, l.path)
		fd, err := getObject(l.path)
		switch {
		case err != nil:
			_ = a.Close() // without all of them it is of no use
			return Attachment{}, false
		case l.entry:
			a.links.entries = append(a.links.entries, fd)
		default:
			a.links.returns = append(a.links.returns, fd)
		}
	}
	return Attachment{Closer: a, Since: time.Duration(list[0].since) * time.Millisecond, Inherited: true}, true
}

// keep pins the links of a file. What cannot be pinned is not inherited: the next agent probes the file anew,
// as if there were no keeper.
func (p *Probe) keep(a *attached, id Identity, since time.Duration, points []Point) {
	if p.keeper == nil || id.Content == "" {
		return
	}
	k := kept{
		content: digest(id, points), device: id.Device, overlay: id.Overlay, since: uint64(since.Milliseconds()),
		of: len(a.links.entries) + len(a.links.returns),
	}
	for i, l := range slices.Concat(a.links.returns, a.links.entries) {
		k.number, k.entry = i, i >= len(a.links.returns)
		path := filepath.Join(p.keeper.dir, k.name())
		if err := l.Pin(path); err != nil {
			for _, path := range a.pins {
				_ = os.Remove(path)
			}
			a.pins = nil
			return
		}
		a.pins = append(a.pins, path)
	}
}

// digest identifies the content of a file and what is probed in it.
func digest(id Identity, points []Point) string {
	h := sha256.New()
	fmt.Fprintln(h, id.Content)
	sorted := slices.SortedFunc(slices.Values(points), func(a, b Point) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, at := range sorted {
		fmt.Fprintln(h, at.Offset, at.Op.Cookie())
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:12])
}

// adopt returns the link of a tracepoint program that the previous agent has left.
func (p *Probe) adopt(name string) (pinnable, bool) {
	if !p.inherited {
		return nil, false
	}
	fd, err := getObject(filepath.Join(p.keeper.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(filepath.Join(p.keeper.dir, name)) // it is attached anew
	}
	return fd, err == nil
}

// kept describes whether what is known about processes outlives this agent.
func (p *Probe) kept(root string) (f Feature) {
	f = Feature{Name: "restart", OK: p.keeper != nil}
	if p.unkept != nil {
		f.Reason = fmt.Sprintf("after a restart of the agent, the kernels, communicators and memory of running processes are unknown: nothing can be kept in %s: %v", root, p.unkept)
	}
	return f
}

func uptime() time.Duration { return time.Duration(clock(unix.CLOCK_BOOTTIME)) }
