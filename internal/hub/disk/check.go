package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/prometheus/tsdb/wlog"
	"golang.org/x/sys/unix"
)

// Report is what a store's folder contains.
type Report struct {
	Dir   string `json:"dir"`
	InUse bool   `json:"in_use"` // a hub runs on it
	// Free and Need are the free space on the disk, and that for the next start, in bytes.
	Free int64 `json:"free_bytes"`
	Need int64 `json:"need_bytes,omitempty"`

	Blocks []Block `json:"blocks"`
	Logs   []Files `json:"logs"`
	Events Files   `json:"events"`

	// Problems are the files that cannot be read. Parts that were set aside are not among them:
	// the hub continues without them.
	Problems []Problem `json:"problems"`
	// SetAside are the damaged files that an earlier start moved to Damaged.
	SetAside []Damage `json:"set_aside"`
	// Repairs are the changes that the next start makes.
	Repairs []string `json:"repairs"`
}

// Block is a folder with the samples of a range of time.
type Block struct {
	ID         string `json:"id"`
	Range      Range  `json:"range"`
	Series     uint64 `json:"series"`
	Samples    uint64 `json:"samples"`
	Chunks     uint64 `json:"chunks"`
	Bytes      int64  `json:"bytes"`
	Level      int    `json:"level"` // how often it was merged
	OutOfOrder bool   `json:"out_of_order"`
	Damage     string `json:"damage,omitempty"`
}

// Files are the files of one kind.
type Files struct {
	Name    string `json:"name"` // of their folder
	Files   int    `json:"files"`
	Series  int    `json:"series,omitempty"`
	Samples int    `json:"samples,omitempty"`
	Events  int    `json:"events,omitempty"`
	Bytes   int64  `json:"bytes"`
	Range   Range  `json:"range,omitzero"`
}

// Problem is a file that cannot be read.
type Problem struct {
	Path   string `json:"path"` // in the store's folder
	Reason string `json:"reason"`
	Range  Range  `json:"range,omitzero"`
}

// Oldest returns the time of the oldest sample that can be read, zero if there is none.
func (r *Report) Oldest() time.Time {
	var oldest time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (oldest.IsZero() || t.Before(oldest)) {
			oldest = t
		}
	}
	for i := range r.Blocks {
		if r.Blocks[i].Damage == "" {
			earlier(r.Blocks[i].Range.From)
		}
	}
	for i := range r.Logs {
		earlier(r.Logs[i].Range.From)
	}
	return oldest
}

// Check reads the samples and events in the store's folder dir and verifies all checksums. It changes nothing
// and may run beside a hub. If a hub deletes a file meanwhile, Check ignores that file.
func Check(ctx context.Context, dir string) (*Report, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, dbFolder)); err != nil {
		return nil, fmt.Errorf("%s is not the folder of a hub: %w", dir, err)
	}
	r := &Report{Dir: dir, Blocks: []Block{}, Logs: []Files{}, Problems: []Problem{}, SetAside: []Damage{}, Repairs: []string{}}
	var err error
	if r.InUse, err = inUse(dir); err != nil {
		return nil, err
	}
	// Every kind of file in the folder has its own check.
	for _, check := range []func(context.Context) error{r.checkBlocks, r.checkLogs, r.checkHead, r.checkEvents, r.checkAside, r.checkRepairs} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	return r, ctx.Err()
}

// inUse reports whether a hub has the folder open. It holds a shared lock for an instant, for which
// a starting hub waits.
func inUse(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) //nolint:gosec // a file descriptor is small
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot see whether a hub uses %s: %w", dir, err)
	}
	return false, unix.Flock(int(f.Fd()), unix.LOCK_UN) //nolint:gosec // a file descriptor is small
}

// problem adds a problem unless err is nil, or a hub deleted the file.
func (r *Report) problem(path string, err error, span Range) {
	if err == nil {
		return
	}
	if _, gone := os.Lstat(path); gone != nil && r.InUse {
		return
	}
	if rel, e := filepath.Rel(r.Dir, path); e == nil {
		path = rel
	}
	r.Problems = append(r.Problems, Problem{path, err.Error(), span})
}

