// Package journal keeps anomalies in a bounded file, as lines of JSON: an agent that traces
// writes them, gpumeter explain reads them.
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
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
)

const (
	// maxJournal is how large the file of anomalies grows before it becomes the old one.
	maxJournal = 4 << 20
	// maxLine is longer than any line of ours.
	maxLine = 64 << 10
)

// Line is one anomaly in the file.
type Line struct {
	anomaly.Anomaly
	// Attributes are those of the series that the anomaly counts in: workload and device.
	Attributes map[string]string `json:"attributes,omitempty"`
	Words      string            `json:"text"` // the whole of it
}

// Append writes lines to the file at path; an empty path keeps nothing. A file that is full
// replaces the old one.
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
		return fmt.Errorf("cannot make the folder of anomalies: %w", err)
	}
	if st, err := os.Stat(path); err == nil && st.Size()+int64(b.Len()) > maxJournal {
		if err := os.Rename(path, old(path)); err != nil {
			return fmt.Errorf("cannot put the old anomalies away: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot keep anomalies: %w", err)
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}

func old(path string) string { return path + ".1" }

// Read returns the anomalies in the file at path, and in the one before it, that
// happened at since or later. skipped is how many lines are none: a crash may leave half of
// one. That there is no file is an error of fs.ErrNotExist.
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

// parse returns what is in lines of JSON.
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
	if r.Err() != nil { // a line that is none: what follows it is lost
		skipped++
	}
	return list, skipped
}

// Latest returns the last word on each anomaly, by when it began.
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
