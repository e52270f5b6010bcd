//go:build linux

package live

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

const (
	// commBytes is how far into NCCL's ncclComm its identity is searched: in NCCL 2.28 there is a little
	// more than 1 MiB before it.
	commBytes = 2 << 20
	// window is how much of it is in memory at a time.
	window = 64 << 10
	// commTries is how often a communicator is looked at. One that is not blocking is not complete when it
	// is first seen.
	commTries = 10
	// identityBytes are the hash, the rank and the size, which follow each other in ncclComm.
	identityBytes = 16
	maxCommSize   = 1 << 20
)

// ranks identifies the communicators of a process as NCCL does. Calls do not reveal the rank in one that was
// split, nor NCCL's hash, and the address of one that is not blocking may be unknown until its first
// collective. All of it is in NCCL's ncclComm, whose layout changes with its version: where, is learned from
// a communicator whose rank and size the calls did reveal.
type ranks struct {
	offset  int                     // of the identity in ncclComm; 0: not known yet, negative: not as expected
	found   map[string]commIdentity // by Comm.Key
	tries   map[string]int          // by Comm.Key
	looking chan looked             // nil: nobody looks
}

// looked is what a look into the memory of a process found.
type looked struct {
	offset int
	found  map[string]commIdentity
}

type commIdentity struct {
	id         string
	rank, size int
}

// peek reads memory of a process; at the end of what is mapped it reads less.
type peek func(pid uint32, address uint64, to []byte) int

// memoryOf reads through a proc file system.
func memoryOf(proc string) peek {
	return func(pid uint32, address uint64, to []byte) int {
		f, err := os.Open(filepath.Join(proc, strconv.Itoa(int(pid)), "mem"))
		if err != nil {
			return 0
		}
		defer f.Close()
		n, _ := f.ReadAt(to, int64(address)) // what could be read counts
		return n
	}
}

// complete identifies the communicators of p and returns by which IDs they were known before. Reading memory
// takes the process's mmap lock and may read from its file systems, so it may never end: the first answer is
// awaited for a moment, and a late one is used the next time. Slots bounds those that do not answer.
func (r *ranks) complete(p *tracer.Process, look peek, slots chan struct{}) (renamed map[string]string) {
	if r.found == nil {
		r.found, r.tries = map[string]commIdentity{}, map[string]int{}
	}
	if r.looking != nil {
		select {
		case l := <-r.looking:
			r.take(l)
		default:
		}
	}
	keys := make(map[string]bool, len(p.Comms))
	for i := range p.Comms {
		keys[p.Comms[i].Key] = true
	}
	for key := range r.found {
		if !keys[key] {
			delete(r.found, key)
		}
	}
	for key := range r.tries {
		if !keys[key] {
			delete(r.tries, key)
		}
	}
	r.look(p, look, slots)
	for i := range p.Comms {
		c := &p.Comms[i]
		is, ok := r.found[c.Key]
		if !ok {
			continue
		}
		if c.ID != "" && c.ID != is.id {
			if renamed == nil {
				renamed = map[string]string{}
			}
			renamed[c.ID] = is.id
		}
		c.ID, c.Rank, c.Size = is.id, is.rank, is.size
	}
	return renamed
}

func (r *ranks) take(l looked) {
	r.looking, r.offset = nil, l.offset
	maps.Copy(r.found, l.found)
}

// look starts to identify the communicators that exist and were not looked at too often.
func (r *ranks) look(p *tracer.Process, look peek, slots chan struct{}) {
	if r.looking != nil || r.offset < 0 {
		return
	}
	var list []tracer.Comm
	var due []string
	for i := range p.Comms {
		c := &p.Comms[i]
		if _, ok := r.found[c.Key]; ok || c.Ended || c.Address == 0 || r.tries[c.Key] >= commTries {
			continue
		}
		list = append(list, *c)
		if r.offset > 0 || reveals(c) {
			due = append(due, c.Key)
		}
	}
	if due == nil {
		return
	}
	select {
	case slots <- struct{}{}:
	default:
		return
	}
	for _, key := range due {
		r.tries[key]++
	}
	r.looking = make(chan looked, 1)
	go func(done chan<- looked, pid uint32, offset int) {
		l := identify(pid, offset, list, look)
		<-slots // before the answer: who has it does not count as pending
		done <- l
	}(r.looking, p.PID, r.offset)
	timeout := time.NewTimer(mapsTimeout)
	defer timeout.Stop()
	select {
	case l := <-r.looking:
		r.take(l)
	case <-timeout.C:
	}
}

// reveals reports whether a call revealed rank and size. A size of 1 is too common a number to search for.
func reveals(c *tracer.Comm) bool { return c.Rank >= 0 && c.Size > 1 }

// identify reads the identities of communicators, and learns where they are if offset is 0.
func identify(pid uint32, offset int, list []tracer.Comm, look peek) looked {
	l := looked{offset, map[string]commIdentity{}}
	for i := range list {
		if l.offset == 0 && reveals(&list[i]) {
			l.offset = learn(pid, &list[i], look)
		}
	}
	for i := range list {
		c := &list[i]
		if l.offset <= 0 {
			break
		}
		is, ok := read(pid, c.Address+uint64(l.offset), look)
		switch {
		case !ok: // not yet
		case c.Rank >= 0 && c.Size > 0 && (is.rank != c.Rank || is.size != c.Size):
			l.offset = -1 // it was found by chance
		default:
			l.found[c.Key] = is
		}
	}
	return l
}

// learn returns where ncclComm has its identity: a magic number and the hash, both random, then rank, size and
// device. It returns 0 unless there is exactly one such place.
func learn(pid uint32, c *tracer.Comm, look peek) (offset int) {
	var want [12]byte
	binary.NativeEndian.PutUint32(want[:], uint32(c.Rank))
	binary.NativeEndian.PutUint32(want[4:], uint32(c.Size))
	binary.NativeEndian.PutUint32(want[8:], uint32(c.Device))
	data := make([]byte, window)
	for from := 0; from < commBytes; from += window - identityBytes { // they overlap
		n := look(pid, c.Address+uint64(from), data)
		for at := 16; at+len(want) <= n; at += 8 {
			if !bytes.Equal(data[at:at+len(want)], want[:]) || !random(data[at-16:]) || !random(data[at-8:]) {
				continue
			}
			if found := from + at - 8; offset == 0 {
				offset = found
			} else if offset != found {
				return 0
			}
		}
		if n < window {
			break
		}
	}
	return offset
}

// random reports whether 8 bytes look like a hash: neither a small number nor an address.
func random(data []byte) bool {
	high := binary.NativeEndian.Uint64(data) >> 48
	return high != 0 && high != 1<<16-1
}

// read returns the identity at an address once NCCL has set it.
func read(pid uint32, address uint64, look peek) (commIdentity, bool) {
	var data [identityBytes]byte
	if look(pid, address, data[:]) < len(data) {
		return commIdentity{}, false
	}
	rank, size := int32(binary.NativeEndian.Uint32(data[8:])), int32(binary.NativeEndian.Uint32(data[12:]))
	if !random(data[:]) || rank < 0 || rank >= size || size > maxCommSize {
		return commIdentity{}, false
	}
	return commIdentity{fmt.Sprintf("%#x", binary.NativeEndian.Uint64(data[:])), int(rank), int(size)}, true
}
