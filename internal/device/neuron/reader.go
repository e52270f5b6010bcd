//go:build linux

// Package neuron reads AWS Inferentia and Trainium devices and their NeuronCores from the
// sysfs files of the Neuron driver. Writing to these files clears counters or resets the
// device, so every file is opened read-only.
//
// The driver does not report how busy a core is. The output of AWS's neuron-monitor does,
// if its lines are written to a file or socket that is passed in Options.Monitor; this
// package does not run it. On some images the driver's files need root, and processes of
// other users need root or CAP_SYS_PTRACE.
package neuron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	// Monitor is a file that neuron-monitor's lines are written to, or a unix socket that
	// sends them; empty means none. The path is not relative to Root.
	Monitor string
	// Machine identifies this machine in the UUIDs of devices without one of their own; see
	// device.Derive.
	Machine string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	o.Root = cmp.Or(o.Root, "/")
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Reader reads every Neuron device of the machine.
type Reader struct {
	opts    Options
	monitor *monitor // nil: none
	users   shared[users]
	heard   shared[hearing]

	mu    sync.Mutex
	chips map[string]*chip // by UUID
	cores map[string]*core
}

// Open returns a Reader. The error is device.ErrAbsent on a machine without a device.
func Open(_ context.Context, o Options) (*Reader, error) {
	o = o.withDefaults()
	if len(folders(o.Root)) == 0 {
		return nil, device.ErrAbsent
	}
	r := &Reader{opts: o}
	if o.Monitor != "" {
		r.monitor = &monitor{path: o.Monitor, now: o.Now}
	}
	return r, nil
}

// Close implements device.Reader.
func (r *Reader) Close() error {
	if r.monitor != nil {
		r.monitor.close()
	}
	return nil
}

// Devices implements device.Reader. It returns each device followed by its cores.
func (r *Reader) Devices(context.Context) ([]device.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []device.Device{}
	chips, cores := map[string]*chip{}, map[string]*core{}
	var errs []error
	for _, dir := range folders(r.opts.Root) {
		s, err := identify(r.opts.Root, r.opts.Machine, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dir.Base(), err))
		}
		if chips[s.id.UUID] != nil {
			errs = append(errs, fmt.Errorf("%s has the serial number of %s", dir.Base(), chips[s.id.UUID].dir.Base()))
			continue
		}
		c := r.chips[s.id.UUID]
		if c == nil || !c.equal(s) {
			c = &chip{r: r, sighting: s}
		}
		chips[s.id.UUID] = c
		list = append(list, c)
		for i := range s.cores {
			p := r.cores[s.coreID(i).UUID]
			if p == nil || p.chip != c {
				p = &core{r: r, chip: c, place: i, id: s.coreID(i), files: s.cores[i]}
			}
			cores[p.id.UUID] = p
			list = append(list, p)
		}
	}
	r.chips, r.cores = chips, cores
	return list, errors.Join(errs...)
}

// folders returns the driver's directory of each device, by number.
func folders(root string) []sysfs.Dir {
	dirs := sysfs.Dir(root).Join("sys/devices/virtual/neuron_device").Glob("neuron[0-9]*")
	return slices.DeleteFunc(dirs, func(d sysfs.Dir) bool { _, ok := numbered(d.Base(), "neuron"); return !ok })
}

// numbered returns N in a name such as neuronN.
func numbered(name, prefix string) (int, bool) {
	s, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.Atoi(s)
	return n, ok && err == nil && n >= 0 && n < 4096
}

// sighting is the result of a discovery for one device. It is immutable.
type sighting struct {
	id    device.ID
	dir   sysfs.Dir
	info  device.Info
	alias []string
	cores []coreFiles
}

// coreFiles are the files of one NeuronCore that a Read uses. Listing directories costs
// more than reading the files, and which files exist depends only on the driver version.
type coreFiles struct {
	dir      sysfs.Dir
	number   int
	memory   []string // relative to dir; their sum is the memory in use
	statuses []string // names of execution results
	// Counters relative to dir; empty: none.
	operations, resets, failedResets string
}

// Upper bounds on the files of one kind. A driver has about a dozen.
const (
	maxFiles = 64
	maxCores = 64
)

