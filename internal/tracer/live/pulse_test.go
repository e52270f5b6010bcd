//go:build linux

package live

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// Catches a busy allocator that is probed all the time, a quiet one that is not, probes that never come back or
// are attached twice, and a report that is shown long after it was true.
func TestPulse(t *testing.T) {
	var (
		u       pulse
		probes  int
		closed  bool
		fail    error
		reports uint64
		now     = time.Unix(1e9, 0)
	)
	attach := func() (probe.Attachment, error) {
		if fail != nil {
			return probe.Attachment{}, fail
		}
		probes++
		return probe.Attachment{Closer: fakeLink(func() { probes-- })}, nil
	}
	link, _ := attach()
	p := u.add(link.Closer, fakeLink(func() { closed = true }), attach)
	// pass lets time pass, in which the allocator reports so often, and returns how many probes there were at most.
	pass := func(d time.Duration, each uint64) (most int) {
		for range d / pollEvery {
			now = now.Add(pollEvery)
			if probes > 0 {
				reports += each
			}
			u.beat(reports, now)
			most = max(most, probes)
		}
		return most
	}
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d probes, want %d", what, got, want)
		}
	}
	current := func(age time.Duration) bool {
		m := tracer.Memory{Framework: true, Allocated: 1, Pool: 2, Reported: now.Add(-age)}
		u.current(&m, now)
		if !m.Framework && m.Allocated+m.Pool > 0 {
			t.Errorf("half a report: %+v", m)
		}
		return m.Framework
	}
	pass(time.Minute, oftenReports)
	expect("quiet", probes, 1)
	if !current(time.Hour) {
		t.Error("a report that nothing has changed since is not shown")
	}
	pass(pollEvery, 5000)
	expect("busy", probes, 0)
	if !current(time.Second) || current(time.Hour) {
		t.Error("during a pause only recent reports are true")
	}
	expect("during the pause", pass(pauseReports-pollEvery, 5000), 0)
	pass(pollEvery, 0)
	expect("after the pause", probes, 1)
	pass(pollEvery, 5000)
	expect("busy again", probes, 0)
	fail = errors.New("no")
	pass(pauseReports, 0)
	expect("which fails", probes, 0)
	fail = nil
	pass(pauseReports, 0)
	expect("the next time", probes, 1)
	pass(time.Hour, 1)
	if current(59*time.Minute) != true || current(61*time.Minute) {
		t.Error("since the last pause, all reports were seen")
	}
	if err := p.Close(); err != nil || probes != 0 || !closed || len(u.list) != 0 {
		t.Errorf("closed: %v, %d probes", err, probes)
	}
	if diff := cmp.Diff(map[*pausable]bool{}, u.list); diff != "" {
		t.Error(diff)
	}
}
