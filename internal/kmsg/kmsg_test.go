package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
)

// xid is a record from a real machine.
const xid = "4,376,89061206,c;NVRM: Xid (PCI:0000:00:06): 31, pid=610, name=bad, channel 0x00000009, intr 00000000. " +
	"MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE\n"

func TestParse(t *testing.T) {
	f := func(line string, want Record) {
		t.Helper()
		got, err := parse([]byte(line))
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	f(xid, Record{Seq: 376, Time: 89061206 * time.Microsecond, Priority: 4, Text: strings.TrimSpace(xid[len("4,376,89061206,c;"):])})
	f("6,1,0,-;text; with, signs", Record{Seq: 1, Priority: 6, Text: "text; with, signs"})
	f("6,1,0,-,caller=T1;a\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:06.0\n", Record{Seq: 1, Priority: 6, Text: "a"})
	f(`30,18446744073709551615,5,-;a\x0ab\x5cx\xzz\x4`, Record{Seq: 1<<64 - 1, Time: 5000, Priority: 30, Text: "a\nb\\x\\xzz\\x4"})

	bad := func(line string) {
		t.Helper()
		if got, err := parse([]byte(line)); err == nil {
			t.Errorf("%q parsed as %+v", line, got)
		}
	}
	bad("")
	bad("6,1,0,- no end of the head")
	bad("6,1;text")
	bad("-6,1,0,-;text")
	bad("6,,0,-;text")
	bad("6,1,9223372036854775807,-;a time that overflows")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(xid))
	f.Add([]byte("6,1,0,-,caller=T1;a\\x0a\n SUBSYSTEM=pci\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parse(b)
		if err == nil && (r.Time < 0 || r.Priority < 0 || len(r.Text) > len(b) || r.Lost != 0) {
			t.Errorf("%q parsed as %+v", b, r)
		}
	})
}

func FuzzParseUptime(f *testing.F) {
	f.Add("89.06 170.11\n")
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseUptime(s); err == nil && d < 0 {
			t.Errorf("%q is %s", s, d)
		}
	})
}

func TestParseUptime(t *testing.T) {
	if d, err := ParseUptime("89.06 170.11\n"); err != nil || d != 89060*time.Millisecond {
		t.Errorf("%s, %v", d, err)
	}
	for _, s := range []string{"", "x", "-1", "NaN", "1e300"} {
		if d, err := ParseUptime(s); err == nil {
			t.Errorf("%q is %s", s, d)
		}
	}
}

// log is a fake device file: each read returns one record or an error.
type log struct {
	reads []any
}

func (l *log) Read(b []byte) (int, error) {
	if len(l.reads) == 0 {
		return 0, io.EOF
	}
	next := l.reads[0]
	l.reads = l.reads[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(b, next.(string)), nil
}

func (*log) Close() error                    { return nil }
func (*log) SetReadDeadline(time.Time) error { return nil }

func record(seq int) string { return fmt.Sprintf("4,%d,%d,-;r%d\n", seq, seq, seq) }

// Overwritten records are counted, and the remaining ones are read.
func TestFollow(t *testing.T) {
	f := func(from Position, want string, reads ...any) {
		t.Helper()
		r := &Reader{path: "log", f: &log{reads}, last: from.after, any: from.seen}
		var got []string
		err := r.Follow(t.Context(), func(rec Record) { got = append(got, fmt.Sprintf("%s-%d", rec.Text, rec.Lost)) })
		if !errors.Is(err, io.EOF) {
			t.Errorf("at the end of the file: err = %v, want io.EOF", err)
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	}
	f(Start(), "r5-0 r6-0", record(5), record(6))
	f(Start(), "r5-0 r9-3", record(5), syscall.EPIPE, record(9))
	f(Start(), "r5-0 r6-0", record(5), "garbage", record(6))
	f(After(5), "r6-0", record(4), record(5), record(6))
	f(After(5), "r9-3", record(9))
	f(After(0), "r1-0", record(0), record(1))
	f(End(), "r7-0", record(7))

	r := &Reader{path: "log", f: &log{make([]any, 0)}}
	for range maxBroken {
		r.f.(*log).reads = append(r.f.(*log).reads, "garbage")
	}
	if err := r.Follow(t.Context(), func(Record) {}); err == nil || !strings.Contains(err.Error(), "not a kernel log") {
		t.Errorf("a file of garbage: err = %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "kmsg"), Start()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	r, err := Open(os.DevNull, Start()) // what some containers provide as the kernel log
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Follow(t.Context(), func(Record) {}); err == nil {
		t.Error("no error from following the null device")
	}
}

// Follow returns when its context ends even if nothing is written, and leaks no goroutine.
func testEnds(t *testing.T, path string, from Position) {
	t.Helper()
	before := runtime.NumGoroutine()
	r, err := Open(path, from)
	if err != nil {
		t.Skip("the kernel log is not readable here: ", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Follow(ctx, func(Record) {}) }()
	time.Sleep(20 * time.Millisecond)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	await.True(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

func TestEnds(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(fifo, os.O_RDWR, 0) // keeps the reader's open from blocking
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	testEnds(t, fifo, Start())
}

func TestRealLog(t *testing.T) {
	t.Run("start", func(t *testing.T) { testEnds(t, "/dev/kmsg", Start()) })
	t.Run("end", func(t *testing.T) { testEnds(t, "/dev/kmsg", End()) })
	r, err := Open("/dev/kmsg", Start())
	if err != nil {
		t.Skip("the kernel log is not readable here: ", err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var first *Record
	err = r.Follow(ctx, func(rec Record) {
		if first == nil {
			first = &rec
			cancel()
		}
	})
	if err != nil || first == nil || first.Text == "" {
		t.Errorf("first record %+v, err %v", first, err)
	}
}
