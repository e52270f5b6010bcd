//go:build linux

package target

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errOther means that a path is not the mapped file.
var errOther = errors.New("not the mapped file")

// open opens a regular file with the given inode number; 0 accepts any. The file is examined
// before it is opened, because opening a device or a pipe may have side effects.
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
