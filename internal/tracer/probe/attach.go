package probe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Attachment is a file whose functions are probed until it is closed. In mode perf, closing takes seconds.
type Attachment struct {
	io.Closer
	Since time.Duration // uptime when it was probed
	// Inherited is set if a previous agent probed it, and its probes have been in place ever since.
	Inherited bool
}

// attached are the links of a file, and their pins.
type attached struct {
	p      *Probe
	links  links
	pins   []string
	closed sync.Once
}

// Close removes the probes, or leaves them to the next agent.
func (a *attached) Close() (err error) {
	a.closed.Do(func() {
		for _, path := range a.pins {
			if a.p.leaving.Load() {
				break
			}
			if e := os.Remove(path); !errors.Is(e, fs.ErrNotExist) { // the Probe may have been closed first
				err = errors.Join(err, e)
			}
		}
		err = errors.Join(err, a.links.Close())
	})
	return err
}

// Attach probes points of a file until the attachment is closed. path may be a link such as those
// in /proc/PID/map_files. Of several points at the same offset the first counts: identical
// functions may be merged.
func (p *Probe) Attach(path string, id Identity, points []Point) (Attachment, error) {
	points = distinct(points)
	if len(points) == 0 {
		return Attachment{}, fmt.Errorf("cannot probe %s: no points", path)
	}
	if a, ok := p.inherit(id, points); ok {
		return a, nil
	}
	a, since := &attached{p: p}, uptime()
	var err error
	switch p.mode {
	case ModeSession:
		a.links, err = p.session(path, points)
	case ModeMulti:
		a.links, err = p.multi(path, points)
	default:
		a.links, err = p.perf(path, points)
		if lack := lacking(effective(), perfRequired); errors.Is(err, os.ErrPermission) && lack != nil {
			err = fmt.Errorf("%s: %w", describe(lack), err)
		}
	}
	if err != nil {
		return Attachment{}, errors.Join(fmt.Errorf("cannot probe %s: %w", path, err), a.links.Close())
	}
	p.keep(a, id, since, points)
	return Attachment{Closer: a, Since: since}, nil
}

func distinct(points []Point) []Point {
	seen := map[uint64]bool{}
	var out []Point
	for _, at := range points {
		if !seen[at.Offset] {
			seen[at.Offset] = true
			out = append(out, at)
		}
	}
	return out
}

// links are those of a file.
type links struct {
	entries, returns []pinnable
}

// pinnable is a link that may outlive this process.
type pinnable interface {
	io.Closer
	Pin(path string) error
}

// Close closes entry probes before return probes.
func (l links) Close() error { return errors.Join(closeAll(l.entries), closeAll(l.returns)) }

// closeAll closes all at once. Closing a perf event waits until no CPU can be in it, about a
// tenth of a second, and the kernel serializes most of that: two events for each of 65
// functions take ten seconds. No faster way is known; the other modes need one wait per file.
func closeAll(list []pinnable) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, l := range list {
		wg.Go(func() { errs[i] = l.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (p *Probe) session(path string, points []Point) (links, error) {
	offsets, cookies := places(points, false)
	fd, err := linkSession(p.programs[kernelProgCallSession].FD(), path, offsets, cookies)
	if err != nil {
		return links{}, err
	}
	return links{entries: []pinnable{fd}}, nil
}

// multi attaches return probes first: a return without an entry is recognized, but an entry
// whose return is missed would stay with its thread.
func (p *Probe) multi(path string, points []Point) (all links, err error) {
	file, err := link.OpenExecutable(path)
	if err != nil {
		return all, err
	}
	if offsets, cookies := places(points, true); len(offsets) > 0 {
		l, err := file.UretprobeMulti(nil, p.programs[kernelProgCallLeave], &link.UprobeMultiOptions{Addresses: offsets, Cookies: cookies})
		if err != nil {
			return all, err
		}
		all.returns = append(all.returns, l)
	}
	offsets, cookies := places(points, false)
	l, err := file.UprobeMulti(nil, p.programs[kernelProgCallEnter], &link.UprobeMultiOptions{Addresses: offsets, Cookies: cookies})
	if err != nil {
		return all, err
	}
	all.entries = append(all.entries, l)
	return all, nil
}

func (p *Probe) perf(path string, points []Point) (all links, err error) {
	file, err := link.OpenExecutable(path)
	if err != nil {
		return all, err
	}
	for _, at := range points {
		o := &link.UprobeOptions{Address: at.Offset, Cookie: at.Op.Cookie()}
		if !at.Op.Entry {
			l, err := file.Uretprobe(at.Symbol, p.programs[kernelProgCallLeave], o)
			if err != nil {
				return all, fmt.Errorf("%s: %w", at.Symbol, err)
			}
			all.returns = append(all.returns, l)
		}
		l, err := file.Uprobe(at.Symbol, p.programs[kernelProgCallEnter], o)
		if err != nil {
			return all, fmt.Errorf("%s: %w", at.Symbol, err)
		}
		all.entries = append(all.entries, l)
	}
	return all, nil
}

// places returns offsets and cookies of all points, or of those with a return probe.
func places(points []Point, returns bool) (offsets, cookies []uint64) {
	for _, at := range points {
		if returns && at.Op.Entry {
			continue
		}
		offsets = append(offsets, at.Offset)
		cookies = append(cookies, at.Op.Cookie())
	}
	return offsets, cookies
}

// multiAttr is the bpf(2) attribute for a uprobe-multi link; constants are from linux/bpf.h.
type multiAttr struct {
	program, target, attachType, flags uint32
	path, offsets, counters, cookies   unsafe.Pointer // 8 bytes on every platform we build for
	count, multiFlags, pid, _          uint32
}

const (
	linkCreate    = 28
	attachMulti   = 48
	attachSession = 57
)

// handle is a file descriptor.
type handle int

// Close closes it.
func (h handle) Close() error { return unix.Close(int(h)) }

// linkSession attaches a session program, which cilium/ebpf 0.22 can load but not attach.
func linkSession(program int, path string, offsets, cookies []uint64) (handle, error) {
	return linkMany(program, attachSession, path, offsets, cookies)
}

func linkMany(program int, kind uint32, path string, offsets, cookies []uint64) (handle, error) {
	name, err := unix.ByteSliceFromString(path)
	if err != nil {
		return -1, err
	}
	a := multiAttr{
		program:    uint32(program),
		attachType: kind,
		path:       unsafe.Pointer(&name[0]),
		offsets:    unsafe.Pointer(&offsets[0]),
		cookies:    unsafe.Pointer(&cookies[0]),
		count:      uint32(len(offsets)),
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, linkCreate, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(&a)
	if errno != 0 {
		return -1, errno
	}
	return handle(fd), nil
}

// linkable reports whether the kernel supports links of the mode. The kernel checks the
// program before the file, so attaching to a directory must fail with another error.
func (p *Probe) linkable() error {
	program, kind := p.programs[kernelProgCallEnter], uint32(attachMulti)
	if p.mode == ModeSession {
		program, kind = p.programs[kernelProgCallSession], attachSession
	}
	if program == nil {
		return fmt.Errorf("no program: %w", ebpf.ErrNotSupported)
	}
	l, err := linkMany(program.FD(), kind, "/", []uint64{0}, []uint64{0})
	if err == nil {
		return errors.Join(errors.New("a directory was probed"), l.Close())
	}
	if !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("link type not supported: %w", err)
	}
	return nil
}
