//go:build linux

package live

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

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
	offset int                     // of the identity in ncclComm; 0: not known yet, negative: not as expected
	found  map[string]commIdentity // by Comm.Key
	tries  map[string]int          // by Comm.Key
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

// complete identifies the communicators of p and returns by which IDs they were known before.
func (r *ranks) complete(p *tracer.Process, look peek) (renamed map[string]string) {
	if r.found == nil {
		r.found, r.tries = map[string]commIdentity{}, map[string]int{}
	}
	keys := make(map[string]bool, len(p.Comms))
	for i := range p.Comms {
		c := &p.Comms[i]
		keys[c.Key] = true
		if r.offset == 0 && c.Rank >= 0 && c.Size > 1 && r.may(c) {
			r.offset = learn(p.PID, c, look)
		}
	}
	for i := range p.Comms {
		c := &p.Comms[i]
		is, ok := r.found[c.Key]
		if !ok && r.offset > 0 && r.may(c) {
			if is, ok = r.read(p.PID, c, look); ok {
				r.found[c.Key] = is
			}
		}
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
	for key := range r.tries {
		if !keys[key] {
			delete(r.tries, key)
			delete(r.found, key)
		}
	}
	return renamed
}

// may reports whether a communicator exists and was not looked at too often.
func (r *ranks) may(c *tracer.Comm) bool {
	r.tries[c.Key]++
	return !c.Ended && c.Address != 0 && r.tries[c.Key] <= commTries
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

// read returns the identity of a communicator once NCCL has set it.
func (r *ranks) read(pid uint32, c *tracer.Comm, look peek) (commIdentity, bool) {
	var data [identityBytes]byte
	if look(pid, c.Address+uint64(r.offset), data[:]) < len(data) {
		return commIdentity{}, false
	}
	rank, size := int32(binary.NativeEndian.Uint32(data[8:])), int32(binary.NativeEndian.Uint32(data[12:]))
	if !random(data[:]) || rank < 0 || rank >= size || size > maxCommSize {
		return commIdentity{}, false // not yet
	}
	if c.Rank >= 0 && c.Size > 0 && (int(rank) != c.Rank || int(size) != c.Size) {
		r.offset = -1 // it was found by chance
		return commIdentity{}, false
	}
	return commIdentity{fmt.Sprintf("%#x", binary.NativeEndian.Uint64(data[:])), int(rank), int(size)}, true
}
