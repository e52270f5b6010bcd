//go:build linux

// Package openfiles finds the processes that have a device file open, which is how a
// driver without a list of its users is asked for them.
package openfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// File is one open file of a process.
type File struct {
	PID  uint32
	FD   int
	Path string // as the process sees it
}

// limit bounds what is returned. No machine has so many users of its accelerators.
const limit = 65536

// Below returns the open files whose path begins with one of prefixes, by process and
// number. Processes that end meanwhile are left out. denied is how many processes do not
// let us look: those of other users, unless we may trace them.
func Below(proc string, prefixes ...string) (files []File, denied int, err error) {
	folder, err := os.Open(proc)
	if err != nil {
		return nil, 0, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		pid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, name, "fd")
		fds, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrPermission) {
			denied++
		}
		for _, fd := range fds {
			to, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if err != nil || !begins(to, prefixes) {
				continue
			}
			n, err := strconv.Atoi(fd.Name())
			if err != nil {
				continue
			}
			if len(files) == limit {
				return files, denied, errors.New("too many open device files")
			}
			files = append(files, File{uint32(pid), n, to})
		}
	}
	return files, denied, nil
}

func begins(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
