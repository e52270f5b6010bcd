//go:build linux

package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/logging"
)

// followEvery is how often files that may change are checked.
const followEvery = 5 * time.Second

// followed is a file that is read again when it changes: tokens or prices.
type followed struct {
	stale   // what stays valid if the changed file is not, such as tokens
	path    string
	file    string // such as token file, for the log
	version string // before the file was last read
}

// follow returns a followed file. It must be called before the file is first read: a change in
// between would be missed.
func follow(path, file, what string) *followed {
	return &followed{stale: stale{what: what, name: filepath.Base(path), valid: time.Now()}, path: path, file: file, version: fileVersion(path)}
}

// run calls read whenever the file changed, until ctx is canceled. If read fails, what was read
// before stays valid, and the error is logged once.
func (f *followed) run(ctx context.Context, read func() error, log *zap.Logger) {
	clock := time.NewTicker(followEvery)
	defer clock.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		version := fileVersion(f.path)
		if version == f.version {
			continue
		}
		f.version = version
		err := read()
		f.read(err, time.Now())
		if err != nil {
			if reason := logging.OneLine(err); reason != said {
				said = reason
				log.Warn("The changed "+f.file+" is not valid: the hub keeps the current "+f.what, zap.String("reason", reason))
			}
			continue
		}
		said = ""
		log.Info("Reloaded the "+f.file, zap.String("file", f.path))
	}
}

// fileVersion returns a string that changes when a file is written, replaced or chmoded.
func fileVersion(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	inode := uint64(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	return fmt.Sprint(inode, st.Size(), st.Mode(), st.ModTime().UnixNano())
}
