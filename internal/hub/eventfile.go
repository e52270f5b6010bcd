package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// EventOptions configures an event log. Zero values mean the defaults.
type EventOptions struct {
	MaxBytes  int64         // of all files; 0 means DefaultEventBytes
	Retention time.Duration // 0 means DefaultRetention
	Now       func() time.Time
	// Evicted is called when n events of a node were deleted before the oldest of others. alone
	// means that there are no other nodes.
	Evicted func(node share.Node, n int, alone bool)
}

const (
	// maxEvent bounds one event on disk; a longer event loses its body and long attributes.
	maxEvent = 64 << 10
	// segments is the number of files. A full log deletes one file at a time.
	segments = 16
	// remembered is the number of recent events kept for deduplication, so that a retried
	// request is stored once.
	remembered = 20_000
	eventExt   = ".jsonl"
)

var _ EventLog = (*EventFile)(nil)

// EventFile is an event log in a directory: JSON lines in files that are written one after
// the other and deleted oldest first. It is safe for concurrent use.
type EventFile struct {
	dir string
	opt EventOptions

	mu    sync.RWMutex
	files []segment // oldest first; the last one is being written
	out   *os.File
	known map[uint64]bool
	order []uint64 // keys of known, oldest first

	kept, dropped, cut uint64
	changes            uint64 // files that were rewritten
}

// segment is one file with its time range.
type segment struct {
	number      int
	size        int64
	first, last time.Time            // zero if the file is empty
	by          map[share.Kind]int64 // bytes
}

