// Package host reads what the kernel says of this machine and of single processes: how
// busy the CPUs are, how full memory is, and what a process was kept waiting for. It needs
// no capability; what it may not read is absent.
package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Reader is where the kernel is asked.
type Reader struct {
	Proc   string // normally /proc
	Cgroup string // normally /sys/fs/cgroup
}

// most is more than the kernel writes into any file that is read here, but for
// /proc/stat of a machine with thousands of interrupts, of which the first line counts.
const most = 64 << 10

// read returns a file, at most the first 64 KiB of it.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, err
	}
	return b, nil
}

// tolerate returns nil for a file that is not there, may not be read or belongs to a process
// that is gone: that is no trouble.
func tolerate(err error) error {
	for _, e := range []error{fs.ErrNotExist, fs.ErrPermission, unix.ENOTDIR, unix.ESRCH, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// whole parses a whole number that is not negative.
func whole(s string) (float64, error) {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no whole number", s[:min(len(s), 64)])
	}
	return float64(v), nil
}
