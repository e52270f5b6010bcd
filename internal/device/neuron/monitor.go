//go:build linux

package neuron

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxLine     = 4 << 20                // longest line; a machine with 16 devices writes some 100 kB
	hearEvery   = 500 * time.Millisecond // shortest time between reads
	usualPeriod = 5 * time.Second        // if neuron-monitor does not report its period
	periods     = 3                      // number of periods for which a line is valid
)

// hearing is the latest line that is still valid, and what is wrong with it or why there is
// none.
type hearing struct {
	report *report // nil: none
	err    error
}

// hear returns the latest valid line of neuron-monitor.
func (r *Reader) hear(ctx context.Context) hearing {
	if r.monitor == nil {
		return hearing{}
	}
	h := r.heard.get(ctx, r.opts.Now, hearEvery, r.monitor.hear)
	if h.err != nil {
		h.err = fmt.Errorf("neuron-monitor: %w", h.err)
	}
	return h
}

// monitor follows the lines at a path. It is used by one goroutine at a time. It never
// waits for a line and keeps only one.
type monitor struct {
	path string
	now  func() time.Time

	stamp stamp // state of the file when it was last read
	fd    int   // socket, if open is set
	open  bool
	torn  []byte // start of an incomplete line
	skip  bool   // skipping the rest of an overlong line

	report *report
	err    error
	at     time.Time // when the line was written or received
}

// stamp identifies one state of a file.
type stamp struct {
	inode uint64
	size  int64
	time  time.Time
}

func (m *monitor) hear() hearing {
	st, err := os.Stat(m.path)
	switch {
	case err != nil:
		m.close()
		err = plain(err)
	case st.Mode().Type() == fs.ModeSocket:
		err = m.drain()
	case st.Mode().IsRegular():
		err = m.readFile()
	default:
		err = errors.New("its output is neither a file nor a socket")
	}
	if err != nil {
		return hearing{err: err}
	}
	if m.report == nil {
		if m.err == nil {
			return hearing{err: errors.New("no output yet")}
		}
		return hearing{err: m.err}
	}
	period := usualPeriod
	if m.report.period > 0 {
		period = time.Duration(m.report.period * float64(time.Second))
	}
	// Neither the period nor a file's modification time is exact to the millisecond.
	if m.now().Sub(m.at) > periods*period+time.Second {
		return hearing{err: errors.New("no new output: neuron-monitor has stopped")}
	}
	return hearing{report: m.report, err: m.err}
}

// take makes line the latest one.
func (m *monitor) take(line []byte, at time.Time) {
	m.report, m.err = parseReport(line)
	m.at = at
}

// readFile takes the last complete line of the file, unless it was already taken.
func (m *monitor) readFile() error {
	m.close()
	fd, err := unix.Open(m.path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), m.path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return plain(err)
	}
	now := stamp{size: st.Size(), time: st.ModTime()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		now.inode = sys.Ino
	}
	if now == m.stamp {
		return nil
	}
	b := make([]byte, min(now.size, maxLine))
	n, err := f.ReadAt(b, now.size-int64(len(b)))
	if n < len(b) { // the file became shorter meanwhile, or is not readable
		return plain(orErr(err, errors.New("the file changes too quickly")))
	}
	line, whole := lastLine(b, int64(len(b)) == now.size)
	if !whole {
		m.report, m.err, m.stamp = nil, nil, now
		if int64(len(b)) < now.size {
			m.err = errors.New("a line is too long")
		}
		return nil
	}
	m.take(line, st.ModTime())
	m.stamp = now
	return nil
}

// lastLine returns the last complete line in b. begins reports whether b starts at the
// beginning of a line.
func lastLine(b []byte, begins bool) (line []byte, ok bool) {
	end := bytes.LastIndexByte(b, '\n')
	for end >= 0 {
		begin := bytes.LastIndexByte(b[:end], '\n')
		if begin < 0 && !begins {
			return nil, false
		}
		if line := bytes.TrimSpace(b[begin+1 : end]); len(line) > 0 {
			return line, true
		}
		end = begin
	}
	return nil, false
}

// drain takes what has arrived on the socket since the last call.
func (m *monitor) drain() error {
	if !m.open {
		if err := m.connect(); err != nil {
			return err
		}
	}
	var latest []byte
	buf := make([]byte, 64<<10)
	for total := 0; total < 4*maxLine; {
		n, err := unix.Read(m.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			total = 4 * maxLine
			continue
		case err != nil || n == 0: // closed by the peer; the next call reconnects
			m.close()
			total = 4 * maxLine
			continue
		}
		total += n
		if line := m.feed(buf[:n]); line != nil {
			latest = line
		}
	}
	if latest != nil {
		m.take(latest, m.now())
	}
	return nil
}

func (m *monitor) connect() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: m.path}); err != nil {
		_ = unix.Close(fd) // unused
		return err
	}
	m.fd, m.open, m.torn, m.skip = fd, true, nil, false
	return nil
}

// feed returns the last line that ends in b, or nil, and keeps the incomplete rest.
func (m *monitor) feed(b []byte) []byte {
	var latest []byte
	for {
		part, rest, ends := bytes.Cut(b, []byte("\n"))
		if len(m.torn)+len(part) > maxLine {
			m.torn, m.skip = nil, true
		}
		if !m.skip {
			m.torn = append(m.torn, part...)
		}
		if !ends {
			return latest
		}
		if line := bytes.TrimSpace(m.torn); !m.skip && len(line) > 0 {
			latest = bytes.Clone(line)
		}
		m.torn, m.skip = m.torn[:0], false
		b = rest
	}
}

func (m *monitor) close() {
	if m.open {
		_ = unix.Close(m.fd) // read-only: nothing to flush
	}
	m.open, m.torn = false, nil
}

// plain strips the path from an error; the caller knows it.
func plain(err error) error {
	if number, ok := errors.AsType[unix.Errno](err); ok {
		return number
	}
	return err
}

func orErr(err, instead error) error {
	if err != nil {
		return err
	}
	return instead
}