// OpenEvents opens the event log in dir and creates it if necessary. A truncated record at
// the end of a file, left by a kill, is removed: it was never acknowledged.
func OpenEvents(dir string, o EventOptions) (*EventFile, error) {
	orDefault(&o.MaxBytes, DefaultEventBytes)
	orDefault(&o.Retention, DefaultRetention)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Evicted == nil {
		o.Evicted = func(share.Node, int, bool) {}
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot create the event directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the event directory: %w", err)
	}
	f := &EventFile{dir: dir, opt: o, known: map[uint64]bool{}}
	for _, e := range entries {
		number, err := strconv.Atoi(strings.TrimSuffix(e.Name(), eventExt))
		if err == nil && filepath.Ext(e.Name()) == eventExt {
			f.files = append(f.files, segment{number: number})
		}
	}
	slices.SortFunc(f.files, func(a, b segment) int { return a.number - b.number })
	if err := f.finishMerge(); err != nil {
		return nil, err
	}
	for i := range f.files {
		if err := f.load(&f.files[i]); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *EventFile) path(s segment) string {
	return filepath.Join(f.dir, fmt.Sprintf("%08d%s", s.number, eventExt))
}

// load indexes a file and removes a truncated record at its end.
func (f *EventFile) load(s *segment) error {
	text, err := os.ReadFile(f.path(*s))
	if err != nil {
		return fmt.Errorf("cannot read events: %w", err)
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole < len(text) {
		if err := os.Truncate(f.path(*s), int64(whole)); err != nil {
			return fmt.Errorf("cannot remove a truncated event: %w", err)
		}
	}
	s.size = int64(whole)
	eachEvent(text[:whole], func(e *Event, line []byte) {
		s.stretch(e.Time)
		s.count(e, line)
		f.remember(hash(line))
	})
	return nil
}

func (s *segment) stretch(t time.Time) {
	if s.first.IsZero() || t.Before(s.first) {
		s.first = t
	}
	if t.After(s.last) {
		s.last = t
	}
}

// eachEvent calls do for each line that is a valid event.
func eachEvent(text []byte, do func(e *Event, line []byte)) {
	for line := range bytes.Lines(text) {
		var e Event
		line = bytes.TrimSuffix(line, []byte("\n"))
		if json.Unmarshal(line, &e) == nil {
			do(&e, line)
		}
	}
}

func hash(line []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(line)
	return h.Sum64()
}

// remember records the hash of a stored event.
func (f *EventFile) remember(h uint64) {
	if f.known[h] {
		return
	}
	if len(f.order) == remembered {
		delete(f.known, f.order[0])
		f.order = f.order[1:]
	}
	f.known[h] = true
	f.order = append(f.order, h)
}

// AppendEvents implements EventLog. Events already stored are not added again. Once it
// returns nil, the events survive a kill of the process.
func (f *EventFile) AppendEvents(_ context.Context, events []Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var text []byte
	var hashes []uint64
	added := map[uint64]bool{}
	var times segment // of the new lines
	for i := range events {
		line, cut, err := marshal(events[i])
		if err != nil {
			return err
		}
		h := hash(line)
		if f.known[h] || added[h] {
			continue
		}
		added[h] = true
		if cut {
			f.cut++
		}
		hashes = append(hashes, h)
		times.stretch(events[i].Time)
		times.count(&events[i], line)
		text = append(append(text, line...), '\n')
	}
	if len(text) == 0 {
		return nil
	}
	if err := f.write(text); err != nil {
		return fmt.Errorf("cannot write events: %w", err)
	}
	s := &f.files[len(f.files)-1]
	s.size += int64(len(text))
	s.stretch(times.first)
	s.stretch(times.last)
	for k, n := range times.by {
		s.add(k, n)
	}
	for _, h := range hashes {
		f.remember(h)
	}
	f.kept += uint64(len(hashes))
	return nil
}

// marshal returns an event as a line, and whether it was truncated.
func marshal(e Event) (line []byte, cut bool, err error) {
	e.Time = e.Time.UTC()
	line, err = json.Marshal(e)
	if err != nil || len(line) <= maxEvent {
		return line, false, err
	}
	short := Event{Time: e.Time, Name: clip(e.Name), Severity: clip(e.Severity), Body: clip(e.Body), Attributes: map[string]string{}}
	room := maxEvent / 2
	for _, key := range sortedKeys(e.Attributes) {
		if room -= len(key) + len(e.Attributes[key]); room >= 0 && len(e.Attributes[key]) <= 1024 {
			short.Attributes[key] = e.Attributes[key]
		}
	}
	line, err = json.Marshal(short)
	return line, true, err
}

func clip(s string) string {
	if len(s) > 1024 {
		return strings.ToValidUTF8(s[:1024], "") + "..."
	}
	return s
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// write appends text to the last file, or to a new one if that is full. If it fails,
// nothing is written.
func (f *EventFile) write(text []byte) error {
	if n := len(f.files); n == 0 || f.files[n-1].size > 0 && f.files[n-1].size+int64(len(text)) > f.opt.MaxBytes/segments {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	s := f.files[len(f.files)-1]
	if f.out == nil {
		out, err := os.OpenFile(f.path(s), os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0o640)
		if err != nil {
			return err
		}
		f.out = out
	}
	if _, err := f.out.Write(text); err != nil {
		return errors.Join(err, f.out.Truncate(s.size))
	}
	return nil
}

// rotate starts a new file and deletes old ones.
func (f *EventFile) rotate() error {
	if f.out != nil {
		if err := f.out.Close(); err != nil {
			return err
		}
		f.out = nil
	}
	number := 1
	if n := len(f.files); n > 0 {
		number = f.files[n-1].number + 1
	}
	f.files = append(f.files, segment{number: number})
	total := int64(0)
	for _, s := range f.files {
		total += s.size
	}
	oldest := f.newest().Add(-f.opt.Retention)
	most := f.opt.MaxBytes - f.opt.MaxBytes/segments
	total -= f.evict(total - most)
	for len(f.files) > 1 && (total > most || f.files[0].last.Before(oldest)) {
		if err := os.Remove(f.path(f.files[0])); err != nil && !os.IsNotExist(err) {
			return err
		}
		total -= f.files[0].size
		f.files = f.files[1:]
		f.dropped++
	}
	return nil
}

// newest returns the time of the newest event, but not a time in the future. Either clock may be
// ahead, that of the hub or that of a sender, and age must not count from there.
func (f *EventFile) newest() time.Time {
	var newest time.Time
	for _, s := range f.files {
		if s.last.After(newest) {
			newest = s.last
		}
	}
	if now := f.opt.Now(); now.Before(newest) {
		return now
	}
	return newest
}

// Events implements EventLog. It reads files newest first, and no more than necessary.
func (f *EventFile) Events(ctx context.Context, q EventQuery) ([]Event, error) {
	orDefault(&q.Limit, DefaultEventLimit)
	if oldest := f.opt.Now().Add(-f.opt.Retention); q.From.Before(oldest) {
		q.From = oldest
	}
	for {
		f.mu.RLock()
		files, before := slices.Clone(f.files), f.changes
		f.mu.RUnlock()
		out, err := f.read(ctx, files, q)
		f.mu.RLock()
		changed := f.changes != before
		f.mu.RUnlock()
		if err != nil || !changed { // otherwise events may have moved to a file that was already read
			return out, err
		}
	}
}

// read returns the events of files that q selects.
func (f *EventFile) read(ctx context.Context, files []segment, q EventQuery) ([]Event, error) {
	var out []Event
	for _, s := range slices.Backward(files) {
		if s.size == 0 || !s.last.After(q.From) || !q.To.IsZero() && s.first.After(q.To) {
			continue
		}
		if len(out) >= q.Limit && !s.last.After(out[q.Limit-1].Time) {
			continue // every event in the file is older than those found
		}
		text, err := readFirst(f.path(s), s.size)
		if os.IsNotExist(err) {
			continue // the oldest file was deleted meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read events: %w", err)
		}
		eachEvent(text, func(e *Event, _ []byte) {
			if q.matches(e) {
				out = append(out, *e)
			}
		})
		slices.SortStableFunc(out, func(a, b Event) int { return b.Time.Compare(a.Time) })
		out = out[:min(len(out), q.Limit)]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readFirst returns the first n bytes of a file; the rest is being written.
func readFirst(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := make([]byte, n)
	got, err := f.ReadAt(text, 0)
	if int64(got) == n || errors.Is(err, io.EOF) { // the file was replaced by a shorter one
		err = nil
	}
	return text[:got], err
}

// Close closes the log.
func (f *EventFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.out == nil {
		return nil
	}
	out := f.out
	f.out = nil
	return out.Close()
}

// collector returns the log's own metrics.
func (f *EventFile) collector() prometheus.Collector {
	return eventMetrics{f}
}

type eventMetrics struct{ f *EventFile }

var (
	eventsDesc     = prometheus.NewDesc("gpumeter_hub_events_total", "Events stored since the hub started.", nil, nil)
	eventBytesDesc = prometheus.NewDesc("gpumeter_hub_event_bytes", "Bytes of events on disk.", nil, nil)
	eventCutDesc   = prometheus.NewDesc("gpumeter_hub_events_cut_total", "Events truncated because they were too long.", nil, nil)
	eventGoneDesc  = prometheus.NewDesc("gpumeter_hub_event_files_deleted_total", "Event files deleted because of their age or because the log was full.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m eventMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m eventMetrics) Collect(ch chan<- prometheus.Metric) {
	m.f.mu.RLock()
	defer m.f.mu.RUnlock()
	size := int64(0)
	for _, s := range m.f.files {
		size += s.size
	}
	ch <- prometheus.MustNewConstMetric(eventsDesc, prometheus.CounterValue, float64(m.f.kept))
	ch <- prometheus.MustNewConstMetric(eventBytesDesc, prometheus.GaugeValue, float64(size))
	ch <- prometheus.MustNewConstMetric(eventCutDesc, prometheus.CounterValue, float64(m.f.cut))
	ch <- prometheus.MustNewConstMetric(eventGoneDesc, prometheus.CounterValue, float64(m.f.dropped))
}
