//go:build linux

package live

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// How long others are waited for, and how many that never answer.
const (
	readTimeout = 5 * time.Second // a file system of a user
	maxHanging  = 8               // readings that never came back, before no file is opened any more
	mapsTimeout = 500 * time.Millisecond
	maxSilent   = 64 // processes whose maps are waited for
)

// errSilent says that the kernel does not tell what a process has mapped. It waits for the
// lock of the memory of the process, which one that hangs in a driver may hold for ever.
var errSilent = errors.New("its memory map cannot be read: the process may hang in a driver or a file system")

type mapped struct {
	maps []target.Mapping
	err  error
}

// maps reads what a process has mapped, but waits only so long for it, and only the first
// time: an answer that comes later is for the next look.
func (d *discovery) maps(p *process) ([]target.Mapping, error) {
	if p.reading != nil {
		select {
		case r := <-p.reading:
			p.reading = nil
			return r.maps, r.err
		default:
			return nil, errSilent
		}
	}
	select {
	case d.silent <- struct{}{}:
	default:
		return nil, errSilent
	}
	done := make(chan mapped, 1)
	go func(proc string, pid uint32) {
		defer func() { <-d.silent }()
		maps, err := target.ReadMaps(proc, pid)
		done <- mapped{maps, err}
	}(d.o.Proc, p.PID)
	timeout := time.NewTimer(mapsTimeout)
	defer timeout.Stop()
	select {
	case r := <-done:
		return r.maps, r.err
	case <-timeout.C:
		p.reading = done
		return nil, errSilent
	}
}

// read opens and reads a file, but waits only so long for its file system.
func (d *discovery) read(s source, wanted map[string]bool) (*target.File, target.Image, error) {
	type result struct {
		f   *target.File
		img target.Image
		err error
	}
	select {
	case d.hanging <- struct{}{}:
	default:
		return nil, target.Image{}, errors.New("too many files of other file systems do not answer")
	}
	done := make(chan result)
	timeout := time.NewTimer(readTimeout)
	defer timeout.Stop()
	gaveUp := make(chan struct{})
	go func() {
		defer func() { <-d.hanging }()
		var r result
		if r.f, r.err = s.open(); r.err == nil {
			if r.img, r.err = target.ReadImage(r.f, wanted); r.err != nil {
				r.f.Close()
			}
		}
		select {
		case done <- r:
		case <-gaveUp:
			if r.err == nil {
				r.f.Close()
			}
		}
	}()
	select {
	case r := <-done:
		return r.f, r.img, r.err
	case <-timeout.C:
		close(gaveUp)
		return nil, target.Image{}, fmt.Errorf("%s: its file system does not answer", s.path)
	}
}
