//go:build linux

package ipmi

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// now is the fake controller's clock, far from the real time.
const now = 1700000000

// record returns a record of type 2 of the given age in seconds.
func record(id uint16, age int, kind, sensor, class, data1 byte) []byte {
	b := binary.LittleEndian.AppendUint16(nil, id)
	b = append(b, systemEvent)
	b = binary.LittleEndian.AppendUint32(b, uint32(now-age))
	return append(b, 0x20, 0x00, 0x04, kind, sensor, class, data1, 0xff, 0xff)
}

// board is a controller with a log, oldest record first.
type board struct {
	log      [][]byte
	chassis  []byte
	sent     map[[2]byte]int
	answer   func(netfn, cmd byte) ([]byte, error) // overrides the response
	noClock  bool
	overflow byte
}

func (b *board) Command(netfn, cmd byte, data []byte) ([]byte, error) {
	if b.sent == nil {
		b.sent = map[[2]byte]int{}
	}
	b.sent[[2]byte{netfn, cmd}]++
	if b.answer != nil {
		if resp, err := b.answer(netfn, cmd); resp != nil || err != nil { // nil: not overridden
			return resp, err
		}
	}
	switch [2]byte{netfn, cmd} {
	case getChassisStatus:
		return append([]byte{0}, b.chassis...), nil
	case getSELInfo:
		n := len(b.log)
		return []byte{0, 0x51, byte(n), byte(n >> 8), 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0x02 | b.overflow}, nil
	case getSELTime:
		if b.noClock {
			return []byte{0xc1}, nil
		}
		return binary.LittleEndian.AppendUint32([]byte{0}, now), nil
	case getSELEntry:
		id := binary.LittleEndian.Uint16(data[2:])
		for i, r := range b.log {
			if own := binary.LittleEndian.Uint16(r); id == own || id == first && i == 0 || id == last && i == len(b.log)-1 {
				next := []byte{0xff, 0xff}
				if i+1 < len(b.log) {
					next = b.log[i+1][:2]
				}
				return slices.Concat([]byte{0}, next, r), nil
			}
		}
		return []byte{0xcb}, nil
	}
	return []byte{0xc1}, nil
}

func TestChassis(t *testing.T) {
	f := func(want Chassis, b ...byte) {
		t.Helper()
		got, err := ReadChassis(&board{chassis: b})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%x (-want +got):\n%s", b, diff)
		}
	}
	f(Chassis{}, 0x61, 0x10, 0x70) // power on; switched on by command; identify supported
	f(Chassis{}, 0x61, 0x1f, 0x73, 0x00)
	f(Chassis{Overload: true}, 0x03, 0, 0)
	f(Chassis{PowerFault: true}, 0x09, 0, 0)
	f(Chassis{ControlFault: true}, 0x11, 0, 0)
	f(Chassis{DriveFault: true, CoolingFault: true}, 0x01, 0, 0x0c)
	f(Chassis{}, 0x05, 0, 0x03) // chassis intrusion, front panel locked
	if _, err := ReadChassis(&board{chassis: []byte{1, 0}}); err == nil {
		t.Error("a short status was accepted")
	}
}

