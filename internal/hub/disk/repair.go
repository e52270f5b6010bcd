package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

const (
	// dbFolder is the folder of the database in a store's folder.
	dbFolder   = "tsdb"
	walFolder  = "wal"
	headFolder = "chunks_head"
	// lockFile is in the folder of the database unless it was closed.
	lockFile = "lock"
	oldExt   = ".old"
)

// Plan is what has to be done to a store before the database opens it.
type Plan struct {
	// Need is the free space that the repair and the database need, in bytes.
	Need int64

	dir     string
	steps   []step
	now     time.Time
	damaged []Damage
}

// step is one change. A kill between two steps, or within one, loses nothing.
type step struct {
	what string
	do   func() error
}

// Examine returns what has to be done to the store in dir. It changes nothing. No other
// process may write to the store.
func Examine(dir string) (*Plan, error) {
	p := &Plan{dir: dir, Need: Reserve / 2}
	db := filepath.Join(dir, dbFolder)
	_, err := os.Stat(filepath.Join(db, lockFile))
	killed := err == nil
	blocks, err := readBlocks(db)
	if err != nil {
		return nil, fmt.Errorf("cannot read the blocks: %w", err)
	}
	for i := range blocks {
		p.mendBlock(&blocks[i])
	}
	head, err := readHeadChunks(filepath.Join(db, headFolder))
	if err != nil {
		return nil, fmt.Errorf("cannot read the chunks of the newest samples: %w", err)
	}
	wal, err := readLog(filepath.Join(db, walFolder))
	if err != nil {
		return nil, fmt.Errorf("cannot read the log: %w", err)
	}
	checkpoint, err := readCheckpoint(wal.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the checkpoint of the log: %w", err)
	}
	wal.after = checkpoint.upTo
	late := p.putBack(wal)
	wbl, err := p.openOutOfOrder(filepath.Join(db, wlog.WblDirName))
	if err != nil {
		return nil, fmt.Errorf("cannot read the log of out-of-order samples: %w", err)
	}
	p.mendLog(&checkpoint.logFolder)
	p.mendLog(wal)
	lost := p.mendHead(head, len(late) > 0)
	p.mendOutOfOrder(wbl, killed || lost, &restorer{wal: wal, checkpoint: checkpoint, late: late})
	p.Need += wal.size() / 32 // chunks that the database makes of the log
	return p, nil
}

// Steps describes the changes.
func (p *Plan) Steps() []string {
	var out []string
	for _, s := range p.steps {
		out = append(out, s.what)
	}
	return out
}

// Apply makes the changes and returns what it set aside. It does nothing if there is not
// enough room.
func (p *Plan) Apply(now time.Time) ([]Damage, error) {
	if err := CheckRoom(p.dir, p.Need); err != nil {
		return nil, err
	}
	p.now = now
	for _, s := range p.steps {
		if err := s.do(); err != nil {
			return p.damaged, fmt.Errorf("cannot %s: %w", s.what, err)
		}
	}
	return p.damaged, nil
}

func (p *Plan) add(do func() error, format string, args ...any) {
	p.steps = append(p.steps, step{fmt.Sprintf(format, args...), do})
}

// aside moves a file or folder to Damaged.
func (p *Plan) aside(path, what string, why error, times func() Range) error {
	rel, err := filepath.Rel(p.dir, path)
	if err != nil {
		return err
	}
	d, err := SetAside(p.dir, Damage{Path: rel, What: what, Reason: why.Error(), Range: times(), Time: p.now})
	if err == nil {
		p.damaged = append(p.damaged, d)
	}
	return err
}

func (p *Plan) mendBlock(b *block) {
	if b.damage != nil {
		p.add(func() error { return p.aside(b.dir, "block", b.damage, b.span) }, "set aside the block %s", filepath.Base(b.dir))
		return
	}
	if b.tombstones != nil {
		p.add(func() error {
			return p.aside(filepath.Join(b.dir, tombstoneFile), "list of deleted samples", b.tombstones, b.span)
		}, "set aside the list of deleted samples of the block %s", filepath.Base(b.dir))
	}
}

