//go:build linux

package server

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"sync"
	"time"
)

// stale says for /readyz that something was read before, and its newest version is not in use. Everyone
// can read that: it has the base name of a file and the number of a line, and neither the path nor the
// reason, which may quote the file. It is safe for concurrent use.
type stale struct {
	what    string // such as prices
	name    string // base name of a file, or name of a service
	service bool

	mu    sync.Mutex
	valid time.Time // when it was last read
	fault string    // of the newest version; empty if there is none
}

// read records the result of reading the newest version at a moment.
func (s *stale) read(err error, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.fault = faultOf(err, s.service)
		return
	}
	s.valid, s.fault = at, ""
}

// state returns the line, if any.
func (s *stale) state() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fault == "":
		return nil
	case s.valid.IsZero():
		return []string{fmt.Sprintf("%s: %s %s: there are none from it", s.what, s.name, s.fault)}
	}
	return []string{fmt.Sprintf("%s: %s %s: the last valid %s, from %s, are in use", s.what, s.name, s.fault, s.what, s.valid.UTC().Format("2006-01-02 15:04 UTC"))}
}

// lineOf finds the line in the error of a parser, which begins with it.
var lineOf = regexp.MustCompile(`^line (\d{1,9}): `)

// faultOf returns what everyone may know about an error of a file or a service.
func faultOf(err error, service bool) string {
	if _, ok := errors.AsType[*fs.PathError](err); ok || service {
		return "cannot be read"
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
			return "is not valid, see line " + m[1]
		}
	}
	return "is not valid"
}

// states returns all lines of its parts.
func states(parts ...func() []string) func() []string {
	return func() []string {
		var out []string
		for _, part := range parts {
			out = append(out, part()...)
		}
		return out
	}
}
