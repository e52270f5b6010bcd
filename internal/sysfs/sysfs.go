//go:build linux

// Package sysfs reads the attribute files of kernel drivers: one value each, written by
// the kernel at the moment of the read.
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
)

// Dir is a folder of attribute files, normally below /sys.
type Dir string

// Join returns a folder below d.
func (d Dir) Join(name ...string) Dir {
	return Dir(filepath.Join(append([]string{string(d)}, name...)...))
}

// Base returns the last part of the path.
func (d Dir) Base() string { return filepath.Base(string(d)) }

// Exists reports whether there is something at d, readable or not.
func (d Dir) Exists() bool {
	_, err := os.Lstat(string(d))
	return err == nil
}

// Glob returns what is below d and matches pattern. Numbers in names are ordered by
// their value: card2 comes before card10.
func (d Dir) Glob(pattern string) []Dir {
	names, _ := filepath.Glob(filepath.Join(string(d), pattern)) // the only error is a bad pattern
	slices.SortFunc(names, Natural)
	dirs := make([]Dir, len(names))
	for i, n := range names {
		dirs[i] = Dir(n)
	}
	return dirs
}

// page is the most that sysfs has in one text attribute.
const page = 4096

// Text returns the content of an attribute, without the white space around it.
func (d Dir) Text(name string) (string, error) {
	b, err := d.Bytes(name, page)
	return string(bytes.TrimSpace(b)), err
}

// Bytes returns the content of an attribute, at most limit bytes of it.
//
// It reads once. The runtime would wait for a driver that answers EAGAIN, which some do
// while they reset, until somebody writes: it takes the file for a pipe.
func (d Dir) Bytes(name string, limit int) ([]byte, error) {
	path := filepath.Join(string(d), name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
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

// Float returns an attribute that is a decimal number.
func (d Dir) Float(name string) (float64, error) {
	s, err := d.Text(name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot parse %s: %q is no number", filepath.Join(string(d), name), short(s))
	}
	return v, nil
}

// Uint returns an attribute that is a whole number, decimal or, with 0x before it,
// hexadecimal.
func (d Dir) Uint(name string) (uint64, error) {
	s, err := d.Text(name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot parse %s: %q is no whole number", filepath.Join(string(d), name), short(s))
	}
	return v, nil
}

// Link returns the last part of what a symbolic link points to: the driver of a device,
// or its address.
func (d Dir) Link(name string) (string, error) {
	to, err := os.Readlink(filepath.Join(string(d), name))
	if err != nil {
		return "", err
	}
	return filepath.Base(to), nil
}

// Absent reports whether err means that the device does not have the attribute now, and
// not that reading it failed.
func Absent(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ENODATA, unix.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func short(s string) string { return s[:min(len(s), 64)] }
