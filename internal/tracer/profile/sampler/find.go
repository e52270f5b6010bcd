//go:build linux

package sampler

import (
	"debug/elf"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// backwardPrefix is the beginning of the symbol of torch::autograd::Engine::execute, which each backward
// pass calls. Its arguments differ among versions.
const backwardPrefix = "_ZN5torch8autograd6Engine7executeE"

// fileID identifies a file: in a lower layer and through an overlay it has the same content.
type fileID struct {
	content string
	device  uint64
}

// files are the libraries that are probed.
type files struct {
	proc    string
	kernel  *kernel
	named   map[string]bool // as in maps: device, inode and kind
	known   map[fileID]bool // probed
	overlay map[string]bool // contents of which one is in an overlay
	wanted  map[string]bool // symbols
	ops     map[string]*tracer.Op
}

func newFiles(proc string, k *kernel) *files {
	f := &files{proc: proc, kernel: k, named: map[string]bool{}, known: map[fileID]bool{}, overlay: map[string]bool{}, wanted: map[string]bool{}, ops: map[string]*tracer.Op{}}
	for i := range tracer.Ops {
		op := &tracer.Ops[i]
		if op.Library == tracer.LibraryCUDA && (launches(op) || waits(op)) {
			for _, s := range op.Symbols {
				f.wanted[s], f.ops[s] = true, op
			}
		}
	}
	return f
}

func launches(op *tracer.Op) bool {
	return op.Class == tracer.Launch || op.Class == tracer.Graph && op.Body == tracer.BodyWork
}

// waits reports whether a call may wait for the device. Copies between host and device do when the host's
// memory is not pinned.
func waits(op *tracer.Op) bool { return op.Class == tracer.Sync || op.Class == tracer.Copy }

// kind returns what a mapped file is probed for; empty: nothing.
func kind(name string) string {
	base := path.Base(name)
	switch {
	case target.KindOf(name) == tracer.LibraryCUDA:
		return tracer.LibraryCUDA
	case base == "libtorch_cpu.so":
		return tracer.LibraryTorch
	}
	return ""
}

// add probes a file that a process has mapped, unless it is.
func (f *files) add(pid uint32, m target.Mapping, kind string) error {
	name := fmt.Sprintf("%s %d %s", m.Device, m.Inode, kind)
	if f.named[name] {
		return nil
	}
	if len(f.named) >= maxFiles {
		return fmt.Errorf("limit of %d files reached", maxFiles)
	}
	f.named[name] = true
	file, err := target.Open(f.proc, pid, m)
	if err != nil {
		return err
	}
	defer file.Close()
	launches, waits, backwards, build, err := f.places(file, kind)
	if err != nil || len(launches)+len(waits)+len(backwards) == 0 {
		return err
	}
	id := fileID{fmt.Sprintf("%s %d %d %s", build, file.Inode, file.Size, kind), file.Device}
	if f.known[id] || f.overlay[id.content] {
		return nil
	}
	if file.Overlay {
		for have := range f.known {
			if have.content == id.content {
				return nil
			}
		}
		f.overlay[id.content] = true
	}
	f.known[id] = true
	return f.kernel.attach(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), launches, waits, backwards)
}

const maxFiles = 1024

var errNoPlace = errors.New("no function can be probed without single-stepping")

func (f *files) places(file *target.File, kind string) (launched, waited, backwards []place, build string, err error) {
	if kind == tracer.LibraryTorch {
		b, err := target.OpenBinary(file)
		if err != nil {
			return nil, nil, nil, "", err
		}
		addrs, err := b.Prefixed(backwardPrefix)
		for _, addr := range addrs {
			if offset, ok := b.FileOffset(addr); ok {
				backwards = append(backwards, place{offset: offset}) // rare: its price does not matter
			}
		}
		return nil, nil, backwards, "torch", err
	}
	img, err := target.ReadImage(file, f.wanted)
	if err != nil {
		return nil, nil, nil, "", err
	}
	taken, slow := map[uint64]bool{}, false
	for _, s := range img.Symbols {
		at := target.Decode(img.Machine, s.Code, false)
		if taken[s.Offset] {
			continue
		}
		taken[s.Offset] = true
		if !at.Cheap && img.Machine != elf.EM_AARCH64 { // as in package live
			slow = true
			continue
		}
		op := f.ops[s.Name]
		p := place{op, s.Offset + at.Offset}
		if launches(op) {
			launched = append(launched, p)
		} else if f.kernel.multi || op.Class == tracer.Sync || strings.Contains(op.Name, "DtoH") { // an event each takes long to close
			waited = append(waited, p)
		}
	}
	if len(launched) == 0 && slow {
		err = errNoPlace
	}
	return launched, waited, nil, img.BuildID, err
}
