//go:build linux

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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/openfiles"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// scanner finds the processes that have DRM nodes open, once for all GPUs.
//
// It reads only links in /proc, which no driver is involved in. The usage counters (fdinfo)
// come from the driver and may hang with its GPU, so each GPU reads its own, outside the
// scanner.
type scanner struct {
	proc string
	now  func() time.Time
	turn chan struct{} // held during a search

	patience time.Duration // how long a GPU waits for another GPU's search

	last atomic.Pointer[openFiles]
}

// openFiles is the result of one search.
type openFiles struct {
	files  []openFile // by PID and file descriptor
	denied int        // processes whose files may not be read
	host   bool       // proc shows the processes of the whole machine
	err    error
	ended  time.Time
	cost   time.Duration
}

// whole reports whether no user of a GPU can have been missed.
func (o *openFiles) whole() bool { return o.err == nil && o.denied == 0 && o.host }

// openFile is a DRM node that a process has open.
type openFile struct {
	pid   uint32
	fd    int
	minor uint32
}

func newScanner(proc string, now func() time.Time) *scanner {
	return &scanner{proc: proc, now: now, turn: make(chan struct{}, 1), patience: time.Second}
}

const (
	// sameTick is the longest time between the requests of GPUs in one tick.
	sameTick = 50 * time.Millisecond
	// thrift limits the search to 1 % of a CPU: on a machine with very many open files it
	// runs less often than every tick.
	thrift = 100
	// oldest is how old a result may become because of thrift.
	oldest = 30 * time.Second
)

// fresh returns the last result if it is recent enough.
func (s *scanner) fresh() *openFiles {
	o := s.last.Load()
	if o == nil {
		return nil
	}
	good := max(sameTick, min(thrift*o.cost, oldest))
	if age := s.now().Sub(o.ended); age < 0 || age >= good {
		return nil
	}
	return o
}

var errSearching = errors.New("the search for processes in /proc has not returned")

// find returns which processes have DRM nodes open. It never waits long: if another GPU's
// search hangs, it returns an error.
func (s *scanner) find(ctx context.Context) (*openFiles, error) {
	if o := s.fresh(); o != nil {
		return o, nil
	}
	patience := time.NewTimer(s.patience)
	defer patience.Stop()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-patience.C:
		return nil, errSearching
	}
	if o := s.fresh(); o != nil { // another GPU searched while this one waited
		return o, nil
	}
	begun := s.now()
	o := s.search()
	o.ended = s.now()
	o.cost = o.ended.Sub(begun)
	s.last.Store(o)
	return o, nil
}

func (s *scanner) search() *openFiles {
	files, denied, err := openfiles.Below(s.proc, "/dev/dri/")
	o := &openFiles{denied: denied, host: hostProcesses(s.proc), err: err}
	for _, f := range files {
		if n, ok := s.node(f); ok {
			o.files = append(o.files, openFile{f.PID, f.FD, n})
		}
	}
	slices.SortFunc(o.files, func(a, b openFile) int { return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.fd, b.fd)) })
	return o
}

// node returns the minor number of an open DRM node. A container may use another name than
// the host, so the file itself is examined first.
func (s *scanner) node(f openfiles.File) (uint32, bool) {
	const drmMajor = 226
	var st unix.Stat_t
	link := filepath.Join(s.proc, fmt.Sprint(f.PID), "fd", strconv.Itoa(f.FD))
	if err := unix.Stat(link, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return unix.Minor(st.Rdev), unix.Major(st.Rdev) == drmMajor
	}
	return minor(filepath.Base(f.Path))
}

// hostProcesses reports whether proc shows the processes of the whole machine. kthreadd,
// the parent of the kernel threads, is process 2 in the initial PID namespace and in no
// other.
func hostProcesses(proc string) bool {
	s, err := sysfs.Dir(proc).Text("2/stat")
	return err == nil && kernelThread(s)
}

// kernelThread parses the flags in /proc/PID/stat: the seventh field after the name, which
// may itself contain spaces and parentheses.
func kernelThread(stat string) bool {
	const flag = 0x200000 // PF_KTHREAD
	_, after, ok := strings.Cut(stat, "(")
	if !ok {
		return false
	}
	fields := strings.Fields(after[strings.LastIndexByte(after, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 32)
	return err == nil && flags&flag != 0
}
