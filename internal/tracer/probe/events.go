package probe

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Events returns up to limit events since the last call. It does not block, and there is no
// notification: call it several times per second.
func (p *Probe) Events(limit int) []tracer.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded == nil {
		return nil
	}
	now, kernel := time.Now(), clock(unix.CLOCK_MONOTONIC)
	r := &reading{now: now, clock: kernel}
	p.stay()
	p.ring.SetDeadline(now)
	var (
		events []tracer.Event
		record ringbuf.Record
	)
	for len(events) < limit {
		if err := p.ring.ReadInto(&record); err != nil {
			break // deadline exceeded: the buffer is empty
		}
		if len(record.RawSample) < int(unsafe.Sizeof(kernelEvent{})) {
			continue
		}
		e := (*kernelEvent)(unsafe.Pointer(&record.RawSample[0]))
		events = append(events, p.event(r, e))
	}
	return events
}

func (p *Probe) event(r *reading, e *kernelEvent) tracer.Event {
	out := tracer.Event{
		Time: r.time(e.Start), PID: pidOf(e.Tgid), TID: e.Tid, Type: eventTypes[kernelType(e.Type)],
		Device: int(e.Dev), Duration: time.Duration(e.Ns), Code: e.Code, Bytes: e.Bytes, Stream: e.Stream,
		RunQueue: time.Duration(e.RunQueue), Blocked: time.Duration(e.Blocked),
		Comm: commID(e.Comm), Rank: int(e.Rank), Size: int(e.Size),
	}
	if op := tracer.OpByID(e.Op); op != nil {
		out.Op = op.Name
	}
	if e.Handle != 0 {
		var name kernelName
		if err := p.maps.Names.Lookup(&kernelHandleKey{Tgid: e.Tgid, Handle: e.Handle}, &name); err == nil {
			out.Kernel = text(name.Text[:])
		}
	}
	return out
}

var eventTypes = map[kernelType]string{
	kernelTypeTYPE_CALL:      "call",
	kernelTypeTYPE_OUTLIER:   "outlier",
	kernelTypeTYPE_ERROR:     "error",
	kernelTypeTYPE_COMM_INIT: "comm_init",
	kernelTypeTYPE_COMM_END:  "comm_end",
	kernelTypeTYPE_EXIT:      "exit",
}

// Watch requests an event for each call of op, by name, in a process that takes longer than
// over. 0 stops it.
func (p *Probe) Watch(pid uint32, op string, over time.Duration) error {
	found := false
	for i := range tracer.Ops {
		if tracer.Ops[i].Name == op {
			found = true
			if err := p.watch(kernelWatchKey{Tgid: pid, Op: uint32(tracer.Ops[i].ID)}, uint64(max(over, 0))); err != nil {
				return fmt.Errorf("cannot watch %s of process %d: %w", op, pid, err)
			}
		}
	}
	if !found {
		return fmt.Errorf("cannot watch %s: no such operation", op)
	}
	return nil
}

// Record starts or stops an event for each call of a process.
func (p *Probe) Record(pid uint32, on bool) error {
	var want uint64
	if on {
		want = 1
	}
	if err := p.watch(kernelWatchKey{Tgid: pid}, want); err != nil {
		return fmt.Errorf("cannot record process %d: %w", pid, err)
	}
	return nil
}

// watch stores one request and makes the kernel programs reload it.
func (p *Probe) watch(k kernelWatchKey, v uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded == nil {
		return errors.New("the probe is closed")
	}
	if v == 0 {
		if err := p.maps.Watches.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	} else if err := p.maps.Watches.Put(&k, &v); err != nil {
		return err
	}
	p.watching++
	return p.variables[kernelVarWatchEpoch].Set(p.watching)
}

// Forget drops everything about a process that exited, or about the programs that it ran
// before its last exec.
func (p *Probe) Forget(pid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded == nil {
		return
	}
	gone, whole, _ := p.images(pid) // leftovers are dropped when the pid is reused
	for image := range gone {
		p.unnamed += p.unnamedBy[image]
		delete(p.unnamedBy, image)
	}
	_ = p.forget(gone)
	if whole { // watches apply to every program the process runs
		_ = drop[kernelWatchKey, uint64](p.maps.Watches, map[uint32]bool{pid: true})
	}
}
