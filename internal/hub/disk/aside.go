package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// Damaged is the folder in a store's folder with everything that could not be read. Nothing
// in it is ever used or deleted.
const Damaged = "damaged"

// Damage describes a part of a store that was set aside.
type Damage struct {
	Path   string    `json:"path"` // in the store's folder, before it was set aside
	What   string    `json:"what"`
	Reason string    `json:"reason"`
	Range  Range     `json:"range,omitzero"` // of its samples, as far as it is known
	Bytes  int64     `json:"bytes"`
	Aside  string    `json:"aside"` // where it is now, in the store's folder
	Time   time.Time `json:"time"`  // when it was set aside
}

// SetAside moves d.Path of the store in dir to Damaged, with a description beside it.
func SetAside(dir string, d Damage) (Damage, error) {
	folder := filepath.Join(dir, Damaged)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return d, err
	}
	from := filepath.Join(dir, d.Path)
	if _, err := os.Lstat(from); err != nil {
		return d, err
	}
	d.Bytes, d.Time = Size(from), d.Time.UTC()
	base := strings.ReplaceAll(d.Path, string(filepath.Separator), "_")
	name := base
	for n := 2; ; n++ {
		_, err := os.Lstat(filepath.Join(folder, name))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return d, err
		}
		name = fmt.Sprintf("%s.%d", base, n)
	}
	d.Aside = filepath.Join(Damaged, name)
	text, err := json.Marshal(d)
	if err != nil {
		return d, err
	}
	// The description comes first: without its file it has no meaning.
	if err := os.WriteFile(filepath.Join(folder, name+".json"), append(text, '\n'), 0o640); err != nil {
		return d, err
	}
	return d, os.Rename(from, filepath.Join(dir, d.Aside))
}

// ListDamaged returns what was set aside in the store in dir, and is still there, oldest first.
func ListDamaged(dir string) ([]Damage, error) {
	files, err := filepath.Glob(filepath.Join(dir, Damaged, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []Damage
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var d Damage
		if err := json.Unmarshal(text, &d); err != nil {
			d = Damage{Reason: "unknown: " + filepath.Base(file) + " cannot be read"}
		}
		d.Aside = filepath.Join(Damaged, strings.TrimSuffix(filepath.Base(file), ".json"))
		if _, err := os.Lstat(filepath.Join(dir, d.Aside)); err == nil {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b Damage) int { return a.Time.Compare(b.Time) })
	return out, nil
}
