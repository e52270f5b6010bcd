package probe

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// lease is how long kept probes go on without an agent: a restart that pulls an image takes minutes. After
// that they do nothing, and the next agent begins anew.
const lease = 10 * time.Minute

// keeper is a folder on a bpf file system that keeps maps and links for the next agent. It has one folder
// per object and options, because what another version made is of no use. There, maps have their own names,
// the links of a library are described by a kept, and those of tracepoints have the names of their programs.
type keeper struct {
	root string
	dir  string // below root; empty before the maps are kept
	lock *os.File

	mu   sync.Mutex
	left map[string][]kept // links of the previous agent that nobody has asked for yet, by content
}

// kept is the name of a kept link.
type kept struct {
	path    string
	content string // hash of the file's content and of the points
	device  uint64
	overlay bool
	since   uint64 // uptime in ms
	entry   bool   // on the entry of a function, or on entry and return
	number  int
	of      int // how many links the library has
}

// Identity is what a file is recognized by after a restart.
type Identity struct {
	Content string // of the file and its copies
	Device  uint64 // tells copies apart
	Overlay bool   // the device is that of a mount, below which the file may have another
}

func (k kept) name() string {
	overlay, entry := 0, 0
	if k.overlay {
		overlay = 1
	}
	if k.entry {
		entry = 1
	}
	return fmt.Sprintf("library_%s_%x_%d_%d_%d_%d_%d", k.content, k.device, overlay, k.since, entry, k.number, k.of)
}

func parseKept(path string) (k kept, ok bool) {
	var overlay, entry int
	name := filepath.Base(path)
	rest, ok := strings.CutPrefix(name, "library_")
	if !ok {
		return k, false
	}
	content, rest, _ := strings.Cut(rest, "_")
	n, err := fmt.Sscanf(rest, "%x_%d_%d_%d_%d_%d", &k.device, &overlay, &k.since, &entry, &k.number, &k.of)
	k.path, k.content, k.overlay, k.entry = path, content, overlay == 1, entry == 1
	return k, err == nil && n == 6 && k.name() == name
}

// openKeeper locks the folder, which must be on a bpf file system and ours: in some of them any user may make
// links and folders. A second agent would take the first one's events and forget its processes.
func openKeeper(root string) (*keeper, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(root), &st); err != nil {
		return nil, &fs.PathError{Op: "statfs", Path: filepath.Dir(root), Err: err}
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return nil, fmt.Errorf("%s is not on a bpf file system", root)
	}
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	lock, err := os.OpenFile(root, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var is unix.Stat_t
	if err := unix.Fstat(int(lock.Fd()), &is); err != nil || int(is.Uid) != os.Geteuid() || is.Mode&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("%s must belong to the user of the agent, and nobody else may write to it", root), err, lock.Close())
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another agent: %w", root, err), lock.Close())
	}
	return &keeper{root: root, lock: lock, left: map[string][]kept{}}, nil
}

// folder returns where maps of this object, mode and size are kept.
func (k *keeper) folder(o Options, mode string) string {
	h := sha256.New()
	h.Write(_KernelBytes)
	fmt.Fprint(h, mode, o.NoTaskStorage, o.pace(mode), o.sizes(), kernelVersion()) // map iteration is sorted by fmt
	return filepath.Join(k.root, fmt.Sprintf("%x", h.Sum(nil)[:8]))
}

// pinName is the name of a map's file: dots are reserved.
func pinName(name string) string { return "map_" + strings.ReplaceAll(name, ".", "-") }

// maps returns the kept maps, or nil.
func (k *keeper) maps(dir string, names []string) map[string]*ebpf.Map {
	all := map[string]*ebpf.Map{}
	for _, name := range names {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, pinName(name)), nil)
		if err != nil {
			closeMaps(all)
			return nil
		}
		all[name] = m
	}
	return all
}

func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		_ = m.Close() // a descriptor that nothing was written to
	}
}

// pin keeps maps in a folder that appears when all of them are there.
func (k *keeper) pin(dir string, all map[string]*ebpf.Map) error {
	if err := errors.Join(removeFolder(dir), removeFolder(dir+"-new"), os.Mkdir(dir+"-new", 0o700)); err != nil {
		return err
	}
	for name, m := range all {
		if err := m.Pin(filepath.Join(dir+"-new", pinName(name))); err != nil {
			return errors.Join(fmt.Errorf("cannot keep the map %s: %w", name, err), removeFolder(dir+"-new"))
		}
	}
	return os.Rename(dir+"-new", dir)
}

