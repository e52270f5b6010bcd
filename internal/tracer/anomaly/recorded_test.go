package anomaly

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// recorded returns the output of gpumeter trace --json --interval 5s for
// bench/trace/train.py at batch 64 on an otherwise idle H200, from its first step on.
func recorded(t *testing.T) []tracer.Snapshot {
	t.Helper()
	f, err := os.Open("testdata/h200-training.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var list []tracer.Snapshot
	for d := json.NewDecoder(z); ; {
		var s tracer.Snapshot
		if err := d.Decode(&s); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
}

// advance adds a fraction (1 or 0.5) of what happened between before and after to p. With
// half the calls, waiting takes as long as with all.
func advance(p *tracer.Process, before, after *tracer.Process, part uint64) {
	for i := range p.Ops {
		p.Ops[i].Bytes += (after.Ops[i].Bytes - before.Ops[i].Bytes) / part
		more := after.Ops[i].Time.Sub(before.Ops[i].Time)
		more.Count /= part
		for i := range more.Buckets {
			more.Buckets[i] /= part
		}
		if p.Ops[i].Class != tracer.Sync {
			more.Sum /= float64(part)
		}
		p.Ops[i].Time = p.Ops[i].Time.Add(more)
	}
	kernels := map[string]*tracer.Kernel{}
	for i := range before.Kernels {
		kernels[before.Kernels[i].Name] = &before.Kernels[i]
	}
	mine := map[string]*tracer.Kernel{}
	for i := range p.Kernels {
		mine[p.Kernels[i].Name] = &p.Kernels[i]
	}
	for i := range after.Kernels {
		k := &after.Kernels[i]
		if was, m := kernels[k.Name], mine[k.Name]; was != nil && m != nil {
			m.Count += (k.Count - was.Count) / part
			m.Time += k.Time - was.Time
		}
	}
	for i := range p.Devices {
		d, a, b := &p.Devices[i], &after.Devices[i], &before.Devices[i]
		d.Busy, d.Wait, d.Bubble, d.WaitingSince = d.Busy+a.Busy-b.Busy, d.Wait+a.Wait-b.Wait, d.Bubble+(a.Bubble-b.Bubble)/time.Duration(part), a.WaitingSince
	}
	for _, f := range []func(*tracer.Host) *time.Duration{
		func(h *tracer.Host) *time.Duration { return &h.RunQueue },
		func(h *tracer.Host) *time.Duration { return &h.Blocked },
		func(h *tracer.Host) *time.Duration { return &h.RunQueueInCall },
		func(h *tracer.Host) *time.Duration { return &h.BlockedInCall },
	} {
		*f(&p.Host) += (*f(&after.Host) - *f(&before.Host)) / time.Duration(part)
	}
	p.Host.Switches += (after.Host.Switches - before.Host.Switches) / part
}

// clone returns a copy of p that shares nothing with it.
func clone(t *testing.T, p *tracer.Process) tracer.Process {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var c tracer.Process
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// A real training run without faults: five minutes of recording, repeated for an hour, yield
// no anomaly. At half the pace they do, so the silence is meaningful.
func TestRecordedHour(t *testing.T) {
	list := recorded(t)
	if len(list) < 60 {
		t.Fatalf("there are %d readings", len(list))
	}
	d := NewDetector()
	p, at := clone(t, &list[0].Processes[0]), list[0].Time
	next := func(i int, part uint64) []Anomaly {
		at = at.Add(list[i].Time.Sub(list[i-1].Time))
		advance(&p, &list[i-1].Processes[0], &list[i].Processes[0], part)
		return d.Observe(Window{Snapshot: tracer.Snapshot{Time: at, Processes: []tracer.Process{clone(t, &p)}}})
	}
	for windows := 0; windows < 720; {
		for i := 1; i < len(list); i++ {
			for _, a := range next(i, 1) {
				t.Errorf("window %d: %s", windows, a.Text())
			}
			windows++
		}
	}
	told := 0
	for i := 1; i < 7; i++ {
		told += len(next(i, 2))
	}
	if told != 1 {
		t.Errorf("at half the pace %d anomalies are told", told)
	}
}
