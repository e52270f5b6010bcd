package kmsg

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxBytes bounds what Each reads: no kernel's log is as large.
const maxBytes = 64 << 20

// Each calls f with every record that the log at path has now, oldest first, and does not
// wait for more. The log may also be a file with a record a line, as tests and captures
// have it.
func Each(path string, f func(Record)) error {
	// The kernel says EAGAIN at the end, and opening a pipe that nobody writes to returns.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("cannot read the kernel log: open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	buf := make([]byte, maxRecord)
	var rest []byte // of a file, a line that is not whole yet
	emit := func(line []byte) {
		if rec, err := parse(line); err == nil {
			f(rec)
		}
	}
	for total, broken := 0, 0; total < maxBytes; {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EPIPE) && broken < maxBroken: // overwritten meanwhile: the next read has the oldest there is
			broken++
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			emit(rest)
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the kernel log %s: %w", path, err)
		}
		total += n
		rest = append(rest, buf[:n]...)
		for {
			line, more, whole := bytes.Cut(rest, []byte{'\n'})
			if !whole {
				break
			}
			emit(line) // those of a dictionary begin with a blank, and are no records
			rest = more
		}
		if len(rest) > maxRecord {
			rest = rest[:0]
		}
	}
	return nil
}
