//go:build linux

// Package gaudi reads Intel Gaudi accelerators. Identity, status, clock and resets come
// from the sysfs files of the kernel driver, habanalabs; everything else comes from Intel's
// management library, libhlml, called without cgo. The library is optional, and so is each
// of its functions: without them the values are absent.
//
// The library needs access to /dev/accel. Processes of other users need root or
// CAP_SYS_PTRACE. The driver's hwmon is not read: the meaning of its channels depends on
// the firmware, and each read costs the firmware some milliseconds. Per-port traffic is not
// read either, see readPorts.
package gaudi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
	"github.com/gpumeter/gpumeter/internal/dlopen"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// Options configure a Reader.
type Options struct {
	// Library is the path of libhlml.so. Empty: search below Root.
	Library string
	// LibraryDirs are searched before the usual directories.
	LibraryDirs []string
	// Root is where the host's file system is mounted; empty means /.
	Root string
	// Machine identifies this machine in the UUIDs of devices without one of their own; see
	// device.Derive.
	Machine string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

func (o Options) root() string { return cmp.Or(o.Root, "/") }

func (o Options) dir(path ...string) sysfs.Dir { return sysfs.Dir(o.root()).Join(path...) }

// Reader reads every accelerator that the driver lists.
type Reader struct {
	opts Options
	lib  *vendorlib.Library // nil: none

	// mu is held for reading while HLML is called, and for writing while it is initialized
	// or closed and while accelerators get their handles. Writers only use TryLock: a call
	// that hangs in the driver must not block any other.
	mu      sync.RWMutex
	aips    map[string]*aip // by PCI address
	open    bool            // the library is initialized
	libErr  error           // why there is no library, or why it is not initialized
	begun   time.Time       // when the library was last initialized
	stale   atomic.Bool     // an accelerator was lost in this session
	current users
}

// Open returns a Reader. The error is device.ErrAbsent on a machine without an accelerator
// or its driver. A missing or broken library is not an error.
func Open(_ context.Context, o Options) (*Reader, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if len(nodes(o)) == 0 {
		return nil, fmt.Errorf("no Gaudi accelerator in /sys/class/accel: %w", device.ErrAbsent)
	}
	r := &Reader{opts: o, aips: map[string]*aip{}, current: users{opts: o}}
	if r.lib, r.libErr = openLibrary(o); r.lib != nil {
		r.init()
	}
	return r, nil
}

// init starts a library session. The caller holds mu or is the only user of r.
func (r *Reader) init() {
	code := ret(r.lib.Get("hlml_init").Fn.Call())
	r.open, r.libErr, r.begun = code == success || code == errAlreadyInitialized, nil, r.opts.Now()
	if !r.open {
		r.libErr = fmt.Errorf("cannot initialize %s: %w", r.lib.Path(), code)
	}
	r.stale.Store(false)
}

// shutdown ends the session. The accelerators stay known, without a handle.
func (r *Reader) shutdown() {
	for _, a := range r.aips {
		a.bind(nil, 0)
	}
	if s := r.lib.Get("hlml_shutdown"); s.Fn.OK() && r.open {
		s.Fn.Call()
	}
	r.open = false
}

// Close implements device.Reader. It also unloads the library, so that the next Open finds
// an upgraded one.
func (r *Reader) Close() error {
	if r.lib == nil {
		return nil
	}
	if err := r.lock(context.Background(), 5*time.Second); err != nil {
		return fmt.Errorf("cannot close the Gaudi library: %w", err)
	}
	defer r.mu.Unlock()
	r.shutdown()
	return r.lib.Close()
}

// lock takes mu for writing without queueing, which would block new readers.
func (r *Reader) lock(ctx context.Context, patience time.Duration) error {
	return vendorlib.Lock(ctx, &r.mu, patience)
}

// node is one accelerator in the driver's class.
type node struct {
	dir    sysfs.Dir // directory of its attributes
	pci    sysfs.Dir // directory of its PCI device
	file   string    // path of its device file
	name   string    // accel3, or hl3 on drivers before Linux 6.2
	number int
}

// nodes returns the driver's accelerators by number. The accel class also contains other
// drivers' devices and the control files of this driver.
func nodes(o Options) []node {
	var list []node
	for _, d := range o.dir("sys/class/accel").Glob("accel[0-9]*") {
		if n, err := strconv.Atoi(strings.TrimPrefix(d.Base(), "accel")); err == nil && ours(d.Join("device")) {
			list = append(list, node{d.Join("device"), d.Join("device"), "/dev/accel/" + d.Base(), d.Base(), n})
		}
	}
	for _, d := range o.dir("sys/class/habanalabs").Glob("hl[0-9]*") {
		if n, err := strconv.Atoi(strings.TrimPrefix(d.Base(), "hl")); err == nil && ours(d) {
			list = append(list, node{d, d.Join("device"), "/dev/" + d.Base(), d.Base(), n})
		}
	}
	return list
}

// ours reports whether a device belongs to the habanalabs driver, by attributes that no
// other driver has.
func ours(dir sysfs.Dir) bool {
	return dir.Join("device_type").Exists() && dir.Join("status").Exists()
}

// address returns the PCI address of an accelerator, or "" if it is unknown.
func (n node) address() string {
	s, _ := n.dir.Text("pci_addr") // on failure the directory name provides it
	if a := parseAddress(s); a != "" {
		return a
	}
	s, _ = sysfs.Dir(filepath.Dir(string(n.pci))).Link("device")
	return parseAddress(s)
}

// Devices implements device.Reader. HLML is called concurrently with the accelerators' own
// calls, and only for accelerators that have no handle yet: one that hangs costs a
// discovery, not the readings of the others.
func (r *Reader) Devices(ctx context.Context) ([]device.Device, error) {
	if err := r.renew(ctx); err != nil {
		return nil, err
	}
	r.mu.RLock()
	found, errs := r.discover()
	r.mu.RUnlock()
	if err := r.lock(ctx, time.Minute); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	if r.libErr != nil && !errors.Is(r.libErr, device.ErrAbsent) {
		errs = append(errs, r.libErr)
	}
	return r.adopt(found, len(errs) > 0), errors.Join(errs...)
}

// renew restarts the library session if an accelerator was lost or the last start failed,
// at most once a minute, so that an accelerator that stays lost does not restart it at
// every discovery.
func (r *Reader) renew(ctx context.Context) error {
	if r.lib == nil {
		return nil
	}
	if err := r.lock(ctx, time.Minute); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if r.open && (!r.stale.Load() || r.opts.Now().Sub(r.begun) < time.Minute) {
		return nil
	}
	r.shutdown()
	r.init()
	return nil
}

// sighting is the result of a discovery for one accelerator.
type sighting struct {
	node
	id     device.ID
	serial string
	handle uintptr
}

// discover returns every accelerator that can be identified. The caller holds mu for
// reading.
func (r *Reader) discover() ([]sighting, []error) {
	var (
		found   []sighting
		errs    []error
		handles map[string]uintptr
	)
	for _, n := range nodes(r.opts) {
		pci := n.address()
		if pci == "" {
			errs = append(errs, fmt.Errorf("%s has no PCI address", n.name))
			continue
		}
		known := r.aips[pci]
		if known != nil && known.node == n && (known.Handle != 0 || !r.open) && !known.gone.Load() {
			found = append(found, sighting{n, known.id, known.serial, known.Handle})
			continue
		}
		status := n.status()
		s := sighting{node: n}
		if r.open && answers(status) {
			if handles == nil {
				var err error
				if handles, err = r.handles(); err != nil {
					errs = append(errs, err)
				}
			}
			s.handle = handles[pci]
		}
		switch {
		case s.handle == 0 && known != nil && known.node == n:
			s.id, s.serial = known.id, known.serial // unchanged
		case r.open && (status == inReset || status == inSoftReset):
			errs = append(errs, fmt.Errorf("%s is being reset and cannot be identified yet", n.name))
			continue
		default:
			if err := r.identify(&s, pci, known); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", n.name, err))
			}
		}
		found = append(found, s)
	}
	return found, errs
}