func (r *Report) checkBlocks(ctx context.Context) error {
	blocks, err := readBlocks(filepath.Join(r.Dir, dbFolder))
	if err != nil {
		return err
	}
	for i := range blocks {
		b := &blocks[i]
		b.verify(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := os.Stat(b.dir); err != nil && r.InUse {
			continue
		}
		out := Block{
			ID: filepath.Base(b.dir), Range: b.span(), Series: b.series, Samples: b.samples, Chunks: b.chunks, Bytes: Size(b.dir),
			Level: b.meta.Compaction.Level, OutOfOrder: b.meta.Compaction.FromOutOfOrder(),
		}
		if err := errors.Join(b.damage, b.tombstones); err != nil {
			out.Damage = err.Error()
		}
		r.Blocks = append(r.Blocks, out)
		r.problem(b.dir, b.damage, out.Range)
		r.problem(filepath.Join(b.dir, tombstoneFile), b.tombstones, out.Range)
	}
	return nil
}

func (r *Report) checkLogs(ctx context.Context) error {
	db := filepath.Join(r.Dir, dbFolder)
	dirs := []string{filepath.Join(db, walFolder), filepath.Join(db, wlog.WblDirName)}
	last, _, err := wlog.LastCheckpoint(dirs[0])
	if err == nil {
		dirs = append([]string{last}, dirs...)
	}
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		l, err := readLog(dir)
		for i := 0; errors.Is(err, fs.ErrNotExist) && r.InUse && i < 5; i++ {
			l, err = readLog(dir) // a segment was deleted
		}
		if err != nil {
			return err
		}
		c := contentOf(l.segments...)
		name, _ := filepath.Rel(r.Dir, dir)
		r.Logs = append(r.Logs, Files{
			Name: name, Files: len(l.segments), Series: c.series, Samples: c.samples, Bytes: l.size(), Range: c.times.asRange(),
		})
		for _, f := range l.segments {
			if f.scan.damage != nil {
				r.problem(f.path, f.scan.damage, contentOfFile(f))
			}
		}
		for _, f := range l.aside {
			r.problem(f.path, errors.New("a repair of the database set it aside and did not finish; the next start puts it back"), contentOfFile(f))
		}
		for _, index := range l.missing() {
			r.problem(l.name(index), errors.New("the file is missing"), Range{})
		}
	}
	return nil
}

func contentOfFile(f logFile) Range {
	c := contentOf(f)
	return c.times.asRange()
}

func (r *Report) checkHead(context.Context) error {
	dir := filepath.Join(r.Dir, dbFolder, headFolder)
	files, err := readHeadChunks(dir)
	for i := 0; errors.Is(err, fs.ErrNotExist) && r.InUse && i < 5; i++ {
		files, err = readHeadChunks(dir) // a file was deleted
	}
	if err != nil {
		return err
	}
	name, _ := filepath.Rel(r.Dir, dir)
	sum, all := Files{Name: name, Files: len(files)}, times{}
	for i, f := range files {
		sum.Samples += f.samples
		sum.Bytes += f.size
		all.merge(f.times)
		if r.InUse && i == len(files)-1 {
			continue // is being written
		}
		r.problem(f.path, f.damage, f.times.asRange())
	}
	sum.Range = all.asRange()
	r.Logs = append(r.Logs, sum)
	return nil
}

func (r *Report) checkEvents(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(r.Dir, "events", "*.jsonl"))
	if err != nil {
		return err
	}
	r.Events = Files{Name: "events", Files: len(files)}
	all := times{}
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			r.problem(file, err, Range{})
			continue
		}
		r.Events.Bytes += int64(len(text))
		bad, first, in := 0, 0, times{}
		whole := text[:bytes.LastIndexByte(text, '\n')+1] // the rest was never acknowledged
		number := 0
		for line := range bytes.Lines(whole) {
			number++
			var e struct {
				Time time.Time `json:"time"`
			}
			if err := json.Unmarshal(line, &e); err != nil || e.Time.IsZero() {
				if bad++; first == 0 {
					first = number
				}
				continue
			}
			r.Events.Events++
			in.add(e.Time.UnixMilli())
		}
		all.merge(in)
		if bad > 0 {
			r.problem(file, fmt.Errorf("%d lines are not events, the first is line %d; the hub ignores them", bad, first), in.asRange())
		}
	}
	r.Events.Range = all.asRange()
	return nil
}

func (r *Report) checkAside(context.Context) error {
	list, err := ListDamaged(r.Dir)
	if len(list) > 0 {
		r.SetAside = list
	}
	return err
}

// checkRepairs lists what the next start does. A running hub has nothing to repair.
func (r *Report) checkRepairs(context.Context) error {
	var err error
	if r.Free, err = Free(r.Dir); err != nil || r.InUse {
		return err
	}
	p, err := Examine(r.Dir)
	if err != nil {
		return err
	}
	r.Need = p.Need
	if steps := p.Steps(); len(steps) > 0 {
		r.Repairs = steps
	}
	return nil
}
