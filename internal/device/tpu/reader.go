//go:build linux

// Package tpu reads Google TPUs: the chips from the PCI bus, and their activity from the
// metric service that libtpu runs inside each process that uses them. GKE's TPU device
// plugin is the fallback for processes without that service. Nothing else about a TPU is
// visible from its machine: no power, no temperature, no clock.
//
// Finding the processes needs the host's PID namespace and CAP_SYS_PTRACE. Reaching the
// service of a process in another container needs CAP_SYS_ADMIN to enter its network
// namespace. Without a running process, duty cycle and memory are absent.
package tpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// Options configure a Reader.
type Options struct {
	// Root is where the host's file system is mounted; empty means /.
	Root string
	// Exporter is the URL of the metrics page of GKE's TPU device plugin, used for chips
	// whose process reports nothing. Empty means DefaultExporter, whose absence is not an
	// error; NoExporter disables it.
	Exporter string
	// Machine identifies this machine in the UUIDs of devices without one of their own; see
	// device.Derive.
	Machine string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

const (
	// DefaultExporter is where GKE's TPU device plugin serves its page on each node.
	DefaultExporter = "http://localhost:2112/metrics"
	// NoExporter disables the exporter in Options.
	NoExporter = "off"
)

// Reader reads every TPU chip of the machine.
type Reader struct {
	opts  Options
	http  *exporter
	limit time.Duration // deadline of one request to a server

	mu       sync.Mutex
	chips    map[string]*chip // by PCI address
	order    []*chip
	machine  machine
	services map[serviceKey]*poller[report]
	page     *poller[map[string]values] // nil: not needed so far
	looking  chan struct{}              // closed when the scan in progress ends; nil: none
	looked   time.Time
	closed   bool
}

// machine is the set of processes that use the chips. It is immutable.
type machine struct {
	holders []holder
	denied  int // processes whose files may not be read
	err     error
}

// Open returns a Reader. The error is device.ErrAbsent on a machine without a TPU.
func Open(_ context.Context, o Options) (*Reader, error) {
	o = o.withDefaults()
	found, err := find(o.Root, o.Machine)
	if len(found) == 0 {
		return nil, errors.Join(device.ErrAbsent, err)
	}
	r := &Reader{opts: o, limit: pollLimit, chips: map[string]*chip{}, services: map[serviceKey]*poller[report]{}}
	if o.Exporter != NoExporter {
		r.http = newExporter(cmp.Or(o.Exporter, DefaultExporter))
	}
	return r, nil
}

func (o Options) withDefaults() Options {
	o.Root = cmp.Or(o.Root, "/")
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Devices implements device.Reader. A chip is identified by its address, generation and
// number: if all are unchanged, the Device is the same.
func (r *Reader) Devices(context.Context) ([]device.Device, error) {
	found, err := find(r.opts.Root, r.opts.Machine)
	r.mu.Lock()
	defer r.mu.Unlock()
	devices, order, chips := []device.Device{}, []*chip{}, map[string]*chip{}
	for _, s := range found {
		c := r.chips[s.id.PCI]
		if c == nil || c.id != s.id || !slices.Equal(c.nodes, s.nodes) {
			c = &chip{r: r, sighting: s}
		}
		chips[s.id.PCI] = c
		order = append(order, c)
		devices = append(devices, c)
	}
	if !slices.Equal(order, r.order) {
		r.looked = time.Time{} // the mapping of files to chips has changed
	}
	r.chips, r.order = chips, order
	return devices, err
}

// Close implements device.Reader. It closes every connection.
func (r *Reader) Close() error {
	r.mu.Lock()
	r.closed = true
	ended := make([]<-chan struct{}, 0, len(r.services)+1)
	for _, p := range r.services {
		p.stop()
		ended = append(ended, p.done)
	}
	if r.page != nil {
		r.page.stop()
		ended = append(ended, r.page.done)
	}
	clear(r.services)
	r.page = nil
	r.mu.Unlock()
	for _, done := range ended {
		<-done
	}
	return nil
}

// lookAge is how old a process scan may be for a slow read. All chips are read at about the
// same time, and one scan serves them all.
const lookAge = 5 * time.Second

// lookPatience is how long a chip waits for a scan that another chip started.
const lookPatience = 250 * time.Millisecond

// look finds the processes that use the chips and their services, unless that was done
// within maxAge. It does not hold the lock meanwhile: the files of a process that is stuck
// in the kernel may hang, and that must affect only one chip.
func (r *Reader) look(ctx context.Context, maxAge time.Duration) {
	r.mu.Lock()
	if wait := r.looking; wait != nil {
		r.mu.Unlock()
		patience := time.NewTimer(lookPatience)
		defer patience.Stop()
		select {
		case <-wait:
		case <-patience.C:
		case <-ctx.Done():
		}
		return
	}
	if age := r.opts.Now().Sub(r.looked); !r.looked.IsZero() && age >= 0 && age < maxAge {
		r.mu.Unlock()
		return
	}
	done := make(chan struct{})
	r.looking = done
	chips := r.order
	r.mu.Unlock()

	var m machine
	found := false
	defer func() { // also after a panic
		r.mu.Lock()
		defer r.mu.Unlock()
		if found {
			r.looked = r.opts.Now()
			r.adopt(m)
		}
		r.looking = nil
		close(done)
	}()
	m = findHolders(r.opts.Root, chips)
	found = true
}

// adopt applies the result of a scan: it starts polling new services, and stops polling
// those whose process is gone. The caller holds mu.
func (r *Reader) adopt(m machine) {
	r.machine = m
	if r.closed {
		return
	}
	seen := map[serviceKey]bool{}
	for _, h := range m.holders {
		if h.service == nil {
			continue
		}
		key := h.service.key
		seen[key] = true
		if r.services[key] == nil {
			r.services[key] = newPoller(r.opts.Now, r.limit, h.service.dial())
		}
	}
	for key, p := range r.services {
		if !seen[key] {
			p.stop()
			delete(r.services, key)
		}
	}
}

// exporterPage returns the poller of the exporter, which it starts at first use, or nil if
// the exporter is disabled.
func (r *Reader) exporterPage() *poller[map[string]values] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.page == nil && r.http != nil && !r.closed {
		r.page = newPoller(r.opts.Now, r.limit, r.http)
	}
	return r.page
}

// sighting is the result of a discovery for one chip.
type sighting struct {
	id    device.ID
	gen   generation
	dir   sysfs.Dir
	nodes []string // device files, as seen by processes
	alias []string
}

// generation is one TPU generation.
type generation struct {
	name    string
	perChip int  // devices per chip, as the runtime shows them
	vfio    bool // used through /dev/vfio/<group>, else /dev/accel<N>
}

const deviceV2V3 = 0x0027 // the subsystem distinguishes v2 and v3

var generations = map[uint64]generation{
	0x005e: {"v4", 1, false},
	0x0063: {"v5e", 1, true},
	0x0062: {"v5p", 1, true},
	0x006f: {"v6e", 1, true},
	0x0076: {"7x", 2, true},
}

// oldGenerations maps subsystem ids to generations.
var oldGenerations = map[uint64]generation{
	0x004e: {"v2", 2, false},
	0x004f: {"v3", 2, false},
}

// identify returns the generation of the PCI device at d. Its name is "" if the device is
// not a TPU: Google's network card and disk have the same vendor id.
func identify(d sysfs.Dir) (generation, error) {
	if v, err := d.Text("vendor"); err != nil || v != Facts.PCI {
		return generation{}, nil //nolint:nilerr // a broken device of another vendor is not ours to report
	}
	id, err := d.Uint("device")
	if err != nil {
		return generation{}, err
	}
	if id != deviceV2V3 {
		return generations[id], nil
	}
	sub, err := d.Uint("subsystem_device")
	if err != nil {
		return generation{}, err
	}
	return oldGenerations[sub], nil
}

// find returns the chips on the PCI bus, by the number of their device file.
func find(root, machine string) ([]sighting, error) {
	var found []sighting
	var errs []error
	bus := sysfs.Dir(root).Join("sys/bus/pci/devices").Glob("*")
	slices.Sort(bus) // addresses are hexadecimal: 05 comes before 0a
	for _, d := range bus {
		gen, err := identify(d)
		if err != nil {
			errs = append(errs, fmt.Errorf("PCI device %s: %w", d.Base(), err))
		}
		if gen.name == "" {
			continue
		}
		pci := strings.ToLower(d.Base())
		s := sighting{gen: gen, dir: d, id: device.ID{
			Vendor: Facts.Name, UUID: device.Derive(Facts.Name, machine, pci), Model: "TPU " + gen.name, PCI: pci, Index: -1,
		}}
		if err := s.findNode(); err != nil {
			errs = append(errs, fmt.Errorf("TPU %s: %w", pci, err))
		}
		found = append(found, s)
	}
	number(found)
	return found, errors.Join(errs...)
}
