// Package kmsg reads the kernel log from /dev/kmsg, one record at a time: Each returns the
// records present now, Reader follows the log as it grows.
//
// Reading needs root or CAP_SYSLOG where kernel.dmesg_restrict is set, and a device node
// that the container runtime did not replace. The log is a ring buffer: records that were
// overwritten before they were read are counted in Record.Lost. The package does not
// interpret record texts and never writes to the log.
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

// Record is one message in the kernel log.
type Record struct {
	Seq      uint64        // sequence number since boot
	Time     time.Duration // since boot
	Priority int           // facility * 8 + level
	Text     string
	// Lost is the number of records directly before this one that were overwritten unread.
	Lost uint64
}

// Kernel reports whether the kernel itself wrote the record. Programs may also write to
// /dev/kmsg, but not with the kernel's facility.
func (r Record) Kernel() bool { return r.Priority>>3 == 0 }

// Position is where reading starts.
type Position struct {
	whence int
	after  uint64
	seen   bool // after is set
}

// Start is the position of the oldest record the kernel still holds.
func Start() Position { return Position{whence: io.SeekStart} }

// End is the position after the newest record.
func End() Position { return Position{whence: io.SeekEnd} }

// After is the position after record seq. Later records that the kernel has already
// overwritten count as lost.
func After(seq uint64) Position { return Position{whence: io.SeekStart, after: seq, seen: true} }

// file is the part of os.File that Reader uses.
type file interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// Reader reads one log. It is not safe for concurrent use.
type Reader struct {
	path string
	f    file
	last uint64 // sequence number of the latest record, if known
	any  bool
}

// Open opens the log at path, which is /dev/kmsg except in containers and tests.
func Open(path string, from Position) (*Reader, error) {
	// The Go runtime polls device files: a waiting read occupies no thread, and a deadline
	// interrupts it.
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

// maxRecord exceeds the kernel's longest record. The kernel fails a read into a shorter
// buffer instead of truncating the record.
const maxRecord = 16 << 10

// maxBroken is how many consecutive unparsable reads it takes to conclude that the file is
// not a kernel log.
const maxBroken = 1000

// Follow calls f with each record until ctx ends, which is not an error.
func (r *Reader) Follow(ctx context.Context, f func(Record)) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = r.f.SetReadDeadline(time.Unix(1, 0)) // a file without deadlines never blocks
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
		case errors.Is(err, syscall.EPIPE): // overwritten: the next read returns the oldest record left
			continue
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the kernel log %s: %w", r.path, err)
		}
		rec, err := parse(buf[:n])
		if err != nil {
			if broken++; broken == maxBroken {
				return fmt.Errorf("%s is not a kernel log: %w", r.path, err)
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

// accept reports whether rec is new, and sets rec.Lost to the number of records missing
// before it.
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

// parse parses "priority,sequence,microseconds,flags[,more];text", which may be followed by
// dictionary lines that start with a space.
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

// unescape decodes the kernel's \xNN escapes: control characters, bytes above 126 and the
// backslash.
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

// ParseUptime returns how long the machine has been up, given the content of /proc/uptime.
func ParseUptime(text string) (time.Duration, error) {
	const most = 1e9 // seconds, 31 years
	var seconds float64
	if _, err := fmt.Sscan(text, &seconds); err != nil || !(seconds >= 0 && seconds < most) {
		return 0, fmt.Errorf("%q is not an uptime", text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
