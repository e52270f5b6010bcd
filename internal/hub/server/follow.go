//go:build linux

package server

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/logging"
)

// followEvery is how often files that may change are checked.
const followEvery = 5 * time.Second

// followed is a file that is read again when it changes: tokens or prices.
type followed struct {
	path  string
	what  string // such as token file, for the log
	kept  string // what stays valid if the changed file is not, such as tokens
	state string // before the file was last read
}

// follow returns a followed file. It must be called before the file is first read: a change in
// between would be missed.
func follow(path, what, kept string) *followed {
	return &followed{path: path, what: what, kept: kept, state: fileState(path)}
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
		state := fileState(f.path)
		if state == f.state {
			continue
		}
		f.state = state
		if err := read(); err != nil {
			if reason := logging.OneLine(err); reason != said {
				said = reason
				log.Warn("The changed "+f.what+" is not valid: the hub keeps the current "+f.kept, zap.String("reason", reason))
			}
			continue
		}
		said = ""
		log.Info("Reloaded the "+f.what, zap.String("file", f.path))
	}
}

// fileState returns a string that changes when a file is written, replaced or chmoded.
func fileState(path string) string {
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
