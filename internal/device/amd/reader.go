//go:build linux

// Package amd reads AMD Instinct and Radeon GPUs and their partitions from the files of the
// amdgpu driver: sysfs (including the firmware's gpu_metrics tables), hwmon, and the
// topology of the compute driver (KFD). Events come from the kernel log.
//
// It needs no ROCm library and no privilege for most values; RAS counters and processes of
// other users may need root, and events need a readable /dev/kmsg (root or CAP_SYSLOG). It
// does not wake a sleeping GPU, and it does not read hardware profiling counters, which
// require ROCm's profiler.
package amd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

func (o Options) filled() Options {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o Options) sys() sysfs.Dir { return sysfs.Dir(filepath.Join(o.Root, "sys")) }

func (o Options) proc() sysfs.Dir { return sysfs.Dir(filepath.Join(o.Root, "proc")) }

// Reader finds every GPU bound to the amdgpu driver, and every partition.
type Reader struct {
	opts   Options
	resume *device.Position

	mu   sync.RWMutex
	gpus map[string]*gpu // by UUID
}

var (
	_ device.EventReader = (*Reader)(nil)
	_ device.Resumer     = (*Reader)(nil)
	_ device.Busy        = (*gpu)(nil)
)

// Open returns a Reader. The error is device.ErrAbsent if no GPU is bound to the amdgpu
// driver.
func Open(_ context.Context, o Options) (*Reader, error) {
	o = o.filled()
	if len(cards(o.sys())) == 0 {
		return nil, fmt.Errorf("no GPU is bound to the amdgpu driver: %w", device.ErrAbsent)
	}
	return &Reader{opts: o, gpus: map[string]*gpu{}}, nil
}

// Close implements device.Reader. No file stays open between reads.
func (r *Reader) Close() error { return nil }

// Devices implements device.Reader.
func (r *Reader) Devices(ctx context.Context) ([]device.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found, err := discover(r.opts)
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.gpus
	r.gpus = make(map[string]*gpu, len(found))
	devices := make([]device.Device, 0, len(found))
	for _, s := range found {
		g := known[s.id.UUID]
		if g == nil || g.sighting != s {
			g = newGPU(r.opts, s)
		}
		r.gpus[s.id.UUID] = g
		devices = append(devices, g)
	}
	return devices, err
}

// deviceAt returns the UUID of the GPU at a PCI address, or "" if there is none. Without an
// address it returns the machine's only GPU, if there is just one.
func (r *Reader) deviceAt(pci string) (uuid, address string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, g := range r.gpus {
		if g.id.Parent != "" {
			continue
		}
		switch {
		case pci == g.id.PCI:
			return g.id.UUID, pci
		case pci == "" && uuid != "":
			return "", ""
		case pci == "":
			uuid, address = g.id.UUID, g.id.PCI
		}
	}
	if pci != "" {
		return "", pci
	}
	return uuid, address
}

// join joins errs and spells out only the first few: a GPU that is being reset fails in
// every file.
func join(errs []error) error {
	const most = 8
	if n := len(errs) - most; n > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", n))
	}
	return errors.Join(errs...)
}
