package days

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Report is what a folder of kept days contains.
type Report struct {
	Files int       `json:"files"`         // one per day, without those that cannot be read
	From  time.Time `json:"from,omitzero"` // start of the first day
	To    time.Time `json:"to,omitzero"`   // end of the last hour of the last day
	Bytes int64     `json:"bytes"`         // of Files

	Damaged  []Damage `json:"damaged"`   // files that cannot be read
	SetAside []Damage `json:"set_aside"` // such files that a hub has renamed
}

// Severities of a Damage.
const (
	Low  = "low"  // the day was made again, or can be made again from samples
	High = "high" // samples of the day are missing too: its usage is lost, at least in part
)

// Damage is a file that cannot be read.
type Damage struct {
	Path     string    `json:"path"` // in the store's folder
	Day      time.Time `json:"day"`
	Bytes    int64     `json:"bytes"`
	Reason   string    `json:"reason,omitempty"` // empty if it was set aside: see the hub's log
	Remade   bool      `json:"remade"`           // there is a new file of the day
	Severity string    `json:"severity"`
}

// Check reads all files in dir and verifies their checksums. oldest is the time of the oldest sample
// of the store, zero if there is none. Check changes nothing and may run beside a hub: it ignores a
// file that the hub deletes meanwhile.
func Check(ctx context.Context, dir string, oldest time.Time) (*Report, error) {
	r := &Report{Damaged: []Damage{}, SetAside: []Damage{}}
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil // a hub before the first one that keeps days
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the kept days: %w", err)
	}
	good := map[time.Time]bool{}
	for _, f := range list { // by name: a day comes before what was set aside of it
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t, aside, ok := parseName(f.Name())
		if !ok {
			continue
		}
		path := filepath.Join(dir, f.Name())
		st, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read a kept day: %w", err)
		}
		bad := Damage{Path: filepath.Join(filepath.Base(dir), f.Name()), Day: t, Bytes: st.Size(), Remade: good[t], Severity: High}
		if good[t] || !oldest.IsZero() && !oldest.After(t) {
			bad.Severity = Low
		}
		if aside {
			r.SetAside = append(r.SetAside, bad)
			continue
		}
		k, err := read(path, t, false, func([]byte) (id rowID) { return id })
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			bad.Reason = err.Error()
			r.Damaged = append(r.Damaged, bad)
			continue
		}
		good[t] = true
		if r.Files++; r.Files == 1 {
			r.From = t
		}
		r.To = t.Add(time.Duration(k.hours) * time.Hour)
		r.Bytes += st.Size()
	}
	return r, nil
}
