package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
)

var now = time.Date(2026, 3, 7, 13, 14, 15, 0, time.UTC)

type world struct {
	t *testing.T
	s *hub.Store
	a *hub.Appender
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{t, s, s.Appender(t.Context())}
}

// add writes a sample every 30 seconds between two moments, given as ages before now.
func (f *world) add(from, to time.Duration, value float64, pairs ...string) {
	for at := from; at >= to; at -= 30 * time.Second {
		f.a.Gauge(labels.FromStrings(pairs...), now.Add(-at).UnixMilli(), value)
	}
}

// found returns the findings as rule and subject.
func (f *world) found() []string {
	f.t.Helper()
	if r, err := f.a.Commit(); err != nil || r.Refused > 0 {
		f.t.Fatal(r, err)
	}
	list, err := Evaluate(f.t.Context(), f.s, now)
	if err != nil {
		f.t.Fatal(err)
	}
	out := []string{}
	for _, x := range list {
		out = append(out, strings.Join([]string{x.Rule, x.Labels["host_name"], x.Labels["gpu_uuid"], x.Labels["rank"]}, " "))
		if x.Reason == "" || x.Action == "" || strings.Contains(x.Reason, "%!") {
			f.t.Errorf("%+v", x)
		}
	}
	return out
}

// Catches a missing node or device that is not reported, a missing node reported as a list of
// its devices, and a device reported missing because its labels changed.
func TestMissing(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	up := func(host, gpu string, last time.Duration, more ...string) {
		f.add(40*time.Minute, last, 1, append([]string{"__name__", "gpu_up", "host_name", host, "gpu_uuid", gpu, "gpu_index", gpu[1:]}, more...)...)
	}
	up("a", "G1", 0)
	up("a", "G2", 6*time.Minute)  // gone
	up("b", "G3", 10*time.Minute) // with its node
	up("b", "G4", 10*time.Minute)
	up("c", "G5", 20*time.Minute, "gpu_workload_name", "x") // has changed owners
	f.add(19*time.Minute, 0, 1, "__name__", "gpu_up", "host_name", "c", "gpu_uuid", "G5", "gpu_index", "5", "gpu_workload_name", "y")
	if diff := cmp.Diff([]string{MissingDevice + " a G2 ", MissingNode + " b  "}, f.found()); diff != "" {
		t.Error(diff)
	}
}

// Catches an undetected straggler, and devices called stragglers although they run another
// workload, are a different model or have too few peers.
func TestStragglers(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	gpu := func(i int, work, model string, clock, active, heat float64) {
		own := []string{
			"host_name", fmt.Sprintf("n%d", i/2), "gpu_uuid", fmt.Sprintf("G%d", i), "gpu_index", fmt.Sprint(i % 2), "gpu_model", model,
			"gpu_workload_kind", "job", "gpu_workload_name", work,
		}
		f.add(10*time.Minute, 0, clock, append(own, "__name__", "gpu_clock_frequency_hertz")...)
		f.add(10*time.Minute, 0, active, append(own, "__name__", "gpu_sm_active_ratio")...)
		f.add(10*time.Minute, 0, heat, append(own, "__name__", "gpu_temperature_celsius")...)
	}
	for i := range 6 {
		gpu(i, "train", "H100", 1.9e9, 0.9, 60)
	}
	gpu(6, "train", "H100", 1.2e9, 0.9, 60)
	gpu(7, "train", "H100", 1.9e9, 0.3, 80)
	gpu(8, "train", "A100", 1.0e9, 0.1, 90) // the only one of its kind
	gpu(9, "serve", "H100", 1.0e9, 0.1, 90) // other work
	want := []string{HighHeat + " n3 G7 ", LowActivity + " n3 G7 ", SlowClock + " n3 G6 "}
	if diff := cmp.Diff(want, f.found()); diff != "" {
		t.Error(diff)
	}
}

