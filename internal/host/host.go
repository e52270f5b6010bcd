// Package host reads CPU, memory and per-process facts from the kernel: how busy the CPUs
// are, how full memory is, and what a process had to wait for.
//
// It reads /proc and the cgroup v1 and v2 file systems below configurable paths, with bounded
// reads. It needs no capability: a file that may not be read makes its values absent, never
// zero. It knows nothing about GPUs or metrics. docs/adr/0010 says why it does not use
// github.com/prometheus/procfs.
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

// Reader reads from the given mount points.
type Reader struct {
	Proc   string // normally /proc
	Cgroup string // normally /sys/fs/cgroup
}

// most exceeds every file read here except /proc/stat on machines with thousands of
// interrupts, of which only the first line is used.
const most = 64 << 10

// read returns at most the first 64 KiB of a file.
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

// tolerate returns nil for a file that does not exist, may not be read, or belongs to a
// process that has exited.
func tolerate(err error) error {
	for _, e := range []error{fs.ErrNotExist, fs.ErrPermission, unix.ENOTDIR, unix.ESRCH, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// whole parses a non-negative integer.
func whole(s string) (float64, error) {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", s[:min(len(s), 64)])
	}
	return float64(v), nil
}
