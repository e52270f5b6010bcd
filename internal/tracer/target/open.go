//go:build linux

package target

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errOther says that a path names another file than the one that is mapped.
var errOther = errors.New("not the file that is mapped")

// open opens a regular file that has this inode number; 0: any. It looks before it opens:
// opening a device or a pipe may have effects.
func open(name string, inode uint64) (*File, error) {
	var st unix.Stat_t
	wrong := func() bool { return st.Mode&unix.S_IFMT != unix.S_IFREG || inode != 0 && st.Ino != inode }
	if err := unix.Stat(name, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	if wrong() {
		return nil, &os.PathError{Op: "open", Path: name, Err: errOther}
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	if wrong() {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: name, Err: errOther}
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "statfs", Path: name, Err: err}
	}
	return &File{File: f, Path: name, Inode: st.Ino, Device: st.Dev, Overlay: fs.Type == unix.OVERLAYFS_SUPER_MAGIC, Size: st.Size}, nil
}
