//go:build linux

package live

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ncclinfo"
)

const (
	dumpEvery    = 5 * time.Second
	maxDumps     = 1024
	maxMeasured  = 256  // kinds of collectives per process
	maxDumpFiles = 8192 // descriptors examined per process
)

// inspector follows the dumps of NCCL's Inspector plugin in the processes that have loaded
// it. The files may be on a network file system that hangs, so inspector has its own
// goroutine that nothing waits for.
type inspector struct {
	proc string

	mu        sync.Mutex
	processes map[uint32]*inspected
}

type inspected struct {
	dump  *ncclinfo.Dump // nil until found
	total map[measuredKey]tracer.Measured
}

type measuredKey struct {
	comm string
	rank int
	op   string
}

// isInspector reports whether a mapped library is the plugin.
func isInspector(path string) bool {
	base := filepath.Base(path)
	return strings.HasPrefix(base, "libnccl-profiler") && strings.Contains(base, "inspector")
}

// run reads the dumps of the processes returned by pids until ctx is done.
func (i *inspector) run(ctx context.Context, pids func() []uint32) {
	tick := time.NewTicker(dumpEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			i.read(pids())
		}
	}
}

func (i *inspector) read(pids []uint32) {
	i.mu.Lock()
	maps.DeleteFunc(i.processes, func(pid uint32, _ *inspected) bool { return !slices.Contains(pids, pid) })
	i.mu.Unlock()
	for _, pid := range pids[:min(len(pids), maxDumps)] {
		i.mu.Lock()
		p := i.processes[pid]
		if p == nil {
			p = &inspected{total: map[measuredKey]tracer.Measured{}}
			if i.processes == nil {
				i.processes = map[uint32]*inspected{}
			}
			i.processes[pid] = p
		}
		i.mu.Unlock()
		if p.dump == nil {
			p.dump = i.find(pid)
		}
		if p.dump == nil {
			continue
		}
		records, err := p.dump.Read()
		if err != nil {
			p.dump = nil // closed or renamed
		}
		i.mu.Lock()
		for _, r := range records {
			p.add(r)
		}
		i.mu.Unlock()
	}
}

// add counts one collective.
func (p *inspected) add(r ncclinfo.Record) {
	key := measuredKey{r.Comm, r.Rank, r.Op}
	m, ok := p.total[key]
	if !ok && len(p.total) >= maxMeasured {
		return
	}
	m.Comm, m.Rank, m.Size, m.Op = printable(r.Comm), r.Rank, r.Size, printable(r.Op)
	m.Count++
	m.Bytes += r.Bytes
	m.Time += r.Duration
	m.Bus += r.Bus * r.Duration.Seconds()
	p.total[key] = m
}

// find looks for the dump among the open files of a process, which works in any mount
// namespace.
func (i *inspector) find(pid uint32) *ncclinfo.Dump {
	dir := filepath.Join(i.proc, strconv.FormatUint(uint64(pid), 10), "fd")
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxDumpFiles)
	for _, name := range names {
		to, err := os.Readlink(filepath.Join(dir, name))
		if err == nil && ncclinfo.IsDump(to) {
			return &ncclinfo.Dump{Path: filepath.Join(dir, name)}
		}
	}
	return nil
}

// of returns the recorded collectives of a process, by communicator, rank and collective.
func (i *inspector) of(pid uint32) []tracer.Measured {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.processes[pid]
	if p == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(p.total), func(a, b tracer.Measured) int {
		return strings.Compare(a.Comm+a.Op+strconv.Itoa(a.Rank), b.Comm+b.Op+strconv.Itoa(b.Rank))
	})
}
