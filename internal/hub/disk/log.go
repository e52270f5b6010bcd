package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"
)

const (
	// repairExt marks a segment that the database's own repair set aside, and never read again if
	// it could not finish.
	repairExt = ".repair"
	// copyExt marks a copy of a segment without its unreadable parts. It is complete if the segment
	// itself is gone.
	copyExt = ".new"
	// tmpExt marks what is being written.
	tmpExt = ".tmp"
)

// logFile is one segment of a log.
type logFile struct {
	index int
	// path is the file that has the records: the segment, or the complete copy of it.
	path string
	scan segmentScan
}

// logFolder is a log: a folder of segments.
type logFolder struct {
	dir      string
	segments []logFile // in order
	aside    []logFile // set aside by the database's repair, in order
	stale    []string  // incomplete copies
	after    int       // the segment after which the log must go on; -1 if it may start anywhere
}

// readLog examines the log in dir. A missing folder is an empty log.
func readLog(dir string) (*logFolder, error) {
	l := &logFolder{dir: dir, after: -1}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	copies := map[int]string{}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), copyExt+tmpExt) {
			l.stale = append(l.stale, filepath.Join(dir, e.Name()))
		}
		name := strings.TrimSuffix(strings.TrimSuffix(e.Name(), repairExt), copyExt)
		index, err := strconv.Atoi(name)
		if err != nil || e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case "":
			l.segments = append(l.segments, logFile{index: index, path: path})
		case repairExt:
			l.aside = append(l.aside, logFile{index: index, path: path})
		case copyExt:
			copies[index] = path
		}
	}
	for index, path := range copies {
		if slices.ContainsFunc(l.segments, func(f logFile) bool { return f.index == index }) {
			l.stale = append(l.stale, path)
		} else {
			l.segments = append(l.segments, logFile{index: index, path: path})
		}
	}
	for _, files := range [][]logFile{l.segments, l.aside} {
		slices.SortFunc(files, func(a, b logFile) int { return a.index - b.index })
	}
	return l, errors.Join(scanAll(l.segments), scanAll(l.aside))
}

// scanAll scans segments concurrently.
func scanAll(files []logFile) error {
	errs := make([]error, len(files))
	turn := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i := range files {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			files[i].scan, errs[i] = scanSegment(files[i].path, nil)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// name returns the path of a segment in the log.
func (l *logFolder) name(index int) string { return wlog.SegmentName(l.dir, index) }

// clean reports whether the database can read all of the log.
func (l *logFolder) clean() bool {
	return len(l.aside) == 0 && !slices.ContainsFunc(l.segments, func(f logFile) bool { return !f.scan.clean() })
}

// size returns the bytes of the segments.
func (l *logFolder) size() (n int64) {
	for _, f := range l.segments {
		n += f.scan.size
	}
	return n
}

// last returns the number of the last segment, -1 if there is none.
func (l *logFolder) last() int {
	if len(l.segments) == 0 {
		return -1
	}
	return l.segments[len(l.segments)-1].index
}

// missing returns the numbers of segments that are missing between others, or between the segment
// number after and the first one.
func (l *logFolder) missing() (out []int) {
	next := l.after + 1
	if len(l.segments) > 0 && (l.after < 0 || l.segments[0].index < next) {
		next = l.segments[0].index
	}
	for _, f := range l.segments {
		for ; next < f.index; next++ {
			out = append(out, next)
		}
		next = max(next, f.index+1)
	}
	if len(l.segments) == 0 && l.after >= 0 {
		out = append(out, next)
	}
	return out
}

// each calls do for each record of the given files, in order.
func each(files []logFile, do func(record []byte) error) error {
	for _, f := range files {
		if _, err := scanSegment(f.path, do); err != nil {
			return err
		}
	}
	return nil
}

// content is what the records of a log contain.
type content struct {
	series, samples int
	times           times
	decoder         record.Decoder

	seriesBuf    []record.RefSeries
	sampleBuf    []record.RefSample
	histogramBuf []record.RefHistogramSample
}

// add counts a record. A record that cannot be decoded counts for nothing.
func (c *content) add(rec []byte) error {
	switch c.decoder.Type(rec) {
	case record.Series:
		c.seriesBuf, _ = c.decoder.Series(rec, c.seriesBuf[:0])
		c.series += len(c.seriesBuf)
	case record.Samples, record.SamplesV2:
		c.sampleBuf, _ = c.decoder.Samples(rec, c.sampleBuf[:0])
		c.samples += len(c.sampleBuf)
		for i := range c.sampleBuf {
			c.times.add(c.sampleBuf[i].T)
		}
	case record.HistogramSamples, record.CustomBucketsHistogramSamples, record.HistogramSamplesV2:
		c.histogramBuf, _ = c.decoder.HistogramSamples(rec, c.histogramBuf[:0])
		c.samples += len(c.histogramBuf)
		for i := range c.histogramBuf {
			c.times.add(c.histogramBuf[i].T)
		}
	}
	return nil
}

// contentOf decodes files. Their time range is that of the readable part.
func contentOf(files ...logFile) content {
	c := content{decoder: record.NewDecoder(nil, quiet)}
	_ = each(files, c.add) // c never fails; a file that cannot be read has no content
	return c
}

// copyRecords writes the readable records of the segment at from to a new segment at to.
func copyRecords(from, to string) error {
	folder := to + tmpExt
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	w, err := newLog(folder, 2*wlog.DefaultSegmentSize) // everything in one segment
	if err != nil {
		return err
	}
	err = errors.Join(each([]logFile{{path: from}}, func(rec []byte) error { return w.Log(rec) }), w.Close())
	if err == nil {
		_, last, e := wlog.Segments(folder)
		if err = e; err == nil && last != 0 {
			err = fmt.Errorf("the copy of %s has %d segments", from, last+1)
		}
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(folder)) // gives back the room
	}
	return errors.Join(os.Rename(wlog.SegmentName(folder, 0), to), os.RemoveAll(folder))
}

// newLog creates a log. Close syncs it to disk.
func newLog(dir string, segmentSize int) (*wlog.WL, error) {
	return wlog.NewSize(quiet, nil, dir, segmentSize, compression.Snappy)
}
