// Package audit writes who asked a hub for what: one line of JSON per request, without secrets.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// Entry is one request.
type Entry struct {
	Time     time.Time `json:"time"`
	Token    string    `json:"token,omitempty"` // the name of the token, not its secret
	Role     string    `json:"role,omitempty"`
	Scope    string    `json:"scope,omitempty"` // team or namespace to which the token is restricted
	Peer     string    `json:"peer"`
	Method   string    `json:"method"`
	Path     string    `json:"path"`
	Query    string    `json:"query,omitempty"` // parameters, truncated
	Status   int       `json:"status"`
	Duration float64   `json:"duration_seconds"`
}

const (
	// maxText bounds a path or query in an entry, in bytes.
	maxText = 2048
	// maxFile is the size at which the file is rotated, and keep the number of old files.
	maxFile = 100 << 20
	keep    = 3
)

// Log is an audit log. It is safe for concurrent use.
type Log struct {
	path   string
	max    int64
	failed func(error) // called for the first of consecutive failures

	mu   sync.Mutex
	file *os.File
	size int64
	bad  bool
}

// Open opens the log at path. The file is private to its owner. failed is called when writing
// fails: requests are served nevertheless.
func Open(path string, failed func(error)) (*Log, error) {
	l := &Log{path: path, max: maxFile, failed: failed}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("cannot open the audit log: %w", err)
	}
	return l, nil
}

// open refuses a link, a second name and a pipe: another user may have planted them.
func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.Mode().IsRegular() || ok && sys.Nlink > 1 {
		return errors.Join(fmt.Errorf("%s is not a regular file with a single name", l.path), f.Close())
	}
	l.file, l.size = f, st.Size()
	return nil
}

// Write appends an entry.
func (l *Log) Write(e Entry) {
	e.Path, e.Query = cut(e.Path), cut(e.Query)
	line, err := json.Marshal(e) // escapes control characters: an entry is one line
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.file == nil {
		err = l.open()
	}
	if err == nil && l.size > 0 && l.size+int64(len(line)) > l.max {
		err = l.rotate()
	}
	if err == nil {
		var n int
		n, err = l.file.Write(line)
		l.size += int64(n)
	}
	if err != nil && !l.bad {
		l.failed(err)
	}
	l.bad = err != nil
}

// rotate renames the file to FILE.1, FILE.1 to FILE.2 and so on, and starts a new one.
func (l *Log) rotate() error {
	err := l.file.Close()
	l.file = nil
	for i := keep; i > 1; i-- {
		if e := os.Rename(fmt.Sprint(l.path, ".", i-1), fmt.Sprint(l.path, ".", i)); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, os.Rename(l.path, l.path+".1"), l.open())
}

// Close closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

func cut(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "…"
	}
	return s
}