func TestEntry(t *testing.T) {
	f := func(kind, class, data1 byte, severity Severity, ended bool, text string) {
		t.Helper()
		e, next, err := ParseEntry(append([]byte{2, 0}, record(1, 0, kind, 0x30, class, data1)...))
		if err != nil {
			t.Fatal(err)
		}
		if e.ID != 1 || next != 2 || e.Time != now || e.Sensor != 0x30 {
			t.Errorf("%+v, next is %d", e, next)
		}
		if e.Severity != severity || e.Ended != ended || e.Text != text {
			t.Errorf("%#x %#x %#x: %+v", kind, class, data1, e)
		}
	}
	f(0x01, 0x01, 0x59, Serious, false, "temperature: above its critical threshold")
	f(0x01, 0x81, 0x59, Serious, true, "temperature: above its critical threshold")
	f(0x01, 0x01, 0x58, Serious, true, "temperature: above its critical threshold") // returns below the threshold
	f(0x01, 0x01, 0x0b, Terminal, false, "temperature: above its non-recoverable threshold")
	f(0x01, 0x01, 0x57, None, false, "") // not critical
	f(0x02, 0x01, 0x52, Serious, false, "voltage: below its critical threshold")
	f(0x04, 0x01, 0x54, Terminal, false, "fan: below its non-recoverable threshold")
	f(0x05, 0x01, 0x59, None, false, "")
	f(0x07, 0x6f, 0x00, Terminal, false, "processor: internal error (IERR)")
	f(0x07, 0x6f, 0x01, Terminal, false, "processor: thermal trip")
	f(0x07, 0x6f, 0x07, None, false, "") // presence detected
	f(0x08, 0x6f, 0x01, Serious, false, "power supply: failed")
	f(0x08, 0x6f, 0x03, Serious, false, "power supply: input lost")
	f(0x08, 0xef, 0x03, Serious, true, "power supply: input lost")
	f(0x08, 0x6f, 0x00, None, false, "")
	f(0x0c, 0x6f, 0xa0, None, false, "") // corrected
	f(0x0c, 0x6f, 0xa1, Terminal, false, "memory: uncorrected error (ECC)")
	f(0x0d, 0x6f, 0x01, Serious, false, "drive: fault")
	f(0x13, 0x6f, 0x00, None, false, "") // front panel button
	f(0x13, 0x6f, 0x04, Serious, false, "critical interrupt: PCI parity error (PERR)")
	f(0x13, 0x6f, 0x05, Terminal, false, "critical interrupt: PCI system error (SERR)")
	f(0x13, 0x6f, 0xaa, Terminal, false, "critical interrupt: fatal bus error")
	f(0x07, 0x70, 0x00, None, false, "") // OEM event type

	own := append([]byte{2, 0}, record(1, 0, 0x07, 1, 0x6f, 0)...)
	own[4] = 0xc0 // OEM record type
	if e, _, err := ParseEntry(own); err != nil || e.Severity != None {
		t.Errorf("%+v, %v", e, err)
	}
	for n := range 18 {
		if _, _, err := ParseEntry(own[:n]); err == nil {
			t.Errorf("a record of %d bytes was accepted", n)
		}
	}
}

// read returns the IDs of the open events.
func read(t *testing.T, b *board, back time.Duration) (Log, []uint16) {
	t.Helper()
	l, err := ReadLog(t.Context(), b, back)
	if err != nil {
		t.Fatal(err)
	}
	var ids []uint16
	for _, e := range l.Open {
		ids = append(ids, e.ID)
	}
	return l, ids
}

