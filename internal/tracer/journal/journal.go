// Package journal keeps anomalies in a bounded file of JSON lines: a tracing agent writes it, gpumeter
// explain reads it.
package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
)

const (
	// maxJournal is the size at which the file is rotated.
	maxJournal = 4 << 20
	// maxLine exceeds the length of any valid line.
	maxLine = 64 << 10
)

// Line is one anomaly in the file.
type Line struct {
	anomaly.Anomaly
	// Attributes are those of the series that counts the anomaly: workload and device.
	Attributes map[string]string `json:"attributes,omitempty"`
	Words      string            `json:"text"` // the whole anomaly as a sentence
}

// Append writes lines to the file at path; an empty path keeps nothing. A full file replaces the
// previous rotated file.
func Append(path string, list []Line) error {
	if path == "" || len(list) == 0 {
		return nil
	}
	var b bytes.Buffer
	for i := range list {
		line, err := json.Marshal(&list[i])
		if err != nil {
			return err
		}
		if len(line) < maxLine {
			b.Write(line)
			b.WriteByte('\n')
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("cannot create the folder for anomalies: %w", err)
	}
	if st, err := os.Stat(path); err == nil && st.Size()+int64(b.Len()) > maxJournal {
		if err := os.Rename(path, old(path)); err != nil {
			return fmt.Errorf("cannot rotate the anomaly file: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write anomalies: %w", err)
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}

func old(path string) string { return path + ".1" }

// Read returns the anomalies in the file at path and in its rotated predecessor that happened at since
// or later. skipped counts invalid lines: a crash may leave a truncated one. If there is no file, the
// error is fs.ErrNotExist.
func Read(path string, since time.Time) (list []Line, skipped int, err error) {
	text, errOld := readFile(old(path))
	if errOld != nil && !errors.Is(errOld, fs.ErrNotExist) {
		return nil, 0, errOld
	}
	now, err := readFile(path)
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || errOld != nil) {
		return nil, 0, err
	}
	list, skipped = parse(append(text, now...), since)
	return list, skipped, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxJournal+maxLine))
}

// parse decodes JSON lines.
func parse(text []byte, since time.Time) (list []Line, skipped int) {
	r := bufio.NewScanner(bytes.NewReader(text))
	r.Buffer(nil, maxLine)
	for r.Scan() {
		if len(bytes.TrimSpace(r.Bytes())) == 0 {
			continue
		}
		var line Line
		if err := json.Unmarshal(r.Bytes(), &line); err != nil || line.Op == "" || line.Time.IsZero() {
			skipped++
			continue
		}
		if !line.Time.Before(since) {
			list = append(list, line)
		}
	}
	if r.Err() != nil { // an overlong line: the rest is lost
		skipped++
	}
	return list, skipped
}

// Latest returns the latest line of each anomaly, ordered by start.
func Latest(list []Line) []Line {
	type key struct {
		pid   uint32
		op    string
		since int64
	}
	last := map[key]Line{}
	for _, l := range list {
		k := key{l.PID, l.Op, l.Since.UnixNano()}
		if was, ok := last[k]; !ok || !l.Time.Before(was.Time) {
			last[k] = l
		}
	}
	out := make([]Line, 0, len(last))
	for _, l := range last {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b Line) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Op, b.Op))
	})
	return out
}
