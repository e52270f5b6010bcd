//go:build linux

// Package amd reads AMD Instinct and Radeon GPUs from the files of the amdgpu driver:
// sysfs, hwmon, and the compute driver's topology (KFD). It needs no ROCm library.
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

// Options say where to look.
type Options struct {
	// Root is where the host's file system is mounted. Empty: /.
	Root string
	// Now returns the time. Nil: time.Now.
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

// Reader finds every GPU of the amdgpu driver, and every partition of one.
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

// Open returns device.ErrAbsent where no GPU has the amdgpu driver.
func Open(_ context.Context, o Options) (*Reader, error) {
	o = o.filled()
	if len(cards(o.sys())) == 0 {
		return nil, fmt.Errorf("no GPU has the amdgpu driver: %w", device.ErrAbsent)
	}
	return &Reader{opts: o, gpus: map[string]*gpu{}}, nil
}

// Close implements device.Reader. No file is open between two reads.
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

// deviceAt returns the UUID of the GPU at a PCI address, empty if there is none. Without
// an address it is the only one there is.
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

// join returns errs as one, of which at most a few are spelled out: a GPU that is being
// reset fails in every file.
func join(errs []error) error {
	const most = 8
	if n := len(errs) - most; n > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", n))
	}
	return errors.Join(errs...)
}
