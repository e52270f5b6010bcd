//go:build unix

// Package folder opens the folders in which gpumeter keeps state and data. Another user who can
// write to such a folder, or to the folder above it, may plant a symbolic link there, and gpumeter
// would write to its target with its own permissions.
package folder

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Make creates a folder if necessary. It fails if the folder is, or contains at any depth, a
// symbolic link of a user other than the current one and root. Links that the administrator made,
// such as to a larger disk, are fine.
func Make(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	check := func(path string, st fs.FileInfo) error {
		if owner, foreign := foreigner(st); foreign && st.Mode().Type() == fs.ModeSymlink {
			return fmt.Errorf("%s is a symbolic link of another user (UID %d), who could redirect what is written: remove it", path, owner)
		}
		return nil
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if err := check(dir, st); err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // WalkDir does not follow a link
		return err
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Type() != fs.ModeSymlink {
			return nil
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		return check(path, st)
	})
}

// Shared returns why other users can change what is in a folder; empty if they cannot.
func Shared(dir string) string {
	st, err := os.Stat(dir)
	if err != nil {
		return "" // whoever opens the folder reports that
	}
	if owner, foreign := foreigner(st); foreign {
		return fmt.Sprintf("it belongs to another user (UID %d)", owner)
	}
	if st.Mode().Perm()&0o022 != 0 {
		return fmt.Sprintf("its mode is %04o: run chmod go-w %s", st.Mode().Perm(), dir)
	}
	return ""
}

// foreigner returns the owner of a file, and whether that is neither the current user nor root.
func foreigner(st fs.FileInfo) (owner uint32, foreign bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return sys.Uid, sys.Uid != 0 && int64(sys.Uid) != int64(os.Geteuid())
}
