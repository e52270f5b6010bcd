//go:build linux

package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

const (
	// drainEvery is how often recorded calls are fetched: the kernel buffer holds a few
	// thousand.
	drainEvery = 100 * time.Millisecond
	// maxCalls bounds a recording to about 500 MB of file.
	maxCalls = 3_000_000
)

// Recorded summarizes a recording.
type Recorded struct {
	Calls     int
	Processes int
	Lost      uint64 // calls missing from the recording
}

// RecordCalls writes every call of the chosen processes to w until ctx ends, in the Chrome trace
// event format, which ui.perfetto.dev reads.
func (s *Session) RecordCalls(ctx context.Context, c *Choice, w io.Writer) (Recorded, error) {
	rec := newRecording(w, maxCalls)
	err := s.fetch(ctx, c, rec)
	err = errors.Join(err, rec.close())
	return Recorded{Calls: rec.calls, Processes: len(rec.named), Lost: rec.lost()}, err
}

func (s *Session) fetch(ctx context.Context, c *Choice, rec *recording) error {
	recorded := map[uint32]bool{}
	defer func() {
		for pid := range recorded {
			_ = s.Tracer.Record(pid, false) // recording ends with the tracer anyway
		}
	}()
	_, tick := s.Look(ctx)
	gpus := onDevices(&tick)
	ticker := time.NewTicker(drainEvery)
	defer ticker.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			over = true
		case <-ticker.C:
		}
		now := s.Snapshot(time.Now(), gpus)
		for i := range now.Processes {
			p := &now.Processes[i]
			if recorded[p.PID] || p.Ended {
				continue
			}
			if w, ok := s.Process(p.PID); !ok && !c.Takes(p.PID, nil) || ok && !c.Takes(p.PID, &w) {
				continue
			}
			if err := s.Tracer.Record(p.PID, true); err != nil {
				return fmt.Errorf("cannot record process %d: %w", p.PID, err)
			}
			recorded[p.PID] = true
			rec.process(p)
		}
		if err := rec.add(&now); err != nil {
			return fmt.Errorf("cannot write the recording: %w", err)
		}
	}
	return nil
}

// recording streams a file in the Chrome trace event format.
type recording struct {
	w       *bufio.Writer
	most    int
	calls   int
	dropped uint64 // calls beyond the maximum
	named   map[uint32]string
	latest  map[uint32]tracer.Event // latest recorded call, by thread
	begun   bool
	first   bool
	start   tracer.Losses // before the first call
	last    tracer.Losses
	origin  time.Time
}

func newRecording(w io.Writer, most int) *recording {
	return &recording{w: bufio.NewWriterSize(w, 1<<16), most: most, named: map[uint32]string{}, latest: map[uint32]tracer.Event{}, first: true}
}

// traceEvent is one event of the format. Times are in microseconds.
type traceEvent struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"`
	Dur   *float64       `json:"dur,omitempty"`
	PID   uint32         `json:"pid"`
	TID   uint32         `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

func (r *recording) process(p *tracer.Process) { r.named[p.PID] = p.Name }

// add writes the calls of a snapshot. Times are relative to the first snapshot.
func (r *recording) add(s *tracer.Snapshot) error {
	if !r.begun {
		r.begun, r.start, r.origin = true, s.Losses, s.Time
		if _, err := r.w.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`); err != nil {
			return err
		}
	}
	r.last = s.Losses
	for i := range s.Events {
		e := &s.Events[i]
		if _, ok := r.named[e.PID]; !ok || e.Type != "call" && e.Type != "error" && e.Type != "outlier" {
			continue
		}
		if e.Type == "call" {
			r.latest[e.TID] = *e
		} else if r.again(e) {
			continue
		}
		if r.calls == r.most {
			r.dropped++
			continue
		}
		r.calls++
		if err := r.event(r.call(e)); err != nil {
			return err
		}
	}
	return nil
}

// again reports whether e repeats the last call of its thread: a failed call arrives as a recorded call
// and again as an error. Its start is computed separately for each reading and may differ by a few
// microseconds.
func (r *recording) again(e *tracer.Event) bool {
	c, ok := r.latest[e.TID]
	return ok && c.PID == e.PID && c.Op == e.Op && c.Code == e.Code && c.Duration == e.Duration && e.Time.Sub(c.Time).Abs() < time.Millisecond
}

func (r *recording) call(e *tracer.Event) traceEvent {
	micro := func(d time.Duration) float64 { return float64(d) / 1e3 }
	dur := micro(e.Duration)
	out := traceEvent{Name: e.Op, Cat: "call", Phase: "X", TS: micro(e.Time.Sub(r.origin)), Dur: &dur, PID: e.PID, TID: e.TID, Args: map[string]any{}}
	if e.Comm != "" {
		out.Cat = "nccl"
		out.Args["communicator"], out.Args["rank"], out.Args["ranks"] = e.Comm, e.Rank, e.Size
	}
	if e.Kernel != "" {
		out.Cat, out.Name = "launch", shorten(e.Kernel)
		out.Args["call"] = e.Op
	}
	if e.Device >= 0 {
		out.Args["device"] = e.Device
	}
	for key, v := range map[string]uint64{"bytes": e.Bytes, "stream": e.Stream} {
		if v > 0 {
			out.Args[key] = v
		}
	}
	if e.Code != 0 {
		out.Args["result"] = e.Code
	}
	if e.RunQueue > 0 || e.Blocked > 0 {
		out.Args["run_queue_us"], out.Args["blocked_us"] = micro(e.RunQueue), micro(e.Blocked)
	}
	return out
}

// shorten returns the first 120 characters of a kernel name.
func shorten(name string) string {
	const most = 120
	r := []rune(name)
	if len(r) <= most {
		return name
	}
	return string(r[:most-3]) + "..."
}

func (r *recording) event(e traceEvent) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if !r.first {
		if _, err := r.w.WriteString(",\n"); err != nil {
			return err
		}
	}
	r.first = false
	_, err = r.w.Write(b)
	return err
}

// lost returns how many calls are missing from the file.
func (r *recording) lost() uint64 { return r.dropped + r.last.Events - r.start.Events }

// close writes the trailer: process names, and what is missing.
func (r *recording) close() error {
	if !r.begun {
		if err := r.add(&tracer.Snapshot{}); err != nil {
			return err
		}
	}
	for _, pid := range slices.Sorted(maps.Keys(r.named)) {
		if err := r.event(traceEvent{Name: "process_name", Phase: "M", PID: pid, TID: pid, Args: map[string]any{"name": r.named[pid]}}); err != nil {
			return err
		}
	}
	meta, err := json.Marshal(map[string]any{"gpumeter.calls": r.calls, "gpumeter.lost": r.lost(), "gpumeter.began": r.origin.UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(r.w, "],\n\"metadata\":%s}\n", meta); err != nil {
		return err
	}
	return r.w.Flush()
}
