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
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// How often what is looked at. A library that has probes is traced in all processes at
// once, so what takes until the next look is only a file nobody has had mapped yet.
const (
	lookAgain    = time.Minute      // a process is looked at this often, or
	lookYoung    = 4                // after this part of its age: a program loads its libraries early
	unusedFor    = 30 * time.Second // until the probes of a library without a process go
	retryFirst   = 10 * time.Second // after a library could not be probed; doubled each time
	retryAtMost  = 5 * time.Minute
	maxFiles     = 8192 // each container names the same file anew
	maxLibraries = 1024
	ticksPerSec  = 100
)

// discovery knows the processes and the libraries of this machine.
type discovery struct {
	o       Options
	kernel  attacher
	started uint64 // uptime at the first search, in ticks

	mu        sync.Mutex
	processes map[uint32]*process
	files     map[fileKey]*library // as maps name them; several may be one library
	libraries map[identity]*library
	hanging   chan struct{} // readings of files
	silent    chan struct{} // readings of maps
	closed    bool
	refused   uint64    // files beyond the bound
	attached  uint64    // libraries, ever
	looked    time.Time // for libraries that are installed
}

type process struct {
	target.Process
	older     bool   // it ran before us, or had the driver's library before that had probes
	looked    uint64 // uptime at the last look that told something, in ticks
	next      time.Time
	libraries []*library
	inspected bool        // it has NCCL's Inspector plugin
	problem   error       // of reading its maps
	reading   chan mapped // that has not come back; nil: none
}

// fileKey is a file as the maps of a process name it.
type fileKey struct {
	device string
	inode  uint64
	kind   string
}

// identity tells files apart. Mounts of one image, and snapshots of one file system, have
// files that differ in nothing but the device.
type identity struct {
	content
	device  uint64
	overlay bool // the device is that of the mount, not that of the file
}

// content is what a file of a lower layer and the same file seen through an overlay have in
// common. They have one set of probes: with two each call would count twice.
type content struct {
	buildID string
	inode   uint64
	size    int64
	kind    string
}

// library is one file, with or without probes in it.
type library struct {
	tracer.Library
	id     identity
	link   io.Closer // nil: no probes
	since  uint64    // uptime when it got its probes, in ticks
	named  bool      // its name says that it should have what we probe
	stays  bool      // it is installed: the next process will use it
	users  int
	unused time.Time // since when; zero: it is used
	last   bool      // all processes are looked at once more before its probes go
	denied bool
	retry  time.Time // when to try again; zero: never
	delay  time.Duration
}

func newDiscovery(o Options, k attacher) *discovery {
	d := &discovery{
		o: o, kernel: k,
		processes: map[uint32]*process{},
		files:     map[fileKey]*library{},
		libraries: map[identity]*library{},
		hanging:   make(chan struct{}, maxHanging),
		silent:    make(chan struct{}, maxSilent),
	}
	d.started, _ = target.ReadUptime(o.Proc) // without it no process counts as older
	return d
}

// scan looks at the processes that are due. It returns whether one has gone that had a
// library of ours.
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
		// New, or the number may be another's by now.
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
	return gone
}

// meet returns the process of this number, a fresh one if another had it before; nil if
// there is none.
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
	p.Name = id.Name // exec changes it
	return p
}

// look finds the libraries that a process has mapped now.
func (d *discovery) look(p *process, now time.Time, uptime uint64) {
	age := time.Duration(max(uptime, p.Start)-p.Start) * time.Second / ticksPerSec
	p.next = now.Add(min(age/lookYoung, lookAgain))
	maps, err := d.maps(p)
	if errors.Is(err, errSilent) { // what it had it still has, as far as we know
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
		// What it called before there were probes, nobody saw. It had the library then,
		// unless it began later or did not have it when it was looked at later.
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
	if cuda { // NCCL may be linked into the program itself
		exe := target.Executable(d.o.Proc, p.PID)
		if i := slices.IndexFunc(maps, func(m target.Mapping) bool { return m.Path == exe }); i >= 0 {
			add(maps[i], tracer.LibraryNCCL, false)
		}
	}
	p.looked = uptime
	d.use(p, libraries)
}

// use says which libraries a process has from now on.
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

// sweep takes probes away from libraries that no process has mapped for a while. A link
// holds the mount of the file: that of a container that ended should go.
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
			// All were looked at and none had it.
			d.drop(l)
			delete(d.files, key)
		case now.Sub(l.unused) >= unusedFor:
			l.last = true
		}
	}
}

// drop takes the probes of a library away.
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

// source is where a library is found.
type source struct {
	key  fileKey
	path string
	open func() (*target.File, error)
}

// library returns the library behind a source, with probes in it if it can have any; nil
// if there are too many.
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

// probe reads the file behind a source and puts probes on it. If it turns out to be a
// library that is known by another name, that one is returned.
func (d *discovery) probe(s source, l *library) (known *library, err error) {
	f, img, err := d.read(s, wantedOf(l.Kind))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	id := identity{content{img.BuildID, f.Inode, f.Size, l.Kind}, f.Device, f.Overlay}
	if known := d.same(id); known != nil {
		return known, nil
	}
	if len(d.libraries) >= maxLibraries {
		return nil, fmt.Errorf("cannot probe %s: %d libraries are already", l.Path, maxLibraries)
	}
	l.id, l.BuildID = id, img.BuildID
	points := d.points(l, img)
	if len(points) == 0 {
		if l.Skipped > 0 {
			l.Problem = "a probe would cost a single step in each of its functions"
		} else if l.named {
			l.Problem = "it has none of the functions we know"
		}
		d.libraries[id] = l
		return l, nil
	}
	// By our own descriptor the kernel finds the file, whatever happens to the process.
	link, err := d.kernel.Attach(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), points)
	if err != nil {
		return nil, fmt.Errorf("cannot probe %s: %w", l.Path, err)
	}
	l.link, l.Probes = link, len(points)
	d.attached++
	for _, p := range d.processes { // it could not be probed when they were looked at
		p.older = p.older || l.Kind == tracer.LibraryCUDA && slices.Contains(p.libraries, l)
	}
	l.since, _ = target.ReadUptime(d.o.Proc)
	d.libraries[id] = l
	return l, nil
}

// same returns the library that a file is, nil if it is none that we know.
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

// close takes all probes away.
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
