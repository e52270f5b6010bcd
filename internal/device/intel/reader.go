//go:build linux

// Package intel reads Intel's discrete GPUs (Data Center GPU Flex and Max, Arc) from the
// files of the xe and i915 kernel drivers: sysfs, hwmon and, for processes, fdinfo in
// procfs. Integrated GPUs are not supported.
//
// It needs no library; Level Zero is deliberately not used. Utilization and used memory are
// sums over all processes, so they need the host's PID namespace and, for other users'
// processes, root or CAP_SYS_PTRACE; everything else needs no privilege. A GPU that the
// kernel has put to sleep is not woken, which reading almost any of its files would do.
package intel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
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
	// Machine identifies this machine in the UUIDs of devices without one of their own; see
	// device.Derive.
	Machine string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Reader reads every discrete GPU that is bound to the xe or i915 driver.
type Reader struct {
	opts Options
	sys  sysfs.Dir
	proc sysfs.Dir
	scan *scanner

	mu   sync.Mutex // guards gpus; no device is read while it is held
	gpus map[string]*gpu
}

// Open looks for GPUs. The error is device.ErrAbsent if there is none.
func Open(_ context.Context, o Options) (*Reader, error) {
	r := newReader(o)
	if found, err := r.discover(); len(found) == 0 {
		if err != nil {
			return nil, fmt.Errorf("%w: %w", device.ErrAbsent, err)
		}
		return nil, device.ErrAbsent
	}
	return r, nil
}

func newReader(o Options) *Reader {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Root == "" {
		o.Root = "/"
	}
	root := sysfs.Dir(o.Root)
	r := &Reader{opts: o, sys: root.Join("sys"), proc: root.Join("proc"), gpus: map[string]*gpu{}}
	r.scan = newScanner(string(r.proc), o.Now)
	return r
}

// Close implements device.Reader. No file stays open.
func (r *Reader) Close() error { return nil }

// sighting is the result of a discovery for one GPU. Two equal sightings are the same GPU
// with the same driver.
type sighting struct {
	id     device.ID
	driver string    // xe or i915
	chip   uint16    // PCI device id
	dir    sysfs.Dir // of the PCI device
	card   sysfs.Dir // of the DRM device; empty: the driver created none
	render string    // name of the other DRM node, such as renderD128
	parent string    // PCI address of a virtual function's GPU
}

// Devices implements device.Reader. It reads only what the kernel knows without accessing
// the device, so a hung GPU does not hide the others.
func (r *Reader) Devices(context.Context) ([]device.Device, error) {
	found, err := r.discover()
	r.name(found)
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.gpus
	r.gpus = make(map[string]*gpu, len(found))
	devices := make([]device.Device, 0, len(found))
	for _, s := range found {
		g := known[s.id.PCI]
		if g == nil || g.sighting != s {
			g = newGPU(r, s)
		}
		r.gpus[s.id.PCI] = g
		devices = append(devices, g)
	}
	return devices, err
}

// discover returns the discrete GPUs by address. A failure on one GPU does not affect the
// others.
func (r *Reader) discover() ([]sighting, error) {
	var found []sighting
	var errs []error
	seen := map[string]bool{}
	add := func(dir, card sysfs.Dir) {
		s, ours, err := look(dir, card)
		if err != nil {
			errs = append(errs, err)
		}
		if ours && !seen[s.id.PCI] {
			seen[s.id.PCI] = true
			found = append(found, s)
		}
	}
	for _, card := range r.sys.Glob("class/drm/card[0-9]*") {
		if strings.Contains(card.Base(), "-") {
			continue // card0-DP-1 is a connector
		}
		add(resolve(card.Join("device")), card)
	}
	// For a GPU that failed to start, the driver creates no DRM device, only this file.
	for _, file := range r.sys.Glob("bus/pci/drivers/xe/*/survivability_mode") {
		add(resolve(sysfs.Dir(filepath.Dir(string(file)))), "")
	}
	slices.SortFunc(found, func(a, b sighting) int { return byAddress(a.id.PCI, b.id.PCI) })
	return found, errors.Join(errs...)
}

// byAddress orders PCI addresses. Domains may have more than four digits.
func byAddress(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// resolve returns the target of a link, or the link itself if it is dangling.
func resolve(d sysfs.Dir) sysfs.Dir {
	if to, err := filepath.EvalSymlinks(string(d)); err == nil {
		return sysfs.Dir(to)
	}
	return d
}

// look identifies a device and reports whether it is a discrete Intel GPU.
func look(dir, card sysfs.Dir) (s sighting, ours bool, err error) {
	text, err := dir.Text("uevent")
	if err != nil {
		if sysfs.Absent(err) {
			return s, false, nil // not a device, or removed
		}
		return s, false, err
	}
	env := parseUevent(text)
	vendor, chip, _ := strings.Cut(env["PCI_ID"], ":")
	driver := env["DRIVER"]
	if vendor != "8086" || driver != "xe" && driver != "i915" {
		return s, false, nil
	}
	n, err := strconv.ParseUint(chip, 16, 16)
	if err != nil || env["PCI_SLOT_NAME"] == "" {
		return s, false, fmt.Errorf("cannot identify %s: PCI_ID %q, PCI_SLOT_NAME %q", dir, env["PCI_ID"], env["PCI_SLOT_NAME"])
	}
	s = sighting{driver: driver, chip: uint16(n), dir: dir, card: card}
	s.id = device.ID{Vendor: Facts.Name, Model: model(s.chip), PCI: strings.ToLower(env["PCI_SLOT_NAME"])}
	for _, d := range dir.Glob("drm/renderD[0-9]*") {
		s.render = d.Base()
	}
	s.parent, _ = dir.Link("physfn") // exists only for a virtual function
	return s, discrete(s.chip, findHwmon(dir) != ""), nil
}

// name completes the identities, which depend on all GPUs. Indexes follow the PCI
// addresses, as in Intel's own tools.
func (r *Reader) name(found []sighting) {
	index := map[string]int{}
	for i := range found {
		if found[i].parent == "" {
			index[found[i].id.PCI] = len(index)
		}
	}
	next := len(index)
	for i := range found {
		s := &found[i]
		s.id.UUID = r.uuid(s.id.PCI)
		at, ok := index[s.id.PCI]
		if s.parent != "" {
			if at, ok = index[s.parent]; ok {
				s.id.Parent, s.id.Profile = r.uuid(s.parent), "vf"
			}
		}
		if !ok { // a virtual function whose GPU has another driver counts as a GPU
			at, next = next, next+1
		}
		s.id.Index = at
	}
}

// uuid returns a stable identifier. Intel's cards have none in sysfs; Level Zero's UUID is
// also derived from the address.
func (r *Reader) uuid(pci string) string {
	return device.Derive(Facts.Name, r.opts.Machine, pci)
}

func parseUevent(s string) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[k] = v
		}
	}
	return env
}