// status returns the driver's status code. If it cannot be read, the accelerator is assumed
// to work.
func (n node) status() float64 {
	s, err := n.dir.Text("status")
	if err != nil {
		return operational
	}
	return parseStatus(s)
}

// answers reports whether the firmware can be queried in this status. During a reset the
// driver rejects calls, or a call may wait for its end.
func answers(status float64) bool { return status == operational || status == inCreation }

// handles returns HLML's handles by PCI address. Its order differs from the driver's.
func (r *Reader) handles() (map[string]uintptr, error) {
	c := &vendorlib.Caller{Lib: r.lib}
	var count uint32
	if code := ret(c.Try("hlml_device_get_count", 0, uintptr(unsafe.Pointer(&count)))); code != success {
		return nil, fmt.Errorf("cannot count accelerators: %w", code)
	}
	const most = 256 // the driver's limit
	handles := map[string]uintptr{}
	for i := range min(count, most) {
		c := &vendorlib.Caller{Lib: r.lib}
		var info pciInfo
		if !c.Do("hlml_device_get_handle_by_index", 0, uintptr(i), uintptr(unsafe.Pointer(&c.Handle))) || c.Handle == 0 {
			continue // this accelerator only has the values from sysfs
		}
		if c.Do("hlml_device_get_pci_info", 0, c.Handle, uintptr(unsafe.Pointer(&info))) {
			handles[parseAddress(dlopen.String(info.busID[:]))] = c.Handle
		}
	}
	delete(handles, "")
	return handles, nil
}

