//go:build linux

// Package gaudi reads Intel Gaudi accelerators: what they are, their status, clock and
// resets through the files of the kernel driver, habanalabs, and the rest through Intel's
// management library, libhlml. The library is optional, and so is each function of it.
//
// The driver's hwmon is not read: which of its channels is what is up to the firmware, and
// each costs it some milliseconds.
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

// Options say where to look.
type Options struct {
	// Library is the path of libhlml.so. Empty: search below Root.
	Library string
	// LibraryDirs are searched before the usual folders.
	LibraryDirs []string
	// Root is where the host's file system is mounted; empty is /.
	Root string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

func (o Options) root() string { return cmp.Or(o.Root, "/") }

func (o Options) dir(path ...string) sysfs.Dir { return sysfs.Dir(o.root()).Join(path...) }

// Reader reads every accelerator the driver shows.
type Reader struct {
	opts Options
	lib  *vendorlib.Library // nil: there is none

	// mu is held for reading while HLML is called, and for writing while it is initialised
	// or closed, and while accelerators get their handles. The writer only ever tries: a
	// call that hangs in the driver must block nobody else.
	mu      sync.RWMutex
	aips    map[string]*aip // by PCI address
	open    bool            // the library is initialised
	libErr  error           // why there is no library, or why it is not initialised
	begun   time.Time       // when it was last initialised
	stale   atomic.Bool     // it lost an accelerator
	current users
}

// Open returns device.ErrAbsent on a machine without accelerator or driver. A library that
// is missing or broken is no reason to fail.
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

// init begins a session of the library. It runs with mu held, or before anybody has r.
func (r *Reader) init() {
	code := ret(r.lib.Get("hlml_init").Fn.Call())
	r.open, r.libErr, r.begun = code == success || code == errAlreadyInitialized, nil, r.opts.Now()
	if !r.open {
		r.libErr = fmt.Errorf("cannot initialise %s: %w", r.lib.Path(), code)
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

// Close implements device.Reader. It also unloads the library, so that an upgraded one is
// what the next Open finds.
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

// lock takes mu for writing without ever queueing for it.
func (r *Reader) lock(ctx context.Context, patience time.Duration) error {
	return vendorlib.Lock(ctx, &r.mu, patience)
}

// node is one accelerator of the driver's class.
type node struct {
	dir    sysfs.Dir // where its attributes are
	pci    sysfs.Dir // its PCI device
	file   string    // its device file
	name   string    // accel3, or hl3 of drivers before Linux 6.2
	number int
}

// nodes returns the driver's accelerators by number. Other drivers are in class accel, too,
// and the control files of ours.
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

// ours reports whether a device is of Habana's driver, by an attribute that no other has.
func ours(dir sysfs.Dir) bool {
	return dir.Join("device_type").Exists() && dir.Join("status").Exists()
}

// address returns the PCI address of an accelerator, empty if it cannot be told.
func (n node) address() string {
	s, _ := n.dir.Text("pci_addr") // the name of the folder says it as well
	if a := parseAddress(s); a != "" {
		return a
	}
	s, _ = sysfs.Dir(filepath.Dir(string(n.pci))).Link("device")
	return parseAddress(s)
}

// Devices implements device.Reader. HLML is asked beside the accelerators' own calls, and
// only for those it was not asked for before: one that hangs costs a discovery, not the
// readings of the others.
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

// renew starts the library's session over if an accelerator was lost in it, or if it could
// not be started the last time. One that stays lost does not make it happen at every
// discovery.
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

// sighting is what a discovery saw of one accelerator.
type sighting struct {
	node
	id     device.ID
	serial string
	handle uintptr
}

// discover returns every accelerator that can be identified. It runs with mu held for
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
			errs = append(errs, fmt.Errorf("%s: it has no PCI address", n.name))
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
			s.id, s.serial = known.id, known.serial // it is what it was
		case r.open && (status == inReset || status == inSoftReset):
			errs = append(errs, fmt.Errorf("%s: it is being reset and does not say yet which one it is", n.name))
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

// status returns the code of the driver's status, of one that cannot be read that of a
// working one: it is asked to find out.
func (n node) status() float64 {
	s, err := n.dir.Text("status")
	if err != nil {
		return operational
	}
	return parseStatus(s)
}

// answers reports whether the firmware of an accelerator in this status can be asked. The
// driver refuses it in a reset, and a call may wait for its end.
func answers(status float64) bool { return status == operational || status == inCreation }

// handles returns HLML's handles by PCI address. Its order is not that of the driver.
func (r *Reader) handles() (map[string]uintptr, error) {
	c := &vendorlib.Caller{Lib: r.lib}
	var count uint32
	if code := ret(c.Try("hlml_device_get_count", 0, uintptr(unsafe.Pointer(&count)))); code != success {
		return nil, fmt.Errorf("cannot count accelerators: %w", code)
	}
	const most = 256 // as the driver has
	handles := map[string]uintptr{}
	for i := range min(count, most) {
		c := &vendorlib.Caller{Lib: r.lib}
		var info pciInfo
		if !c.Do("hlml_device_get_handle_by_index", 0, uintptr(i), uintptr(unsafe.Pointer(&c.Handle))) || c.Handle == 0 {
			continue // its accelerator has the values of sysfs
		}
		if c.Do("hlml_device_get_pci_info", 0, c.Handle, uintptr(unsafe.Pointer(&info))) {
			handles[parseAddress(dlopen.String(info.busID[:]))] = c.Handle
		}
	}
	delete(handles, "")
	return handles, nil
}

// identify fills in what the accelerator is, from HLML as far as it answers. It stays the
// one that is known at this place unless HLML says that it is another.
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
	if uuid == "" && s.serial != "" {
		uuid = Facts.Name + "-" + s.serial
	}
	if uuid == "" {
		machine, _ := r.opts.dir("etc").Text("machine-id") // without one the address is all there is
		uuid = strings.Join([]string{Facts.Name, machine, pci}, "-")
	}
	s.id = device.ID{Vendor: Facts.Name, UUID: uuid, Index: s.number, Model: s.model(name), PCI: pci}
	return err
}

// model returns what people call it, such as Intel Gaudi2 HL-225.
func (n node) model(name string) string {
	deviceType, _ := n.dir.Text("device_type") // then it is not known
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

// adopt takes over what discover returned: it binds what was found, known accelerators to
// their old Device, and forgets the others, unless not all could be seen. It runs with mu
// held.
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
		a.Forget() // what it did not support may have come up since
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
