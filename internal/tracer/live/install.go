//go:build linux

package live

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

const (
	installEvery = time.Minute
	installed    = "installed " // key prefix for files that no process has mapped
	driverName   = "libcuda.so.1"
)

// installFolders are the directories in which installers put the driver's library.
var installFolders = []string{
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib64",
	"/usr/lib",
	"/usr/local/nvidia/lib64",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
	"/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
	"/run/nvidia/driver/usr/lib64",
	"/home/kubernetes/bin/nvidia/lib64",
}

// install probes the installed driver library and keeps the probes while it is installed.
// Otherwise the first process on an idle machine would have created its contexts and looked
// up its kernels before it is found. Containers use the same file, or an overlay of it.
func (d *discovery) install(now time.Time) {
	if !d.looked.IsZero() && now.Sub(d.looked) < installEvery {
		return
	}
	d.looked = now
	var found []*library
	for _, root := range d.o.Roots {
		for _, folder := range installFolders {
			if l := d.installed(root, folder, now); l != nil {
				found = append(found, l)
			}
		}
	}
	for _, l := range d.files {
		l.stays = slices.Contains(found, l)
	}
}

// installed returns the driver's library in a directory below root, or nil.
func (d *discovery) installed(root, folder string, now time.Time) *library {
	name := path.Join(folder, driverName)
	at, err := below(root, name)
	if err != nil {
		return nil // most directories do not have it
	}
	defer at.Close()
	shown := name
	if to, err := os.Readlink(path.Join(root, name)); err == nil && !strings.Contains(to, "/") {
		shown = path.Join(folder, to) // as processes map it
	}
	return d.library(source{
		key:  fileKey{fmt.Sprintf("%s%x", installed, at.Device), at.Inode, tracer.LibraryCUDA},
		path: shown,
		open: func() (*target.File, error) {
			at, err := below(root, name)
			if err != nil {
				return nil, err
			}
			defer at.Close()
			f := *at
			if f.File, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", at.Fd())); err != nil {
				return nil, err
			}
			return &f, nil
		},
	}, true, now)
}

// below finds a regular file below root without opening it for reading. Symbolic links are
// resolved as for a process with that root.
func below(root, name string) (*target.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path.Join(root, name), Err: err}
	}
	f := &target.File{File: os.NewFile(uintptr(fd), name), Path: name}
	var (
		st unix.Stat_t
		fs unix.Statfs_t
	)
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", name), f.Close())
	}
	f.Inode, f.Device, f.Size, f.Overlay = st.Ino, st.Dev, st.Size, fs.Type == unix.OVERLAYFS_SUPER_MAGIC
	return f, nil
}
