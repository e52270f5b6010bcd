//go:build linux

package live

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// comms is the memory of a process with communicators, by address.
type comms map[uint64][]byte

func (m comms) peek(_ uint32, address uint64, to []byte) int {
	for at, data := range m {
		if address >= at && address < at+uint64(len(data)) {
			return copy(to, data[address-at:])
		}
	}
	return 0
}

const magic, hash = 0x6ab80ad3c1e95f75, 0x3cb252a8ea0b40b5

// add makes a communicator with its identity where NCCL 2.28 has it.
func (m comms) add(address, hash uint64, rank, size uint32) {
	data := make([]byte, 2<<20)
	at := data[1066176:]
	binary.NativeEndian.PutUint64(at, magic)
	binary.NativeEndian.PutUint64(at[8:], hash)
	binary.NativeEndian.PutUint32(at[16:], rank)
	binary.NativeEndian.PutUint32(at[20:], size)
	binary.NativeEndian.PutUint32(at[24:], 0) // device
	m[address] = data
}

// Defect: ranks of split communicators, and of those that are not blocking, were -1 for their life; and
// others had an ID that NCCL's log, RAS and Inspector do not know.
func TestRanks(t *testing.T) {
	memory := comms{}
	memory.add(0x1000000, hash, 3, 4)
	memory.add(0x2000000, hash+1, 1, 2)
	memory.add(0x3000000, 0, 0, 0)
	process := func() *tracer.Process {
		return &tracer.Process{PID: 7, Comms: []tracer.Comm{
			{Key: "a", Address: 0x1000000, ID: "0xaaaa", Rank: 3, Size: 4},
			{Key: "b", Address: 0x2000000, ID: "0xbbbb", Rank: -1}, // split
			{Key: "c", Address: 0x3000000, Rank: -1},               // not blocking, and not complete yet
			{Key: "d", Address: 0x4000000, Rank: -1},               // its memory cannot be read
		}}
	}
	want := process()
	want.Comms[0].ID = "0x3cb252a8ea0b40b5"
	want.Comms[1].ID, want.Comms[1].Rank, want.Comms[1].Size = "0x3cb252a8ea0b40b6", 1, 2
	var r ranks
	slots := make(chan struct{}, 1)
	p := process()
	renamed := r.complete(p, memory.peek, slots)
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"0xaaaa": want.Comms[0].ID, "0xbbbb": want.Comms[1].ID}, renamed); diff != "" {
		t.Errorf("renamed (-want +got):\n%s", diff)
	}
	memory.add(0x3000000, hash+2, 0, 8)
	want.Comms[2].ID, want.Comms[2].Rank, want.Comms[2].Size = "0x3cb252a8ea0b40b7", 0, 8
	delete(memory, 0x2000000) // read once
	p = process()
	r.complete(p, memory.peek, slots)
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
	asked := 0
	for range 100 {
		r.complete(process(), func(pid uint32, address uint64, to []byte) int {
			asked++
			return memory.peek(pid, address, to)
		}, slots)
	}
	if asked > commTries {
		t.Errorf("memory that cannot be read was read %d times", asked)
	}
	r.complete(&tracer.Process{PID: 7}, memory.peek, slots)
	if len(r.tries)+len(r.found) > 0 {
		t.Errorf("communicators that are gone are remembered: %v %v", r.tries, r.found)
	}
}

// An ncclComm that is not as expected is not guessed at.
func TestRanksUnknown(t *testing.T) {
	known := tracer.Comm{Key: "a", Address: 0x1000000, ID: "0xaaaa", Rank: 3, Size: 4}
	split := tracer.Comm{Key: "b", Address: 0x2000000, Rank: -1}
	for name, c := range map[string]struct {
		comms  []tracer.Comm
		change func(comms)
	}{
		"no other":      {[]tracer.Comm{split}, func(comms) {}},
		"two places":    {[]tracer.Comm{known, split}, func(m comms) { copy(m[0x1000000][4096:], m[0x1000000][1066176:1066176+28]) }},
		"no hash":       {[]tracer.Comm{known, split}, func(m comms) { m.add(0x1000000, 0x7f0000001000, 3, 4) }},
		"no rank":       {[]tracer.Comm{known, split}, func(m comms) { m.add(0x2000000, hash, 5, 2) }},
		"by chance":     {[]tracer.Comm{known, {Key: "c", Address: 0x3000000, Rank: 1, Size: 2}, split}, func(m comms) { m.add(0x3000000, hash, 0, 2) }},
		"not all of it": {[]tracer.Comm{known, split}, func(m comms) { m[0x1000000] = m[0x1000000][:1<<20] }},
	} {
		t.Run(name, func(t *testing.T) {
			memory := comms{}
			memory.add(0x1000000, hash, 3, 4)
			memory.add(0x2000000, hash+1, 1, 2)
			c.change(memory)
			p := &tracer.Process{PID: 7, Comms: c.comms}
			new(ranks).complete(p, memory.peek, make(chan struct{}, 1))
			if last := p.Comms[len(p.Comms)-1]; last.Rank != -1 {
				t.Errorf("the rank is %d", last.Rank)
			}
		})
	}
}

// A process that hangs in a driver may hold its mmap lock forever: the tracer must not wait with it, nor
// start a read at each snapshot. The answer counts when it comes.
func TestRanksOfHungProcess(t *testing.T) {
	memory := comms{}
	memory.add(0x1000000, hash, 3, 4)
	process := func(pid uint32) *tracer.Process {
		return &tracer.Process{PID: pid, Comms: []tracer.Comm{{Key: "a", Address: 0x1000000, ID: "0xaaaa", Rank: 3, Size: 4}}}
	}
	release, asked := make(chan struct{}), make(chan uint32, 100)
	hung := func(pid uint32, address uint64, to []byte) int {
		asked <- pid
		<-release
		return memory.peek(pid, address, to)
	}
	slots := make(chan struct{}, 1)
	var r, other ranks
	for range 20 {
		p := process(7)
		r.complete(p, hung, slots)
		if p.Comms[0].ID != "0xaaaa" {
			t.Fatalf("the ID is %s before the process answers", p.Comms[0].ID)
		}
	}
	other.complete(process(8), hung, slots)
	if n := len(asked); n != 1 {
		t.Errorf("%d reads hang at once, with a place for one", n)
	}
	close(release)
	await.True(t, "the late answer", func() bool {
		p := process(7)
		r.complete(p, hung, slots)
		return p.Comms[0].ID == "0x3cb252a8ea0b40b5"
	})
	p := process(8)
	if other.complete(p, hung, slots); p.Comms[0].ID != "0x3cb252a8ea0b40b5" {
		t.Errorf("with a place again, the ID is %s", p.Comms[0].ID)
	}
}
