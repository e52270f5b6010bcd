//go:build linux

package live

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// Time limits for reads that may hang, and how many may hang at once.
const (
	readTimeout = 5 * time.Second // for a file system of a user
	maxHanging  = 8               // hanging reads after which no file is opened
	mapsTimeout = 500 * time.Millisecond
	maxSilent   = 64 // processes with a pending read of maps or memory
)

// errSilent means that the kernel does not return a process's maps. Reading them takes the
// process's mmap lock, which a process that hangs in a driver may hold forever.
var errSilent = errors.New("cannot read the memory map: the process may hang in a driver or a file system")

type mapped struct {
	maps []target.Mapping
	err  error
}

// maps reads the mappings of a process, with a time limit, and only the first time: a late
// answer is used at the next look.
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
		maps, err := target.ReadMaps(proc, pid)
		<-d.silent // before the answer: who has it does not count as pending
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

// read opens and reads a file with a time limit for its file system.
func (d *discovery) read(s source, wanted map[string]bool) (*target.File, target.Image, error) {
	type result struct {
		f   *target.File
		img target.Image
		err error
	}
	select {
	case d.hanging <- struct{}{}:
	default:
		return nil, target.Image{}, errors.New("too many file systems do not answer")
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
		return nil, target.Image{}, fmt.Errorf("cannot read %s: the file system does not answer", s.path)
	}
}