// Catches a busy device among idle peers called hot, idle devices among busy peers called slow,
// and real stragglers masked by the load comparison.
func TestStragglersLoad(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	gpu := func(work string, i int, clock, heat, util float64) {
		own := []string{
			"host_name", work, "gpu_uuid", fmt.Sprintf("%s%d", work, i), "gpu_index", fmt.Sprint(i), "gpu_model", "A100",
			"gpu_workload_kind", "job", "gpu_workload_name", work,
		}
		f.add(10*time.Minute, 0, clock, append(own, "__name__", "gpu_clock_frequency_hertz")...)
		f.add(10*time.Minute, 0, heat, append(own, "__name__", "gpu_temperature_celsius")...)
		if util >= 0 {
			f.add(10*time.Minute, 0, util, append(own, "__name__", "gpu_utilization_ratio")...)
		}
	}
	gpu("leader", 0, 1.9e9, 75, 0.95) // the only busy device
	gpu("waits", 0, 0.3e9, 35, 0)     // has nothing to do
	gpu("mute", 0, 0.9e9, 90, -1)     // reports no load, so it is not judged
	gpu("sick", 0, 0.9e9, 90, 0.95)
	for i := 1; i < 5; i++ {
		gpu("leader", i, 0.3e9, 35, 0)
		gpu("waits", i, 1.9e9, 45, 0.95)
		gpu("mute", i, 1.9e9, 60, -1)
		gpu("sick", i, 1.9e9, 60, 0.95)
	}
	want := []string{HighHeat + " sick sick0 ", SlowClock + " sick sick0 "}
	if diff := cmp.Diff(want, f.found()); diff != "" {
		t.Error(diff)
	}
}

// Catches an undetected rank that stalls all others or falls behind, and ranks that only report
// at a different time.
func TestRanks(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	rank := func(comm string, i int, before, current float64) {
		own := []string{"__name__", fleet.SeriesCollectives, "comm_id_hash", comm, "rank", fmt.Sprint(i), "nranks", "4", "host_name", fmt.Sprintf("n%d", i), "gpu_uuid", fmt.Sprintf("G%d", i)}
		f.add(90*time.Second, time.Minute, before, own...)
		f.add(30*time.Second, 0, current, own...)
	}
	for i := range 3 {
		rank("hang", i, 100, 100)
		rank("slow", i, 1000, 2000)
		rank("fine", i, 1000, 2000-float64(i)*100)
		rank("idle", i, 7, 7)
	}
	rank("hang", 3, 99, 99)
	rank("slow", 3, 500, 900)
	rank("fine", 3, 900, 1500)
	rank("idle", 3, 7, 7)
	want := []string{RankBehind + " n3 G3 3", RankBehind + " n3 G3 3"}
	if diff := cmp.Diff(want, f.found()); diff != "" {
		t.Error(diff)
	}
}

// Catches an alert on a transient problem, one that opens twice, and one that never closes.
func TestWatch(t *testing.T) {
	t.Parallel()
	var w Watch
	f := Finding{Rule: MissingNode, Severity: "ERROR", Labels: map[string]string{"host_name": "a"}, Reason: "r", Action: "a"}
	at := now
	step := func(found ...Finding) string {
		at = at.Add(time.Minute)
		var out []string
		for _, c := range w.Update(found, at) {
			e := c.Event()
			out = append(out, fmt.Sprintf("%s %s %s", e.Attributes["gpu.finding.state"], e.Attributes["host.name"], e.Attributes["gpu.finding.since"]))
		}
		return strings.Join(out, ",")
	}
	got := []string{step(f), step(), step(f), step(f), step(f), step(), step(f), step(), step(), step()}
	want := []string{"", "", "", "open a 2026-03-07T13:17:15Z", "", "", "", "", "closed a 2026-03-07T13:17:15Z", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	step(f)
	step(f)
	if a := w.Alerts(); len(a) != 1 || a[0].Labels["alertname"] != MissingNode || a[0].State != "firing" {
		t.Errorf("%+v", a)
	}
}
