package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// maxJournal is how large the file of anomalies grows before it becomes the old one.
	maxJournal = 4 << 20
	// maxLine is longer than any line of ours.
	maxLine = 64 << 10
)

// Journal keeps anomalies in a file.
type Journal struct {
	Path string // empty: nothing is kept
}

// Append writes lines, if there is a file for them. A file that is full becomes the old one, and the one before it goes.
func (j Journal) Append(list []Line) error {
	if j.Path == "" || len(list) == 0 {
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
	if err := os.MkdirAll(filepath.Dir(j.Path), 0o700); err != nil {
		return fmt.Errorf("cannot make the folder of anomalies: %w", err)
	}
	if st, err := os.Stat(j.Path); err == nil && st.Size()+int64(b.Len()) > maxJournal {
		if err := os.Rename(j.Path, old(j.Path)); err != nil {
			return fmt.Errorf("cannot put the old anomalies away: %w", err)
		}
	}
	f, err := os.OpenFile(j.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot keep anomalies: %w", err)
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}

func old(path string) string { return path + ".1" }

// ReadJournal returns the anomalies in the file at path, and in the one before it, that
// happened at since or later. skipped is how many lines are none: a crash may leave half of
// one. That there is no file is an error of fs.ErrNotExist.
func ReadJournal(path string, since time.Time) (list []Line, skipped int, err error) {
	text, errOld := readFile(old(path))
	if errOld != nil && !errors.Is(errOld, fs.ErrNotExist) {
		return nil, 0, errOld
	}
	now, err := readFile(path)
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || errOld != nil) {
		return nil, 0, err
	}
	list, skipped = parseAnomalies(append(text, now...), since)
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

// parseAnomalies returns what is in lines of JSON.
func parseAnomalies(text []byte, since time.Time) (list []Line, skipped int) {
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