// find lists the links that the previous agent has left.
func (k *keeper) find() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	names, err := os.ReadDir(k.dir)
	for _, e := range names {
		if l, ok := parseKept(filepath.Join(k.dir, e.Name())); ok {
			k.left[l.content] = append(k.left[l.content], l)
		}
	}
	return err
}

// take returns the links of a library that the previous agent has left; nil if they are not complete.
func (k *keeper) take(id Identity, content string) []kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	var mine []kept
	k.left[content] = slices.DeleteFunc(k.left[content], func(l kept) bool {
		match := l.device == id.Device || l.overlay || id.Overlay
		if match {
			mine = append(mine, l)
		}
		return match
	})
	slices.SortFunc(mine, func(a, b kept) int { return a.number - b.number })
	for i, l := range mine {
		if l.number != i || l.of != len(mine) || l.since != mine[0].since || l.device != mine[0].device {
			for _, l := range mine {
				_ = os.Remove(l.path) // detaches it; what cannot be removed is reported when all is
			}
			return nil
		}
	}
	return mine
}

// sweep removes the links that nobody asked for.
func (k *keeper) sweep() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, links := range k.left {
		for _, l := range links {
			errs = append(errs, os.Remove(l.path))
		}
	}
	clear(k.left)
	return errors.Join(errs...)
}

// close unlocks the folder, and removes all that is kept unless it is left to the next agent.
func (k *keeper) close(leave bool) error {
	var err error
	if !leave {
		err = clearFolder(k.root, "")
		_ = os.Remove(k.root) // unless it has something of others
	}
	return errors.Join(err, unix.Flock(int(k.lock.Fd()), unix.LOCK_UN), k.lock.Close())
}

// ours matches the names of our folders.
var ours = regexp.MustCompile(`^[0-9a-f]{16}(-new)?$`)

// clearFolder removes all our folders below root but one. Others may have something there, too.
func clearFolder(root, but string) error {
	names, err := os.ReadDir(root)
	for _, e := range names {
		if dir := filepath.Join(root, e.Name()); dir != but && e.IsDir() && ours.MatchString(e.Name()) {
			err = errors.Join(err, removeFolder(dir))
		}
	}
	return err
}

// removeFolder removes a folder of kept maps and links, links first: the maps are theirs. A link is detached
// when its file is removed and its last descriptor closed, the latter so that it has happened on return.
func removeFolder(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var links, others []string
	for _, e := range names {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "map_"):
			others = append(others, path)
		case strings.HasPrefix(e.Name(), "library_"), strings.HasPrefix(e.Name(), "on_"):
			links = append(links, path)
		}
	}
	var closing []pinnable
	for _, path := range links {
		fd, open := getObject(path)
		err = errors.Join(err, os.Remove(path))
		if open == nil {
			closing = append(closing, fd)
		}
	}
	err = errors.Join(err, closeAll(closing))
	for _, path := range others {
		err = errors.Join(err, os.Remove(path))
	}
	return errors.Join(err, os.Remove(dir))
}

// Remove removes probes that an agent has left at root for the next one. It fails if an agent is using them.
func Remove(root string) (found bool, err error) {
	if _, err := os.Lstat(root); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	k, err := openKeeper(root)
	if err != nil {
		return true, err
	}
	return true, k.close(false)
}

// objectAttr is the bpf(2) attribute for pins.
type objectAttr struct {
	path      unsafe.Pointer
	fd, flags uint32
}

const (
	objectPin = 6
	objectGet = 7
)

// Pin keeps the object at a path.
func (h handle) Pin(path string) error {
	name, err := unix.ByteSliceFromString(path)
	if err != nil {
		return err
	}
	a := objectAttr{path: unsafe.Pointer(&name[0]), fd: uint32(h)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, objectPin, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(&a)
	if errno != 0 {
		return &fs.PathError{Op: "pin", Path: path, Err: errno}
	}
	return nil
}

func getObject(path string) (handle, error) {
	name, err := unix.ByteSliceFromString(path)
	if err != nil {
		return -1, err
	}
	a := objectAttr{path: unsafe.Pointer(&name[0])}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, objectGet, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(&a)
	if errno != 0 {
		return -1, &fs.PathError{Op: "get", Path: path, Err: errno}
	}
	return handle(fd), nil
}
