//go:build linux

package live

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// Intervals of the search. Once a library is probed it is traced in all processes at once,
// so only a file that no process had mapped before waits for the next look.
const (
	lookAgain    = time.Minute      // maximum interval between two looks at a process
	lookYoung    = 4                // or age/lookYoung: programs load their libraries early
	unusedFor    = 30 * time.Second // until the probes of an unused library are removed
	retryFirst   = 10 * time.Second // after a failed attach; doubled each time
	retryAtMost  = 5 * time.Minute
	maxFiles     = 8192 // each container names the same file again
	maxLibraries = 1024
	ticksPerSec  = 100
)

// discovery tracks the processes and the libraries of this machine.
type discovery struct {
	o       Options
	kernel  attacher
	started uint64    // uptime when tracing began, in ticks
	first   time.Time // of the searches
	swept   bool      // what a previous agent left and nobody uses was removed

	mu        sync.Mutex
	processes map[uint32]*process
	files     map[fileKey]*library // as named in maps; several keys may be the same library
	libraries map[identity]*library
	hanging   chan struct{} // limits pending file reads
	silent    chan struct{} // limits pending reads of maps and memory
	closed    bool
	refused   uint64 // files rejected because of maxFiles
	attached  uint64 // libraries attached so far
	pulse     pulse
	looked    time.Time // last search for installed libraries
}

type process struct {
	target.Process
	older     bool   // started before tracing, or mapped the driver's library before it was probed
	looked    uint64 // uptime at the last conclusive look, in ticks
	next      time.Time
	libraries []*library
	inspected bool        // NCCL's Inspector plugin is loaded
	problem   error       // error of reading its maps
	reading   chan mapped // pending read; nil if none
}

// fileKey identifies a file as named in a process's maps.
type fileKey struct {
	device string
	inode  uint64
	kind   string
}

// identity distinguishes files. Mounts of one image, and snapshots of one file system, have
// files that differ only in the device number.
type identity struct {
	content
	device  uint64
	overlay bool // the device is the mount's, not the file's
}

// content identifies a file both in a lower layer and through an overlay. Both share one set
// of probes; with two, each call would be counted twice.
type content struct {
	buildID string
	inode   uint64
	size    int64
	kind    string
}

// library is one file, probed or not.
type library struct {
	tracer.Library
	id     identity
	link   io.Closer // nil if not probed
	since  uint64    // uptime when it was probed, in ticks
	named  bool      // its name suggests that it has the probed functions
	stays  bool      // installed: a future process will use it
	users  int
	unused time.Time // unused since; zero if used
	last   bool      // all processes are checked once more before its probes are removed
	denied bool
	retry  time.Time // next attempt; zero for never
	delay  time.Duration
}

func newDiscovery(o Options, k kernel) *discovery {
	d := &discovery{
		o: o, kernel: k,
		processes: map[uint32]*process{},
		files:     map[fileKey]*library{},
		libraries: map[identity]*library{},
		hanging:   make(chan struct{}, maxHanging),
		silent:    make(chan struct{}, maxSilent),
	}
	d.started = ticks(k.Began())
	return d
}

// scan looks at the processes that are due. It reports whether a process exited that used a
// probed library.
func (d *discovery) scan(now time.Time) (gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	pids, err := target.PIDs(d.o.Proc)
	if err != nil {
		return false
	}
	d.install(now)
	uptime, _ := target.ReadUptime(d.o.Proc)
	all := false
	for _, l := range d.libraries {
		all = all || l.last
	}
	there := make(map[uint32]bool, len(pids))
	for _, pid := range pids {
		there[pid] = true
		p := d.processes[pid]
		if p != nil && !all && now.Before(p.next) {
			continue
		}
		// A new process, or a reused pid.
		if p = d.meet(pid); p == nil {
			there[pid] = false
			continue
		}
		d.look(p, now, uptime)
	}
	for pid, p := range d.processes {
		if !there[pid] {
			gone = gone || len(p.libraries) > 0
			d.use(p, nil)
			delete(d.processes, pid)
		}
	}
	d.sweep(now)
	d.inherit(now)
	return gone
}

// meet returns the process with this pid, a new value if the pid was reused; nil if there is
// no such process.
func (d *discovery) meet(pid uint32) *process {
	id, err := target.ReadProcess(d.o.Proc, pid)
	if err != nil {
		return nil
	}
	p := d.processes[pid]
	if p == nil || p.Start != id.Start {
		if p != nil {
			d.use(p, nil)
		}
		p = &process{Process: id, older: id.Start < d.started}
		d.processes[pid] = p
	}
	p.Name = id.Name // exec changes the name
	return p
}

// look finds the libraries that a process has mapped.
func (d *discovery) look(p *process, now time.Time, uptime uint64) {
	age := time.Duration(max(uptime, p.Start)-p.Start) * time.Second / ticksPerSec
	p.next = now.Add(min(age/lookYoung, lookAgain))
	maps, err := d.maps(p)
	if errors.Is(err, errSilent) { // assume that its libraries are unchanged
		p.next = now.Add(lookAgain)
		p.problem = nil
		if len(p.libraries) == 0 {
			p.problem = err
		}
		return
	}
	p.problem = err
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			p.next = now.Add(lookAgain)
		}
		d.use(p, nil)
		return
	}
	var libraries []*library
	add := func(m target.Mapping, kind string, named bool) {
		attached := d.attached
		l := d.library(source{
			key: fileKey{m.Device, m.Inode, kind}, path: m.Path,
			open: func() (*target.File, error) { return target.Open(d.o.Proc, p.PID, m) },
		}, named, now)
		if l == nil || slices.Contains(libraries, l) {
			return
		}
		libraries = append(libraries, l)
		// Calls before the library was probed were not seen. The process had the library then
		// unless it started later, or did not have it at a later look.
		late := p.Start < l.since && p.looked <= l.since && !slices.Contains(p.libraries, l)
		if kind == tracer.LibraryCUDA && l.link != nil && (late || d.attached > attached) {
			p.older = true
		}
	}
	cuda := false
	p.inspected = false
	for _, m := range maps {
		p.inspected = p.inspected || isInspector(m.Path)
		if kind := target.KindOf(m.Path); kind != "" {
			cuda = cuda || kind == tracer.LibraryCUDA
			add(m, kind, !strings.Contains(m.Path, "libtorch_cuda"))
		}
	}
	if cuda { // NCCL may be linked into the executable
		exe := target.Executable(d.o.Proc, p.PID)
		if i := slices.IndexFunc(maps, func(m target.Mapping) bool { return m.Path == exe }); i >= 0 {
			add(maps[i], tracer.LibraryNCCL, false)
		}
	}
	p.looked = uptime
	d.use(p, libraries)
}

