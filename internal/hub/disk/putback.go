package disk

import (
	"errors"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// checkpoint is the part of the log that stands for its deleted segments.
type checkpoint struct {
	logFolder
	upTo int // the last of these segments; -1 if there is no checkpoint
}

func readCheckpoint(wal string) (*checkpoint, error) {
	dir, upTo, err := wlog.LastCheckpoint(wal)
	if errors.Is(err, record.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &checkpoint{logFolder{after: -1}, -1}, nil
	}
	if err != nil {
		return nil, err
	}
	l, err := readLog(dir)
	if err != nil {
		return nil, err
	}
	return &checkpoint{*l, upTo}, nil
}

// restorer writes the samples of segments that were set aside long ago to the log of
// out-of-order samples, where their age does not matter.
//
// Records name series by number. The database that lost these segments used their numbers
// again for other series. The samples therefore get new numbers.
type restorer struct {
	wal        *logFolder
	checkpoint *checkpoint
	late       []logFile // segments of the log
	outOfOrder []logFile // segments of the log of out-of-order samples

	next    chunks.HeadSeriesRef // the next unused number
	known   map[chunks.HeadSeriesRef]labels.Labels
	renamed map[chunks.HeadSeriesRef]chunks.HeadSeriesRef
	series  []record.RefSeries // with new numbers
	unknown int                // samples of a series that is not known
}

// size returns the bytes of the segments to restore.
func (r *restorer) size() (n int64) {
	for _, f := range r.late {
		n += f.scan.size
	}
	for _, f := range r.outOfOrder {
		n += f.scan.size
	}
	return n
}

// takeOlder takes the segments of out-of-order samples that were written before the database lost
// the segments of the log: their series have the old numbers. It returns the others. The empty
// segment that the database's repair began has the time of the loss.
func (r *restorer) takeOlder(files []logFile) (rest []logFile) {
	lost, err := os.Stat(r.wal.name(r.late[len(r.late)-1].index))
	if err != nil {
		return files
	}
	for _, f := range files {
		if i, err := os.Stat(f.path); err == nil && !i.ModTime().After(lost.ModTime()) {
			r.outOfOrder = append(r.outOfOrder, f)
		} else {
			rest = append(rest, f)
		}
	}
	return rest
}

// write appends the samples to w.
func (r *restorer) write(w *wlog.WL) error {
	if len(r.late) == 0 {
		return nil
	}
	highest := func(s record.RefSeries) { r.next = max(r.next, s.Ref+1) }
	for _, files := range [][]logFile{r.checkpoint.segments, r.wal.segments, r.late} {
		if err := eachSeries(files, highest); err != nil {
			return err
		}
	}
	for _, f := range r.late {
		r.known, r.renamed = map[chunks.HeadSeriesRef]labels.Labels{}, map[chunks.HeadSeriesRef]chunks.HeadSeriesRef{}
		files := []logFile{}
		if r.checkpoint.upTo < f.index {
			files = append(files, r.checkpoint.segments...)
		}
		for _, s := range r.wal.segments {
			if s.index < f.index {
				files = append(files, s)
			}
		}
		learn := func(s record.RefSeries) { r.known[s.Ref] = s.Labels.Copy() }
		if err := eachSeries(append(files, f), learn); err != nil {
			return err
		}
		if err := r.copy(f, w); err != nil {
			return err
		}
	}
	for _, f := range r.outOfOrder {
		if err := r.copy(f, w); err != nil {
			return err
		}
	}
	return nil
}

// copy appends the samples of one segment to w.
func (r *restorer) copy(f logFile, w *wlog.WL) error {
	d := record.NewDecoder(nil, quiet)
	var e record.Encoder
	return each([]logFile{f}, func(rec []byte) error {
		switch d.Type(rec) {
		case record.Samples, record.SamplesV2:
			in, err := d.Samples(rec, nil)
			if err != nil {
				return nil //nolint:nilerr // the segment is set aside
			}
			out := in[:0]
			for _, s := range in {
				if s.Ref = r.rename(s.Ref); s.Ref > 0 {
					out = append(out, s)
				}
			}
			if len(out) > 0 {
				return w.Log(e.Samples(out, nil))
			}
		case record.HistogramSamples, record.CustomBucketsHistogramSamples, record.HistogramSamplesV2:
			in, err := d.HistogramSamples(rec, nil)
			if err != nil {
				return nil //nolint:nilerr // the segment is set aside
			}
			out := in[:0]
			for _, s := range in {
				if s.Ref = r.rename(s.Ref); s.Ref > 0 {
					out = append(out, s)
				}
			}
			if len(out) == 0 {
				return nil
			}
			text, custom := e.HistogramSamples(out, nil)
			if len(custom) < len(out) {
				if err := w.Log(text); err != nil {
					return err
				}
			}
			if len(custom) > 0 {
				return w.Log(e.CustomBucketsHistogramSamples(custom, nil))
			}
		}
		return nil
	})
}

// rename returns the new number of a series, 0 if the series is not known.
func (r *restorer) rename(old chunks.HeadSeriesRef) chunks.HeadSeriesRef {
	ref, ok := r.renamed[old]
	if ok {
		return ref
	}
	l, ok := r.known[old]
	if !ok {
		r.unknown++
		return 0
	}
	ref = r.next
	r.next++
	r.renamed[old] = ref
	r.series = append(r.series, record.RefSeries{Ref: ref, Labels: l})
	return ref
}

// writeSeries adds a segment with the new numbers to the log.
func (r *restorer) writeSeries() error {
	if len(r.series) == 0 {
		return nil
	}
	to := r.wal.name(r.wal.last() + 1)
	folder := to + copyExt + tmpExt
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	w, err := newLog(folder, 2*wlog.DefaultSegmentSize)
	if err != nil {
		return err
	}
	var e record.Encoder
	for rest := r.series; len(rest) > 0 && err == nil; {
		n := min(len(rest), 1000)
		err = w.Log(e.Series(rest[:n], nil))
		rest = rest[n:]
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	return errors.Join(os.Rename(wlog.SegmentName(folder, 0), to), os.RemoveAll(folder))
}

// done removes the segments of the log. One that could not be restored as a whole is set aside.
func (r *restorer) done(p *Plan) error {
	for _, f := range r.late {
		why := f.scan.damage
		if why == nil && r.unknown > 0 {
			why = fmt.Errorf("the series of %d samples are not known", r.unknown)
		}
		var err error
		if why == nil {
			err = os.Remove(f.path)
		} else {
			err = p.aside(f.path, "segment of the log", why, func() Range { c := contentOf(f); return c.times.asRange() })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachSeries calls do for each series that files declare.
func eachSeries(files []logFile, do func(record.RefSeries)) error {
	d := record.NewDecoder(nil, quiet)
	return each(files, func(rec []byte) error {
		if d.Type(rec) != record.Series {
			return nil
		}
		series, err := d.Series(rec, nil)
		if err != nil {
			return nil //nolint:nilerr // as the database does with what it cannot decode
		}
		for _, s := range series {
			do(s)
		}
		return nil
	})
}