// identify reads what does not change while the driver is loaded.
func identify(root, machine string, dir sysfs.Dir) (sighting, error) {
	n, _ := numbered(dir.Base(), "neuron")
	var errs []error
	text := func(d sysfs.Dir, name string) string {
		s, err := d.Text(name)
		if err != nil && !sysfs.Absent(err) {
			errs = append(errs, err)
		}
		return s
	}
	arch := dir.Join("info/architecture")
	s := sighting{dir: dir, id: device.ID{
		Vendor: Facts.Name, Index: n, Model: cmp.Or(text(arch, "device_name"), "Neuron device"), UUID: uuid(machine, n, text(dir, "info/serial_number")),
	}}
	s.info.Architecture = text(arch, "arch_type")
	s.info.Driver = text(sysfs.Dir(root).Join("sys/module/neuron"), "version")
	index := strconv.Itoa(n)
	// Schedulers refer to both devices and cores by a bare number; the resource name
	// distinguishes them.
	s.alias = []string{dir.Base(), "aws.amazon.com/neuron/" + index, "aws.amazon.com/neurondevice/" + index}
	for _, d := range dir.Glob("neuron_core[0-9]*") {
		if number, ok := numbered(d.Base(), "neuron_core"); ok && len(s.cores) < maxCores {
			s.cores = append(s.cores, findCore(d, number))
		}
	}
	return s, errors.Join(errs...)
}

// uuid returns a stable identifier. Some drivers report no serial number, or zero.
func uuid(machine string, n int, serial string) string {
	if serial = device.Serial(serial); serial != "" {
		return Facts.Name + "-" + strings.ToLower(serial)
	}
	return device.Derive(Facts.Name, machine, strconv.Itoa(n))
}

func findCore(d sysfs.Dir, number int) coreFiles {
	c := coreFiles{dir: d, number: number}
	below := func(pattern string) (names []string) {
		for _, f := range d.Glob(pattern) {
			names = append(names, strings.TrimPrefix(string(f), string(d)+"/"))
		}
		return names[:min(len(names), maxFiles)]
	}
	// The sum over all kinds, which some drivers do not provide.
	if c.memory = below("stats/memory_usage/device_mem/total"); c.memory == nil {
		c.memory = below("stats/memory_usage/device_mem/*/total")
	}
	for _, f := range below("stats/status/*/total") {
		c.statuses = append(c.statuses, sysfs.Dir(f).Join("..").Base())
	}
	// A counter is a directory with a file total, although AWS's guide shows a file.
	counter := func(name string) string {
		name = "stats/other_info/" + name
		for _, f := range []string{name + "/total", name} {
			if d.Join(f).Exists() {
				return f
			}
		}
		return ""
	}
	c.operations, c.resets, c.failedResets = counter("flop_count"), counter("reset_req_count"), counter("reset_fail_count")
	return c
}

func (s sighting) equal(o sighting) bool {
	return s.id == o.id && s.dir == o.dir && s.info == o.info && slices.Equal(s.alias, o.alias) &&
		slices.EqualFunc(s.cores, o.cores, func(a, b coreFiles) bool {
			return a.dir == b.dir && slices.Equal(a.memory, b.memory) && slices.Equal(a.statuses, b.statuses) &&
				a.operations == b.operations && a.resets == b.resets && a.failedResets == b.failedResets
		})
}

// coreID returns the identity of the core at a place.
func (s sighting) coreID(place int) device.ID {
	id := s.id
	id.Parent, id.Profile = s.id.UUID, "neuroncore"
	id.UUID = fmt.Sprintf("%s-nc%d", s.id.UUID, s.cores[place].number)
	return id
}

// shared is a value that all devices need and one of them computes. It is computed without
// holding the lock: a computation that hangs must not block the other devices.
type shared[T any] struct {
	mu   sync.Mutex
	last T
	at   time.Time
	busy chan struct{} // closed when the computation in progress is done
}

// sharedPatience is how long a device waits for a computation in progress.
const sharedPatience = 100 * time.Millisecond

// get returns the last value, recomputed if it is older than maxAge.
func (s *shared[T]) get(ctx context.Context, now func() time.Time, maxAge time.Duration, renew func() T) T {
	s.mu.Lock()
	if busy := s.busy; busy != nil {
		s.mu.Unlock()
		patience := time.NewTimer(sharedPatience)
		defer patience.Stop()
		select {
		case <-busy:
		case <-patience.C:
		case <-ctx.Done():
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.last
	}
	if age := now().Sub(s.at); !s.at.IsZero() && age >= 0 && age < maxAge {
		defer s.mu.Unlock()
		return s.last
	}
	done := make(chan struct{})
	s.busy = done
	s.mu.Unlock()
	var value T
	got := false
	defer func() { // also after a panic
		s.mu.Lock()
		defer s.mu.Unlock()
		if got {
			s.last, s.at = value, now()
		}
		s.busy = nil
		close(done)
	}()
	value = renew()
	got = true
	return value
}