// use sets the libraries of a process.
func (d *discovery) use(p *process, libraries []*library) {
	for _, l := range libraries {
		l.users++
		l.unused, l.last = time.Time{}, false
	}
	for _, l := range p.libraries {
		l.users--
	}
	p.libraries = libraries
}

// sweep removes probes from libraries that no process has mapped for a while. A link pins
// the file's mount, so the mount of a finished container could not go away.
func (d *discovery) sweep(now time.Time) {
	for key, l := range d.files {
		switch {
		case l.users > 0:
		case l.stays:
			if !strings.HasPrefix(key.device, installed) {
				delete(d.files, key)
			}
		case l.link == nil:
			d.drop(l)
			delete(d.files, key)
		case l.unused.IsZero():
			l.unused = now
		case l.last:
			// All processes were checked, and none has the library.
			d.drop(l)
			delete(d.files, key)
		case now.Sub(l.unused) >= unusedFor:
			l.last = true
		}
	}
}

// drop removes the probes of a library.
func (d *discovery) drop(l *library) {
	if l.link != nil {
		if err := l.link.Close(); err != nil {
			l.Problem = err.Error()
		}
		l.link = nil
	}
	if d.libraries[l.id] == l {
		delete(d.libraries, l.id)
	}
}

// source says where a library was found.
type source struct {
	key  fileKey
	path string
	open func() (*target.File, error)
}

// library returns the library of a source and probes it if possible; nil if there are too
// many files.
func (d *discovery) library(s source, named bool, now time.Time) *library {
	l := d.files[s.key]
	if l != nil && (l.retry.IsZero() || now.Before(l.retry)) {
		return l
	}
	if l == nil {
		if len(d.files) >= maxFiles {
			d.refused++
			return nil
		}
		l = &library{named: named, Library: tracer.Library{Path: printable(s.path), Kind: s.key.kind, Mode: d.kernel.Mode()}}
	}
	l.Problem, l.retry, l.denied = "", time.Time{}, false
	known, err := d.probe(s, l)
	if err != nil {
		l.Problem, l.denied = err.Error(), errors.Is(err, fs.ErrPermission)
		l.delay = min(max(2*l.delay, retryFirst), retryAtMost)
		l.retry = now.Add(l.delay)
		known = l
	}
	d.files[s.key] = known
	return known
}

// probe reads the file of a source and attaches probes. If the file turns out to be a known
// library, that one is returned.
func (d *discovery) probe(s source, l *library) (known *library, err error) {
	f, img, err := d.read(s, wantedOf(l.Kind))
	if err != nil {
		return nil, err
	}
	keep := false
	defer func() {
		if !keep {
			_ = f.Close() // only read
		}
	}()
	id := identity{content{img.BuildID, f.Inode, f.Size, l.Kind}, f.Device, f.Overlay}
	if known := d.same(id); known != nil {
		return known, nil
	}
	if len(d.libraries) >= maxLibraries {
		return nil, fmt.Errorf("cannot probe %s: limit of %d libraries reached", l.Path, maxLibraries)
	}
	l.id, l.BuildID = id, img.BuildID
	points := d.points(l, img)
	if len(points) == 0 {
		if l.Skipped > 0 {
			l.Problem = "every function would need single-stepping"
		} else if l.named {
			l.Problem = "none of the traced functions found"
		}
		d.libraries[id] = l
		return l, nil
	}
	// Our own descriptor keeps the file reachable even if the process exits.
	attach := func() (probe.Attachment, error) {
		return d.kernel.Attach(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), id.kept(), points)
	}
	link, err := attach()
	if err != nil {
		return nil, fmt.Errorf("cannot probe %s: %w", l.Path, err)
	}
	l.link, l.Probes, l.since = link.Closer, len(points), ticks(link.Since)
	if l.Kind == tracer.LibraryTorch {
		l.link, keep = d.pulse.add(link.Closer, f, attach), true
	}
	if !link.Inherited {
		d.attached++
		for _, p := range d.processes { // the library was not probed when these were last checked
			p.older = p.older || l.Kind == tracer.LibraryCUDA && slices.Contains(p.libraries, l)
		}
	}
	d.libraries[id] = l
	return l, nil
}

// same returns the known library of a file, or nil.
func (d *discovery) same(id identity) *library {
	if l := d.libraries[id]; l != nil {
		return l
	}
	for have, l := range d.libraries {
		if have.content == id.content && (have.overlay || id.overlay) {
			return l
		}
	}
	return nil
}

// close removes all probes.
func (d *discovery) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for _, l := range d.libraries {
		if l.link != nil {
			errs = append(errs, l.link.Close())
			l.link = nil
		}
	}
	return errors.Join(errs...)
}
