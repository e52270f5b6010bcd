package kmsg

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxBytes bounds how much Each reads. No kernel log is that large.
const maxBytes = 64 << 20

// Each calls f with every record that the log at path holds now, oldest first, and does not
// wait for more. path may also be a regular file with one record per line, as in tests and
// captures.
func Each(path string, f func(Record)) error {
	// O_NONBLOCK makes the kernel return EAGAIN at the end of the log, and makes the open
	// of a pipe without a writer return at once.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("cannot read the kernel log: open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // read-only: nothing to flush
	buf := make([]byte, maxRecord)
	var rest []byte // an incomplete line, if path is a regular file
	emit := func(line []byte) {
		if rec, err := parse(line); err == nil {
			f(rec)
		}
	}
	for total, broken := 0, 0; total < maxBytes; {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EPIPE) && broken < maxBroken: // overwritten meanwhile: the next read returns the oldest record left
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
			emit(line) // a dictionary line starts with a space and does not parse as a record
			rest = more
		}
		if len(rest) > maxRecord {
			rest = rest[:0]
		}
	}
	return nil
}
