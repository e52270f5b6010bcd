//go:build linux

// Package nvidia reads NVIDIA GPUs and MIG instances through the driver's management
// library, libnvidia-ml, without cgo.
//
// It needs the NVIDIA kernel driver and read-write access to /dev/nvidia*; XIDs with
// process names also need a readable /dev/kmsg (root or CAP_SYSLOG). Profiling counters
// need Hopper or later. Every library function is optional: values whose function the
// driver does not have are absent, and nothing else is affected. The package changes no
// setting of a GPU and does not use DCGM or nvidia-smi.
package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
	"github.com/gpumeter/gpumeter/internal/dlopen"
)

// Options configure a Reader.
type Options struct {
	// Library is the path of libnvidia-ml.so.1. Empty: search below Root.
	Library string
	// LibraryDirs are searched before the usual directories.
	LibraryDirs []string
	// Root is where the host's file system is mounted; empty means /.
	Root string
	// NoPCIeThroughput disables the PCIe traffic measurement on GPUs before Hopper, which
	// occupies the driver for 40 ms every 30 s.
	NoPCIeThroughput bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Reader reads every GPU that the driver lists.
type Reader struct {
	opts Options
	lib  *vendorlib.Library

	// mu is held for reading while a device makes calls, and for writing while the library
	// is re-initialized or closed. Writers only use TryLock: a device that hangs in the
	// driver must not block any other.
	mu     sync.RWMutex
	driver string
	gpus   map[string]*gpu // by UUID, including MIG instances
	open   bool
	events eventSet         // of this library session; used only by Events
	stale  atomic.Bool      // a device was lost: re-initialize at the next discovery
	begun  time.Time        // when the library was last initialized
	looks  map[uint32]*look // discoveries in progress or hung, by GPU index

	resume *device.Position // where Events starts; nil: at the end of the log
}

// Open loads and initializes the library. The error is device.ErrAbsent if the machine has
// no NVIDIA hardware or driver.
func Open(_ context.Context, o Options) (*Reader, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Root == "" {
		o.Root = "/"
	}
	lib, err := openLibrary(o)
	if err != nil {
		return nil, err
	}
	r := &Reader{opts: o, lib: lib, gpus: map[string]*gpu{}, looks: map[uint32]*look{}}
	if err := r.init(); err != nil {
		return nil, errors.Join(err, lib.Close())
	}
	return r, nil
}

// init initializes the library, even if no GPU is present.
func (r *Reader) init() error {
	const noGPUsIsFine = 1
	code := errFunctionNotFound
	if s := r.lib.Get("nvmlInitWithFlags"); s.Fn.OK() {
		code = ret(s.Fn.Call(noGPUsIsFine))
	}
	if code == errFunctionNotFound {
		code = ret(r.lib.Get("nvmlInit_v2").Fn.Call())
	}
	if code != success {
		return fmt.Errorf("cannot initialize %s: %w", r.lib.Path(), code)
	}
	r.open, r.begun = true, r.opts.Now()
	r.driver = r.systemText("nvmlSystemGetDriverVersion")
	return nil
}

func (r *Reader) systemText(sym string) string {
	buf := make([]byte, 128)
	if s := r.lib.Get(sym); !s.Fn.OK() || ret(s.Fn.Call(uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))) != success {
		return ""
	}
	return dlopen.String(buf)
}

// Close implements device.Reader. It also unloads the library, so that the next Open finds
// the library of an upgraded driver.
func (r *Reader) Close() error {
	if err := r.lock(context.Background(), 5*time.Second); err != nil {
		return fmt.Errorf("cannot close the NVIDIA library: %w", err)
	}
	defer r.mu.Unlock()
	if r.looking() {
		return fmt.Errorf("cannot close the NVIDIA library: %w", vendorlib.ErrBusy)
	}
	if r.open {
		r.shutdown()
	}
	return r.lib.Close()
}

// shutdown ends the library session. The GPUs stay known, without a handle, so that a
// discovery after the next init finds their existing Device.
func (r *Reader) shutdown() {
	for _, g := range r.gpus {
		g.unbind()
	}
	if s := r.lib.Get("nvmlEventSetFree"); s.Fn.OK() && r.events.handle != 0 {
		s.Fn.Call(r.events.handle)
	}
	r.events = eventSet{}
	if s := r.lib.Get("nvmlShutdown"); s.Fn.OK() {
		s.Fn.Call()
	}
	r.open = false
}

// lock takes mu for writing without queueing, which would block new readers.
func (r *Reader) lock(ctx context.Context, patience time.Duration) error {
	return vendorlib.Lock(ctx, &r.mu, patience)
}

// Devices implements device.Reader. Discovery runs concurrently with the devices' own
// calls, and a GPU that hangs in discovery does not hide the others.
func (r *Reader) Devices(ctx context.Context) ([]device.Device, error) {
	if err := r.lock(ctx, time.Minute); err != nil {
		return nil, err
	}
	anew, err := r.reinitialize()
	if err != nil {
		r.mu.Unlock()
		return nil, err
	}
	if anew {
		// No device has a handle until adopt. Reads wait for the lock instead of reporting
		// every GPU as lost.
		defer r.mu.Unlock()
		return r.adopt(r.discover())
	}
	r.mu.Unlock()
	r.mu.RLock()
	found, failed := r.discover()
	r.mu.RUnlock()
	if err := r.lock(ctx, time.Minute); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	return r.adopt(found, failed)
}

