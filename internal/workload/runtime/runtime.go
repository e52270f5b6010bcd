// Package runtime names Docker and Podman containers outside Kubernetes, including their
// Compose service.
//
// It reads the files that the runtimes keep about their containers, which needs root. It
// does not use the runtimes' sockets: anyone who may connect to one can do everything root
// can, on Docker without exception, which a monitoring agent should not be able to; and a
// rootless Podman has no socket at all. It never grants devices, because runtimes keep no
// record of them.
package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

const (
	source  = "container_runtime"
	maxKept = 1024 // number of containers cached
	// A container can be renamed. A container without files may have them soon, because
	// they are written while it starts.
	remember     = 5 * time.Minute
	rememberNone = 10 * time.Second
	// A home directory may be on a server that does not answer. patience is how long a name
	// is waited for, and maxReading how many reads may be in progress.
	patience   = 100 * time.Millisecond
	maxReading = 16
)

// Containers finds the container of a process; cgroup.Reader implements it.
type Containers interface {
	Container(pid uint32) (c cgroup.Container, ok bool, err error)
}

// Source names the containers of this machine.
type Source struct {
	root     string
	of       Containers
	describe func(cgroup.Container) (description, error)
	patience time.Duration
	now      func() time.Time

	mu      sync.Mutex
	known   map[string]entry         // by id
	reading map[string]chan struct{} // closed when the read is done
}

type entry struct {
	workload workload.Workload
	err      error // why the container is named by its id
	until    time.Time
}

// New returns the source for the runtimes' files below root, which is "/" or where the
// host's file system is mounted.
func New(root string, of Containers) *Source {
	s := &Source{root: root, of: of, patience: patience, now: time.Now, known: map[string]entry{}, reading: map[string]chan struct{}{}}
	s.describe = s.files
	return s
}

// Grants implements workload.Source. Runtimes keep no record of device allocations.
func (s *Source) Grants() []workload.Grant { return nil }

// Process implements workload.Source. Containers of pods are left to package kubernetes.
func (s *Source) Process(pid uint32) (workload.Workload, bool) {
	c, ok, err := s.of.Container(pid)
	if err != nil || !ok || c.PodUID != "" {
		return workload.Workload{}, false
	}
	return s.workload(c).workload, true
}

// Container implements workload.ContainerSource. An id without files is unknown.
func (s *Source) Container(id string) (workload.Workload, bool) {
	if len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" { // the id becomes part of a path
		return workload.Workload{}, false
	}
	e := s.workload(cgroup.Container{ID: id})
	return e.workload, e.err == nil && !e.until.IsZero()
}

// workload returns what is known about a container, after a short wait if it must be read.
func (s *Source) workload(c cgroup.Container) entry {
	s.mu.Lock()
	e, known := s.known[c.ID]
	if known && s.now().Before(e.until) {
		s.mu.Unlock()
		return e
	}
	// Only the first read is waited for, and only briefly: if it hangs, no other is, and no
	// tick waits twice.
	var done chan struct{}
	if s.reading[c.ID] == nil && len(s.reading) < maxReading {
		reading := make(chan struct{})
		if len(s.reading) == 0 {
			done = reading
		}
		s.reading[c.ID] = reading
		go s.read(c, reading)
	}
	s.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-time.After(s.patience):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, known = s.known[c.ID]; known {
		return e
	}
	return entry{workload: description{}.workload(c.ID)}
}

// read reads the files of a container, and keeps the previous result on failure.
func (s *Source) read(c cgroup.Container, done chan struct{}) {
	d, err := s.describe(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := entry{workload: d.workload(c.ID), err: err, until: now.Add(remember)}
	if err != nil {
		e.until = now.Add(rememberNone)
		if before, known := s.known[c.ID]; known {
			e.workload = before.workload
		}
	}
	if len(s.known) >= maxKept {
		s.forget(now)
	}
	s.known[c.ID] = e
	delete(s.reading, c.ID)
	close(done)
}

// forget makes room: it drops expired entries, or all if none has expired.
func (s *Source) forget(now time.Time) {
	before := len(s.known)
	for id, e := range s.known {
		if !now.Before(e.until) {
			delete(s.known, id)
		}
	}
	if len(s.known) == before {
		clear(s.known)
	}
}

// Statuses implements workload.Source.
func (s *Source) Statuses() []workload.Status {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	named := 0
	var errs []error
	for _, e := range s.known {
		switch {
		case e.err == nil:
			named++
		case now.Before(e.until.Add(rememberNone)): // it may be read again any moment
			errs = append(errs, e.err)
		}
	}
	switch {
	case len(s.reading) >= maxReading:
		return []workload.Status{{Source: source, Reason: workload.Failed, Detail: "reading the runtimes' files takes too long"}}
	case len(errs) > 0:
		slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
		return []workload.Status{{Source: source, Reason: reason(errs), Detail: fmt.Sprintf("%d containers are named by their id, such as: %v", len(errs), errs[0])}}
	case named == 0 && !s.present():
		return []workload.Status{{Source: source, Reason: workload.Absent}}
	}
	return []workload.Status{{Source: source, Reason: workload.OK}}
}

// reason classifies the errors; the one that an administrator can fix comes first.
func reason(errs []error) workload.Reason {
	absent := true
	for _, err := range errs {
		if errors.Is(err, fs.ErrPermission) {
			return workload.PermissionDenied
		}
		absent = absent && errors.Is(err, fs.ErrNotExist)
	}
	if absent {
		return workload.Absent
	}
	return workload.Failed
}

// present reports whether a runtime has ever run on this machine.
func (s *Source) present() bool {
	return slices.ContainsFunc([]string{dockerFolder, podmanFolder}, func(dir string) bool {
		_, err := os.Stat(filepath.Join(s.root, dir))
		return err == nil
	})
}
