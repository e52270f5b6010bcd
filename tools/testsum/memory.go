//go:build linux

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	shm       = "/dev/shm"
	shmPrefix = "gpumeter" // short, because sockets below the folder have at most 107 characters
	// needed is several times the space that the temporary files of a run take at most.
	needed = 6 << 30

	tmpfsMagic = 0x01021994 // see statfs(2)
	noexec     = 0x8
)

// inMemory returns a new folder in memory, empty if there is no room for one, or if no program may be
// run in it. Tests create and delete tens of thousands of small files, for which ext4 needs a tenth of the
// time of a run.
func inMemory() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(shm, &fs); err != nil || fs.Type != tmpfsMagic || fs.Flags&noexec != 0 || int64(fs.Bavail)*fs.Bsize < needed {
		return ""
	}
	var memory syscall.Sysinfo_t
	if err := syscall.Sysinfo(&memory); err != nil || memory.Totalram*uint64(memory.Unit) < 2*needed {
		return ""
	}
	if list, err := filepath.Glob(filepath.Join(shm, shmPrefix+"*")); err == nil {
		for _, dir := range list { // of runs that were killed
			if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
				_ = os.RemoveAll(dir) // it may be another user's
			}
		}
	}
	dir, err := os.MkdirTemp(shm, shmPrefix)
	if err != nil {
		return ""
	}
	return dir
}