// mendHead sets aside the first damaged chunk file and all later ones, or all of them. It reports
// whether chunks that a log refers to are missing. Their samples are in the logs.
func (p *Plan) mendHead(files []headChunks, all bool) (lost bool) {
	why := errors.New("the log has changed; its samples are read from there")
	for i := range files {
		f := &files[i]
		lost = lost || f.torn
		if f.damage != nil && !all {
			all, why = true, errors.New("it follows a damaged file; its samples are read from the log")
		} else if f.damage == nil && !all {
			continue
		}
		reason := why
		if f.damage != nil {
			reason = f.damage
		}
		p.Need += f.size
		p.add(func() error { return p.aside(f.path, "chunks of the newest samples", reason, f.times.asRange) },
			"set aside the chunk file %s", filepath.Base(f.path))
	}
	return lost || all && len(files) > 0
}

// putBack restores segments that the database's own repair set aside before it failed. What the
// repair had copied until then is replaced. It returns the segments after which other records were
// written: their series have numbers that are in use again.
func (p *Plan) putBack(l *logFolder) (late []logFile) {
	for i, f := range l.aside {
		written := func(x logFile) bool { return x.index > f.index && x.scan.records > 0 }
		if slices.ContainsFunc(l.segments, written) || slices.ContainsFunc(l.aside[i+1:], written) {
			late = append(late, f)
			continue
		}
		p.replace(l, f)
	}
	return late
}

// replace puts a segment that was set aside back into its place.
func (p *Plan) replace(l *logFolder, f logFile) {
	from, to := f.path, l.name(f.index)
	p.add(func() error { return os.Rename(from, to) }, "put back %s", filepath.Base(from))
	f.path = to
	at, found := slices.BinarySearchFunc(l.segments, f.index, func(x logFile, index int) int { return x.index - index })
	if found {
		l.segments[at] = f
	} else {
		l.segments = slices.Insert(l.segments, at, f)
	}
}

// mendLog makes a log readable to its end.
func (p *Plan) mendLog(l *logFolder) {
	for _, path := range l.stale {
		p.add(func() error { return os.RemoveAll(path) }, "remove the incomplete %s", filepath.Base(path))
	}
	for i := range l.segments {
		f := &l.segments[i]
		name := l.name(f.index)
		if path := f.path; path != name {
			p.add(func() error { return os.Rename(path, name) }, "complete the repair of %s", filepath.Base(name))
			f.path = name
		}
		switch scan := f.scan; {
		case scan.rewrite():
			p.Need += scan.size
			p.add(func() error { return p.rewrite(name, scan.damage) }, "copy the readable records of %s", filepath.Base(name))
		case scan.torn >= 0:
			p.add(func() error { return os.Truncate(name, scan.torn) }, "remove an incomplete record, which was never acknowledged, from the end of %s", filepath.Base(name))
		}
	}
	for _, index := range l.missing() {
		name := l.name(index)
		p.add(func() error {
			p.reportMissing(name)
			return os.WriteFile(name, nil, 0o640)
		}, "skip the missing segment %s", filepath.Base(name))
	}
}

// reportMissing adds a missing segment to the result.
func (p *Plan) reportMissing(path string) {
	if rel, err := filepath.Rel(p.dir, path); err == nil {
		path = rel
	}
	p.damaged = append(p.damaged, Damage{Path: path, What: "segment of the log", Reason: "the file is missing", Time: p.now.UTC()})
}

// rewrite replaces a segment by a copy of its readable records.
func (p *Plan) rewrite(name string, damage error) error {
	if err := copyRecords(name, name+copyExt); err != nil {
		return err
	}
	if damage != nil {
		times := func() Range { c := contentOf(logFile{path: name}); return c.times.asRange() }
		if err := p.aside(name, "segment of the log", damage, times); err != nil {
			return err
		}
	} else if err := os.Remove(name); err != nil {
		return err
	}
	return os.Rename(name+copyExt, name)
}