// reinitialize restarts the library session if a device was lost or the last start failed,
// and reports whether it did. The caller holds mu.
func (r *Reader) reinitialize() (anew bool, err error) {
	if r.open && !r.stale.Load() {
		return false, nil
	}
	if r.looking() {
		return false, vendorlib.ErrBusy
	}
	if r.open {
		r.shutdown()
	}
	if err := r.init(); err != nil {
		return false, err
	}
	r.stale.Store(false)
	return true, nil
}

// sighting is the result of a discovery for one GPU or MIG instance.
type sighting struct {
	id     device.ID
	handle uintptr
	binding
}

// discover returns every GPU and MIG instance that can be opened, or nil if they cannot
// even be counted. The caller holds mu, at least for reading.
func (r *Reader) discover() ([]sighting, error) {
	c := newCaller(r.lib, 0)
	var count uint32
	if !c.Do("nvmlDeviceGetCount_v2", 0, uintptr(unsafe.Pointer(&count))) {
		return nil, fmt.Errorf("cannot count GPUs: %w", orErr(c.End(), errNotSupported))
	}
	for i := range count {
		if r.looks[i] == nil {
			r.looks[i] = r.look(i)
		}
	}
	found := []sighting{}
	var errs []error
	patience := time.NewTimer(lookPatience)
	defer patience.Stop()
	for i := range count {
		l := r.looks[i]
		select {
		case <-l.done:
		case <-patience.C:
			patience.Reset(0) // the remaining GPUs get no extra time
		}
		select {
		case <-l.done:
			delete(r.looks, i)
			found = append(found, l.found...)
			if l.err != nil {
				errs = append(errs, fmt.Errorf("GPU %d: %w", i, l.err))
			}
		default:
			errs = append(errs, fmt.Errorf("GPU %d: %s has not returned", i, cmp.Or(l.Busy(), "a driver call")))
		}
	}
	return found, errors.Join(errs...)
}

// lookPatience is how long a discovery waits for all GPUs together. A GPU that has to wake
// up takes a second or two.
const lookPatience = 4 * time.Second

// look is the discovery of one GPU. Each runs in its own goroutine, the only goroutines in
// this package besides Events: a GPU that hangs when it is opened must not hide the others.
type look struct {
	caller
	done  chan struct{}
	found []sighting
	err   error
}

// looking reports whether a discovery is still running, in which case the library must not
// be closed. The caller holds mu for writing.
func (r *Reader) looking() bool {
	for i, l := range r.looks {
		select {
		case <-l.done:
			delete(r.looks, i)
		default:
			return true
		}
	}
	return false
}

// look starts the discovery of the GPU at index i and its MIG instances.
func (r *Reader) look(i uint32) *look {
	l := &look{caller: caller{vendorlib.Caller{Lib: r.lib}}, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.found, l.err = l.identify(i)
	}()
	return l
}

func (l *look) identify(i uint32) ([]sighting, error) {
	c := &l.caller
	if !c.Do("nvmlDeviceGetHandleByIndex_v2", 0, uintptr(i), uintptr(unsafe.Pointer(&c.Handle))) {
		return nil, fmt.Errorf("cannot open device: %w", orErr(c.End(), errNotFound))
	}
	id := device.ID{
		Vendor: Facts.Name,
		UUID:   c.Text("nvmlDeviceGetUUID"),
		Index:  int(i),
		Model:  c.Text("nvmlDeviceGetName"),
		PCI:    c.pciAddress(),
	}
	if id.UUID == "" {
		return nil, fmt.Errorf("cannot identify device: %w", orErr(c.End(), errNotSupported))
	}
	mig := c.migEnabled()
	list := []sighting{{id, c.Handle, binding{mig: mig}}}
	if mig {
		for _, p := range c.migInstances() {
			list = append(list, sighting{p.id(id), p.handle, binding{parent: c.Handle, gi: p.gi}})
		}
	}
	return list, nil
}

// adopt applies the result of discover: it binds the GPUs that were found, known ones to
// their existing Device, and drops the others. The caller holds mu.
func (r *Reader) adopt(found []sighting, err error) ([]device.Device, error) {
	// A lost GPU may come back without this library session noticing. A new session
	// interrupts the profiling of the other GPUs, so it is not started at every discovery.
	if errors.Is(err, device.ErrLost) && r.opts.Now().Sub(r.begun) >= 10*time.Minute {
		r.stale.Store(true)
	}
	if found == nil {
		return nil, err
	}
	devices := make([]device.Device, 0, len(found))
	seen := map[string]bool{}
	for _, s := range found {
		g := r.gpus[s.id.UUID]
		if g == nil {
			g = &gpu{r: r}
			r.gpus[s.id.UUID] = g
		}
		g.bind(s)
		devices = append(devices, g)
		seen[s.id.UUID] = true
	}
	for uuid, g := range r.gpus {
		// A device missing from a failed discovery may still exist, unless its parent GPU
		// was seen without it.
		if !seen[uuid] && (err == nil || seen[g.id.Parent]) {
			g.unbind()
			delete(r.gpus, uuid)
		}
	}
	return devices, err
}

// pciAddress returns the address in the form that sysfs uses. NVML uses an eight-digit
// domain.
func (c *caller) pciAddress() string {
	var p pciInfo
	if !c.Do("nvmlDeviceGetPciInfo_v3", 0, c.Handle, uintptr(unsafe.Pointer(&p))) {
		return ""
	}
	s := strings.ToLower(dlopen.String(p.busID[:]))
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) > 4 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return s
}

// orErr returns err, or instead if err is nil.
func orErr(err, instead error) error {
	if err != nil {
		return err
	}
	return instead
}
