// Package kmsg reads the kernel's log from /dev/kmsg, one record at a time.
package kmsg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Record is one message of the kernel's log.
type Record struct {
	Seq      uint64        // counts records since boot
	Time     time.Duration // since boot
	Priority int           // facility times 8, plus level
	Text     string
	// Lost is how many records right before this one were overwritten unread.
	Lost uint64
}

// Kernel reports whether the kernel itself wrote the record. Programs may write to
// /dev/kmsg too, but not with the kernel's facility.
func (r Record) Kernel() bool { return r.Priority>>3 == 0 }

// Position is where reading begins.
type Position struct {
	whence int
	after  uint64
	seen   bool // after is set
}

// Start is the oldest record the kernel still has.
func Start() Position { return Position{whence: io.SeekStart} }

// End is behind the newest record.
func End() Position { return Position{whence: io.SeekEnd} }

// After is behind the record seq. Those of its successors that the kernel no longer has
// are lost.
func After(seq uint64) Position { return Position{whence: io.SeekStart, after: seq, seen: true} }

// file is what Reader needs of an os.File.
type file interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// Reader reads one log, by one goroutine.
type Reader struct {
	path string
	f    file
	last uint64 // sequence number of the latest record, if known
	any  bool
}

// Open opens the log at path, which is /dev/kmsg but for containers and tests.
func Open(path string, from Position) (*Reader, error) {
	// The runtime polls a device file: a read that waits occupies no thread, and a
	// deadline ends it.
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the kernel log: %w", err)
	}
	if _, err := f.Seek(0, from.whence); err != nil && !errors.Is(err, syscall.ESPIPE) {
		f.Close()
		return nil, fmt.Errorf("cannot read the kernel log: %w", err)
	}
	return &Reader{path: path, f: f, last: from.after, any: from.seen}, nil
}

// Close closes the log. No Follow may be running.
func (r *Reader) Close() error { return r.f.Close() }

// maxRecord is more than the kernel's longest record: it refuses to cut one.
const maxRecord = 16 << 10

// maxBroken is how many records in a row may be no records before the file is no log.
const maxBroken = 1000

// Follow calls f with each record until ctx ends, which is no error.
func (r *Reader) Follow(ctx context.Context, f func(Record)) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = r.f.SetReadDeadline(time.Unix(1, 0)) // a file without deadlines does not block
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	buf := make([]byte, maxRecord)
	broken := 0
	for ctx.Err() == nil {
		n, err := r.f.Read(buf)
		switch {
		case errors.Is(err, syscall.EPIPE): // overwritten: the next read has the oldest there is
			continue
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the kernel log %s: %w", r.path, err)
		}
		rec, err := parse(buf[:n])
		if err != nil {
			if broken++; broken == maxBroken {
				return fmt.Errorf("%s is no kernel log: %w", r.path, err)
			}
			continue
		}
		broken = 0
		if r.accept(&rec) {
			f(rec)
		}
	}
	return nil
}

// accept reports whether rec is news, and counts what is missing before it.
func (r *Reader) accept(rec *Record) bool {
	if r.any && rec.Seq <= r.last {
		return false
	}
	if r.any {
		rec.Lost = rec.Seq - r.last - 1
	}
	r.last, r.any = rec.Seq, true
	return true
}

var errFormat = errors.New("not a record")

// parse reads "priority,sequence,microseconds,flags[,more];text", which may be followed
// by lines of a dictionary that begin with a blank.
func parse(b []byte) (Record, error) {
	head, text, ok := bytes.Cut(b, []byte{';'})
	fields := bytes.Split(head, []byte{','})
	if !ok || len(fields) < 3 {
		return Record{}, errFormat
	}
	priority, err := strconv.ParseUint(string(fields[0]), 10, 31)
	if err != nil {
		return Record{}, errFormat
	}
	seq, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return Record{}, errFormat
	}
	us, err := strconv.ParseUint(string(fields[2]), 10, 64)
	if err != nil || us > math.MaxInt64/1000 {
		return Record{}, errFormat
	}
	text, _, _ = bytes.Cut(text, []byte{'\n'})
	return Record{Seq: seq, Time: time.Duration(us) * time.Microsecond, Priority: int(priority), Text: unescape(text)}, nil
}

// unescape undoes the kernel's \xNN, its form of control characters, bytes above 126 and
// the backslash.
func unescape(b []byte) string {
	if !bytes.Contains(b, []byte(`\x`)) {
		return string(b)
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+3 < len(b) && b[i+1] == 'x' {
			if c, err := strconv.ParseUint(string(b[i+2:i+4]), 16, 8); err == nil {
				out = append(out, byte(c))
				i += 3
				continue
			}
		}
		out = append(out, b[i])
	}
	return string(out)
}

// ParseUptime returns how long the machine runs by the text of /proc/uptime.
func ParseUptime(text string) (time.Duration, error) {
	const most = 1e9 // seconds, 31 years
	var seconds float64
	if _, err := fmt.Sscan(text, &seconds); err != nil || !(seconds >= 0 && seconds < most) {
		return 0, fmt.Errorf("%q is no uptime", text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
