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
	maxLine     = 4 << 20                // of neuron-monitor; one of 16 devices is some 100 kB
	hearEvery   = 500 * time.Millisecond // at most
	usualPeriod = 5 * time.Second        // of neuron-monitor, if it does not say
	periods     = 3                      // that a line is used for
)

// hearing is the latest line that is still true, and what is wrong with it or without it.
type hearing struct {
	report *report // nil: there is none
	err    error
}

// hear returns what neuron-monitor said last.
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

// monitor follows the lines at a path. It is used by one goroutine at a time. It neither
// waits for a line nor keeps more than one.
type monitor struct {
	path string
	now  func() time.Time

	stamp stamp // of the file when it was read
	fd    int   // of a socket, if connected
	open  bool
	torn  []byte // begin of a line whose end has not come
	skip  bool   // until the end of a line that is too long

	report *report
	err    error
	at     time.Time // when the line was written, or came
}

// stamp tells one state of a file from another.
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
		err = errors.New("what it is told to write to is neither a file nor a socket")
	}
	if err != nil {
		return hearing{err: err}
	}
	if m.report == nil {
		if m.err == nil {
			return hearing{err: errors.New("it has not said anything")}
		}
		return hearing{err: m.err}
	}
	period := usualPeriod
	if m.report.period > 0 {
		period = time.Duration(m.report.period * float64(time.Second))
	}
	// A period is not kept to the millisecond, and a file's time is not either.
	if m.now().Sub(m.at) > periods*period+time.Second {
		return hearing{err: errors.New("it has stopped")}
	}
	return hearing{report: m.report, err: m.err}
}

// take makes line the latest one.
func (m *monitor) take(line []byte, at time.Time) {
	m.report, m.err = parseReport(line)
	m.at = at
}

// readFile takes the last whole line of the file, unless it has been taken already.
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
	if n < len(b) { // it became shorter meanwhile, or cannot be read
		return plain(orErr(err, errors.New("it changes too quickly")))
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

// lastLine returns the last line of b that has an end. begins: b begins with a line.
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

// drain takes what has come from the socket since the last time.
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
		case err != nil || n == 0: // it has ended; the next time is a new connection
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
		_ = unix.Close(fd) // it was not used
		return err
	}
	m.fd, m.open, m.torn, m.skip = fd, true, nil, false
	return nil
}

// feed returns the last line that ends in b, nil if none does, and keeps what begins there.
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
		_ = unix.Close(m.fd) // it was only read
	}
	m.open, m.torn = false, nil
}

// plain returns what is wrong without the path, which is known.
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
