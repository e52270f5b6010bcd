//go:build linux

// Package openfiles finds the processes that have given device files open. Readers use it
// for drivers that do not list their own users.
//
// It reads the fd links of every process in a procfs. Links of other users' processes need
// root or CAP_SYS_PTRACE; without them those processes are counted, not listed. It does not
// open the device files and does not say what a process does with them.
package openfiles

import (
	"errors"
	"fmt"
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
	Path string // as seen by the process
}

// limit bounds the number of files returned. No real machine comes close.
const limit = 65536

// Below returns the open files whose path starts with one of prefixes. Processes that exit
// during the scan are skipped. denied is the number of processes whose files may not be
// read: those of other users, unless the caller may ptrace them.
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
				return files, denied, fmt.Errorf("cannot list open device files: more than %d are open", limit)
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
