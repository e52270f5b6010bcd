//go:build linux

// Package sysfs reads attribute files of kernel drivers, one value per file, as the kernel
// formats them at the moment of the read. It also parses the PCIe link speed and orders
// device names by the numbers in them.
//
// Reads never block: a driver that answers EAGAIN, as some do during a reset, yields an
// error. The package needs Linux and only the permissions of the file in question. It
// writes nothing and interprets no vendor's attributes.
package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/natural"
)

// Dir is a directory of attribute files, normally below /sys.
type Dir string

// Join returns the directory name below d.
func (d Dir) Join(name ...string) Dir {
	return Dir(filepath.Join(append([]string{string(d)}, name...)...))
}

// Base returns the last element of the path.
func (d Dir) Base() string { return filepath.Base(string(d)) }

// Exists reports whether anything exists at d, readable or not.
func (d Dir) Exists() bool {
	_, err := os.Lstat(string(d))
	return err == nil
}

// Glob returns the entries below d that match pattern. Numbers in names sort by value:
// card2 comes before card10.
func (d Dir) Glob(pattern string) []Dir {
	names, _ := filepath.Glob(filepath.Join(string(d), pattern)) // the only error is a bad pattern
	slices.SortFunc(names, natural.Compare)
	dirs := make([]Dir, len(names))
	for i, n := range names {
		dirs[i] = Dir(n)
	}
	return dirs
}

// page is the largest text attribute that sysfs supports.
const page = 4096

// Text returns the content of an attribute without surrounding white space.
func (d Dir) Text(name string) (string, error) {
	b, err := d.Bytes(name, page)
	return string(bytes.TrimSpace(b)), err
}

// Bytes returns the content of an attribute, at most limit bytes.
//
// Bytes issues a single read(2). os.File would treat EAGAIN, which some drivers return
// during a reset, like that of an empty pipe and wait for a writer that never comes.
func (d Dir) Bytes(name string, limit int) ([]byte, error) {
	path := filepath.Join(string(d), name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // read-only: nothing to flush
	b := make([]byte, limit)
	for {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		return b[:n], nil
	}
}

// Float returns an attribute that holds a decimal number.
func (d Dir) Float(name string) (float64, error) {
	s, err := d.Text(name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot parse %s: %q is not a number", filepath.Join(string(d), name), short(s))
	}
	return v, nil
}

// Uint returns an attribute that holds an unsigned integer, in decimal or, prefixed with
// 0x, in hexadecimal.
func (d Dir) Uint(name string) (uint64, error) {
	s, err := d.Text(name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot parse %s: %q is not an unsigned integer", filepath.Join(string(d), name), short(s))
	}
	return v, nil
}

// Link returns the last path element of a symbolic link's target, such as a device's driver
// or address.
func (d Dir) Link(name string) (string, error) {
	to, err := os.Readlink(filepath.Join(string(d), name))
	if err != nil {
		return "", err
	}
	return filepath.Base(to), nil
}

// Absent reports whether err means that the device does not have the attribute now, as
// opposed to a failure to read it.
func Absent(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ENODATA, unix.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func short(s string) string { return s[:min(len(s), 64)] }