// identify fills in the identity of the accelerator, from HLML as far as it answers. The
// known accelerator in this slot keeps its identity unless HLML reports another one.
func (r *Reader) identify(s *sighting, pci string, known *aip) error {
	name, uuid := "", ""
	var err error
	if s.handle != 0 {
		c := &vendorlib.Caller{Lib: r.lib, Handle: s.handle}
		name, uuid, s.serial = c.Text("hlml_device_get_name"), c.Text("hlml_device_get_uuid"), c.Text("hlml_device_get_serial")
		err = c.End()
		if c.Fatal() != nil {
			s.handle = 0
		}
	}
	if known != nil && known.node == s.node && (s.serial == known.serial || s.serial == "" && uuid == "") {
		s.id, s.serial = known.id, known.serial
		return err
	}
	if serial := device.Serial(s.serial); uuid == "" && serial != "" {
		uuid = Facts.Name + "-" + serial
	}
	if uuid == "" {
		uuid = device.Derive(Facts.Name, r.opts.Machine, pci)
	}
	s.id = device.ID{Vendor: Facts.Name, UUID: uuid, Index: s.number, Model: s.model(name), PCI: pci}
	return err
}

// model returns the marketing name, such as Intel Gaudi2 HL-225.
func (n node) model(name string) string {
	deviceType, _ := n.dir.Text("device_type") // on failure the type is unknown
	pciID, _ := n.pci.Text("device")
	words := []string{"Intel"}
	if f := family(pciID, deviceType); f != "" {
		words = append(words, strings.ToUpper(f[:1])+f[1:])
	}
	if name != "" {
		words = append(words, name)
	}
	return strings.Join(words, " ")
}

// adopt applies the result of discover: it binds the accelerators that were found, known
// ones to their existing Device, and drops the others unless the discovery was partial. The
// caller holds mu.
func (r *Reader) adopt(found []sighting, partial bool) []device.Device {
	devices := make([]device.Device, 0, len(found))
	seen := map[string]*aip{}
	for _, s := range found {
		a := r.aips[s.id.PCI]
		if a == nil || a.id != s.id || a.node != s.node {
			a = &aip{r: r, node: s.node, id: s.id, serial: s.serial}
		}
		if a.gone.Swap(false) || a.Handle != s.handle {
			a.bind(r.lib, s.handle)
		}
		a.Forget() // unsupported queries may have become supported
		devices = append(devices, a)
		seen[s.id.PCI] = a
	}
	for pci, a := range r.aips {
		switch {
		case seen[pci] != nil:
		case partial:
			seen[pci] = a
		default:
			a.bind(nil, 0)
		}
	}
	r.aips = seen
	return devices
}