// openOutOfOrder examines the log of out-of-order samples, and undoes a repair of it that was killed.
func (p *Plan) openOutOfOrder(dir string) (*logFolder, error) {
	old := dir + oldExt
	earlier, err := readLog(old)
	if err != nil {
		return nil, err
	}
	_, err = os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) && len(earlier.segments) > 0 {
		p.add(func() error { return os.Rename(old, dir) }, "undo an incomplete repair of the log of out-of-order samples")
		for i := range earlier.segments {
			earlier.segments[i].path = filepath.Join(dir, filepath.Base(earlier.segments[i].path))
		}
		for i := range earlier.aside {
			earlier.aside[i].path = filepath.Join(dir, filepath.Base(earlier.aside[i].path))
		}
		earlier.dir = dir
		return earlier, nil
	}
	if _, err := os.Stat(old); err == nil { // the rest of it, if the process was killed while it was removed
		p.add(func() error { return p.drop(earlier) }, "complete the repair of the log of out-of-order samples")
	}
	return readLog(dir)
}

// drop removes a log that was replaced. A damaged one is set aside.
func (p *Plan) drop(l *logFolder) error {
	for _, f := range l.segments {
		if f.scan.damage != nil {
			times := func() Range { c := contentOf(l.segments...); return c.times.asRange() }
			for i := range l.segments {
				l.segments[i].path = filepath.Join(l.dir, filepath.Base(l.segments[i].path))
			}
			return p.aside(l.dir, "log of out-of-order samples", fmt.Errorf("%s: %w", filepath.Base(f.path), f.scan.damage), times)
		}
	}
	return os.RemoveAll(l.dir)
}

// mendOutOfOrder rewrites the log of out-of-order samples where it has to be.
//
// Out-of-order samples are in the log until they are in a chunk on disk; then a marker in the
// log says so. Chunks are written late, so after a kill some markers refer to chunks that do
// not exist. The database detects that by chunk number, but only once: after a second kill
// other chunks have these numbers, and the samples would be skipped. Therefore the markers
// are removed: the whole log is replayed, and samples that are also in a chunk exist twice,
// which queries do not show.
func (p *Plan) mendOutOfOrder(l *logFolder, unmark bool, r *restorer) {
	marked := slices.ContainsFunc(l.segments, func(f logFile) bool { return f.scan.marked })
	if len(r.late) == 0 && l.clean() && len(l.missing()) == 0 && (!unmark || !marked) {
		return
	}
	if len(r.late) == 0 {
		for _, f := range l.aside {
			p.replace(l, f) // no records depend on the order of this log
		}
	} else {
		l.segments = r.takeOlder(l.segments)
		r.outOfOrder = append(r.outOfOrder, l.aside...)
	}
	p.Need += l.size() + r.size()
	for _, index := range l.missing() {
		name := l.name(index)
		p.add(func() error { p.reportMissing(name); return nil }, "skip the missing segment %s", filepath.Base(name))
	}
	p.add(func() error { return p.rewriteOutOfOrder(l, r) }, "rewrite the log of out-of-order samples")
	if len(r.late) > 0 {
		p.add(func() error { return r.done(p) }, "remove the segments that were put back")
	}
}

func (p *Plan) rewriteOutOfOrder(l *logFolder, r *restorer) error {
	old, made := l.dir+oldExt, l.dir+tmpExt
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	w, err := newLog(made, wlog.DefaultSegmentSize)
	if err != nil {
		return err
	}
	var d record.Decoder
	err = each(l.segments, func(rec []byte) error {
		if d.Type(rec) == record.MmapMarkers {
			return nil
		}
		return w.Log(rec)
	})
	if err == nil {
		err = r.write(w)
	}
	if err = errors.Join(err, w.Close()); err == nil {
		err = r.writeSeries()
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(made)) // gives back the room
	}
	if err := os.Rename(l.dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(made, l.dir); err != nil {
		return err
	}
	l.dir, l.segments = old, append(l.segments, r.outOfOrder...)
	return p.drop(l)
}
