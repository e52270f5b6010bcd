//go:build linux

package inspect

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Report is the activity of processes in an interval.
type Report struct {
	Time      time.Time          `json:"time"`
	Seconds   float64            `json:"seconds"` // since the previous report
	Mode      string             `json:"mode,omitempty"`
	Processes []Process          `json:"processes"`
	Groups    []tracer.CommGroup `json:"groups,omitempty"`
	Libraries []tracer.Library   `json:"libraries"`
	Untraced  []tracer.Untraced  `json:"untraced,omitempty"`
	Losses    tracer.Losses      `json:"losses"`
	Problem   string             `json:"problem,omitempty"` // why the last reading failed
	Missing   []probe.Feature    `json:"missing,omitempty"` // features that the kernel or our privileges lack, with the consequence
	Others    int                `json:"others,omitempty"`  // processes not selected

	// Places has the display names of devices by UUID.
	Places map[string]string `json:"-"`
}

// Process is one process with its workload.
type Process struct {
	tracer.Process
	Workload *workload.Workload `json:"workload,omitempty"`
	Verdict  *anomaly.Verdict   `json:"verdict,omitempty"`

	// Delta is the activity of the process in the interval.
	Delta tracer.Process `json:"-"`
}

// Report returns the activity of the chosen processes between two readings.
func (s *Session) Report(c *Choice, before, now tracer.Snapshot, t *node.Tick) *Report {
	r := &Report{
		Time: now.Time, Seconds: now.Time.Sub(before.Time).Seconds(), Groups: now.Groups, Libraries: now.Libraries, Losses: now.Losses,
		Processes: []Process{}, Places: map[string]string{},
	}
	if f, ok := s.Tracer.(interface{ Features() []probe.Feature }); ok {
		r.Missing = slices.DeleteFunc(slices.Clone(f.Features()), func(f probe.Feature) bool { return f.OK })
	}
	if f, ok := s.Tracer.(interface{ Err() error }); ok {
		if err := f.Err(); err != nil {
			r.Problem = err.Error()
		}
	}
	if len(now.Libraries) > 0 {
		r.Mode = now.Libraries[0].Mode
	}
	for i := range t.Readings {
		id := t.Readings[i].ID
		r.Places[id.UUID] = fmt.Sprintf("GPU %d", id.Index)
		if id.Parent != "" {
			r.Places[id.UUID] += " " + id.Profile
		}
	}
	was := map[uint32]*tracer.Process{}
	for i := range before.Processes {
		was[before.Processes[i].PID] = &before.Processes[i]
	}
	verdicts := map[uint32]*anomaly.Verdict{}
	for _, v := range anomaly.Judge(before, now) {
		verdicts[v.PID] = &v
	}
	for i := range now.Processes {
		p := &now.Processes[i]
		one := Process{Process: *p, Verdict: verdicts[p.PID]}
		if w, ok := s.Process(p.PID); ok {
			one.Workload = &w
		}
		if !c.Takes(p.PID, one.Workload) {
			r.Others++
			continue
		}
		one.Delta = processSince(p, was[p.PID])
		r.Processes = append(r.Processes, one)
	}
	for _, u := range now.Untraced {
		w, ok := s.Process(u.PID)
		if !ok && c.Takes(u.PID, nil) || ok && c.Takes(u.PID, &w) {
			r.Untraced = append(r.Untraced, u)
		}
	}
	return r
}