func TestLog(t *testing.T) {
	f := func(want []uint16, records ...[]byte) {
		t.Helper()
		if _, got := read(t, &board{log: records}, time.Hour); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	hot := func(id uint16, age int, sensor byte) []byte { return record(id, age, 0x01, sensor, 0x01, 0x59) }
	cool := func(id uint16, age int, sensor byte) []byte { return record(id, age, 0x01, sensor, 0x81, 0x59) }
	f(nil)
	f([]uint16{1}, hot(1, 60, 5))
	f(nil, hot(1, 3601, 5))
	f([]uint16{1}, hot(1, 3600, 5))
	f(nil, hot(1, 60, 5), cool(2, 50, 5))
	f(nil, hot(1, 60, 5), record(2, 50, 0x01, 5, 0x01, 0x58))
	f([]uint16{1}, hot(1, 60, 5), cool(2, 50, 6)) // another sensor
	f([]uint16{3}, hot(1, 60, 5), cool(2, 50, 5), hot(3, 40, 5))
	f([]uint16{2}, hot(1, 60, 5), hot(2, 50, 5)) // duplicates count once
	f([]uint16{2, 3}, hot(1, 7200, 4), hot(2, 60, 5), hot(3, 50, 6))
	f([]uint16{0x100, 0x120}, hot(0x100, 60, 5), record(0x110, 55, 0x0c, 9, 0x6f, 0), hot(0x120, 50, 6)) // IDs that are addresses
	f([]uint16{2, 4}, hot(2, 60, 5), hot(4, 50, 6))
	f([]uint16{4}, hot(1, 60, 5), cool(3, 50, 5), hot(4, 40, 6)) // a missing ID
	f(nil, hot(1, -7200, 5))                                     // in the future: the clock was set back
	f(nil, hot(1, now-500, 5))                                   // relative to the controller's start, which is unknown
}

// A large log takes a bounded number of requests, and none of them clears, reserves or sets
// anything.
func TestReadsOnly(t *testing.T) {
	b := &board{chassis: []byte{1, 0, 0}, overflow: 0x80}
	for i := range 3000 {
		b.log = append(b.log, record(uint16(i+1), 3000-i, 0x01, byte(i), 0x01, 0x59))
	}
	if _, err := ReadChassis(b); err != nil {
		t.Fatal(err)
	}
	l, ids := read(t, b, 24*time.Hour)
	if l.Entries != 3000 || l.Read != maxRecords || len(ids) != maxRecords || ids[maxRecords-1] != 3000 || !l.Overflow || l.Short {
		t.Errorf("%d of %d records read, %v", l.Read, l.Entries, ids)
	}
	if n := b.sent[getSELEntry]; n != maxRecords+1 {
		t.Errorf("%d records requested", n)
	}
	want := map[[2]byte]bool{{0x00, 0x01}: true, {0x0a, 0x40}: true, {0x0a, 0x43}: true, {0x0a, 0x48}: true}
	for what := range maps.Keys(b.sent) {
		if !want[what] {
			t.Errorf("command %x was sent", what)
		}
	}
	if len(b.sent) != len(want) {
		t.Errorf("%v were sent", b.sent)
	}
	b.sent = nil
	if l, _ := read(t, b, 10*time.Second); l.Read != 11 { // including the first that is too old
		t.Errorf("%d records read for ten seconds of history", l.Read)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l, err := ReadLog(ctx, b, time.Hour); err != nil || !l.Short || len(l.Open) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

// Without the controller's clock the local one is used.
func TestNoClock(t *testing.T) {
	b := &board{noClock: true, log: [][]byte{record(1, int(now-time.Now().Unix()), 0x07, 1, 0x6f, 0)}}
	if _, ids := read(t, b, time.Hour); len(ids) != 1 {
		t.Errorf("%v", ids)
	}
}

func TestBadAnswers(t *testing.T) {
	broken := errors.New("broken")
	f := func(cmd [2]byte, resp []byte, err error) {
		t.Helper()
		b := &board{chassis: []byte{1, 0, 0}, log: [][]byte{record(1, 60, 0x07, 1, 0x6f, 0), record(2, 50, 0x07, 2, 0x6f, 0)}}
		b.answer = func(n, c byte) ([]byte, error) {
			if [2]byte{n, c} == cmd {
				return resp, err
			}
			return nil, nil
		}
		_, chassisErr := ReadChassis(b)
		_, logErr := ReadLog(t.Context(), b, time.Hour)
		if (cmd == getChassisStatus) != (chassisErr != nil) || (cmd == getSELInfo || cmd == getSELEntry || cmd == getSELTime && (err != nil || len(resp) == 0)) != (logErr != nil) {
			t.Errorf("%x answers %x, %v: %v, %v", cmd, resp, err, chassisErr, logErr)
		}
	}
	for _, cmd := range [][2]byte{getChassisStatus, getSELInfo, getSELEntry, getSELTime} {
		f(cmd, nil, broken)
		f(cmd, []byte{}, nil)
		f(cmd, []byte{0}, nil)
		f(cmd, []byte{0, 1, 2}, nil)
		f(cmd, []byte{0xd4}, nil) // insufficient privilege
	}
	// A controller that always returns the same record does not loop forever.
	b := &board{log: make([][]byte, 60000)}
	b.answer = func(_, c byte) ([]byte, error) {
		if c == 0x43 {
			return append([]byte{0, 9, 0}, record(9, 60, 0x07, 1, 0x6f, 0)...), nil
		}
		return nil, nil
	}
	if _, ids := read(t, b, time.Hour); len(ids) != 1 {
		t.Errorf("%v", ids)
	}
}

// The ioctl numbers encode the sizes: the kernel rejects others.
func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(request{}); sendCommand>>16&0x3fff != n {
		t.Errorf("request size %d", n)
	}
	if n := unsafe.Sizeof(received{}); receiveMessage>>16&0x3fff != n {
		t.Errorf("received size %d", n)
	}
	if n := unsafe.Sizeof(message{}); n != 16 {
		t.Errorf("message size %d", n)
	}
	if n := unsafe.Sizeof(address{}); n != 8 {
		t.Errorf("address size %d", n)
	}
	if a, b := unsafe.Offsetof(request{}.msg), unsafe.Offsetof(received{}.msg); a != 24 || b != 32 {
		t.Errorf("message offsets %d and %d", a, b)
	}
}

func TestOpen(t *testing.T) {
	if d, err := Open(t.TempDir()); err == nil {
		t.Errorf("%+v", d)
	}
}

// FuzzAnswers returns the same bytes for every command.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0})
	f.Add(append([]byte{0, 2, 0}, record(1, 60, 0x07, 1, 0x6f, 0)...))
	f.Add([]byte{0, 0x51, 9, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0x82})
	f.Fuzz(func(t *testing.T, b []byte) {
		x := &board{answer: func(_, _ byte) ([]byte, error) {
			if len(b) == 0 {
				return []byte{}, nil
			}
			return b, nil
		}}
		_, _ = ReadChassis(x)
		l, err := ReadLog(t.Context(), x, time.Hour)
		if len(l.Open) > maxRecords || l.Read > maxRecords || err != nil && len(l.Open) > 0 || x.sent[getSELEntry] > maxRecords+1 {
			t.Errorf("%+v, %v, %v", l, err, x.sent)
		}
	})
}
