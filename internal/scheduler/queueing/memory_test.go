package queueing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Unix(1_800_000_000, 0)

// tell describes what grows in a report: name, instance, how long ago it was 0, and the value.
func tell(r *Report, now time.Time) []string {
	ago := func(t time.Time) string {
		if t.IsZero() {
			return "?"
		}
		return now.Sub(t).String()
	}
	var out []string
	for _, s := range r.Sums {
		out = append(out, fmt.Sprintf("%s %s of %s since %s: %v", s.Name, s.Word, s.Instance, ago(s.Since), s.N))
	}
	for _, d := range r.Durations {
		out = append(out, fmt.Sprintf("%s of %s since %s: %v of %v s in %v", d.Name, d.Instance, ago(d.Since), d.Count, d.Sum, d.Counts))
	}
	return out
}

// page is one of a scheduler that began some seconds after start.
func page(began int, attempts, waited float64, more ...string) string {
	return fmt.Sprintf(`process_start_time_seconds %d
scheduler_schedule_attempts_total{profile="a",result="scheduled"} %v
scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts="1",le="1"} %v
scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts="1",le="+Inf"} %v
scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="1"} %v
`, start.Unix()+int64(began), attempts, waited, waited+1, 10*waited) + strings.Join(more, "")
}

// Catches a sum that falls when a scheduler begins anew or one of its series ends, one that counts a restart twice, and a start
// that is invented.
func TestMemory(t *testing.T) {
	m := NewMemory()
	f := func(seconds int, want []string, texts ...string) {
		t.Helper()
		now := start.Add(time.Duration(seconds) * time.Second)
		got := tell(m.Follow(Read("kube-scheduler", pages(texts...), vendors, nil), now, start), now)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %d s (-want +got):\n%s", seconds, diff)
		}
	}
	// It ran before it was watched: what it has counted is known, since when is not.
	f(10, []string{"attempts scheduled of a-0 since ?: 5", "wait.duration of a-0 since ?: 3 of 20 s in [2 1]"}, page(-100, 5, 2))
	other := "scheduler_schedule_attempts_total{profile=\"b\",result=\"scheduled\"} 2\nscheduler_schedule_attempts_total{profile=\"a\",result=\"error\"} 1\n"
	f(40, []string{
		"attempts error of a-0 since 30s: 1", "attempts scheduled of a-0 since ?: 8", "wait.duration of a-0 since ?: 4 of 30 s in [3 1]",
	}, page(-100, 6, 3, other))
	// It began anew, and has counted more than before by now. Another replica is there as well.
	f(70, []string{
		"attempts error of a-0 since 1m0s: 1", "attempts scheduled of a-0 since ?: 15", "attempts scheduled of a-1 since 20s: 1",
		"wait.duration of a-0 since ?: 9 of 70 s in [7 2]", "wait.duration of a-1 since 20s: 1 of 0 s in [0 1]",
	}, page(50, 7, 4), page(50, 1, 0))
	// Without the time of its start a restart is seen when a number falls.
	f(100, []string{
		"attempts error of a-0 since 1m30s: 1", "attempts scheduled of a-0 since ?: 18", "wait.duration of a-0 since ?: 11 of 80 s in [8 3]",
	}, strings.Replace(page(0, 3, 1), "process_start", "some", 1))
	// The bounds changed with an upgrade.
	f(130, []string{
		"attempts error of a-0 since 2m0s: 1", "attempts scheduled of a-0 since ?: 19", "wait.duration of a-0 since 30s: 3 of 20 s in [2 1]",
	}, strings.ReplaceAll(page(50, 4, 2), `le="1"`, `le="2"`))
	// The clock is set back.
	f(30, []string{
		"attempts error of a-0 since 20s: 1", "attempts scheduled of a-0 since ?: 19", "attempts unschedulable of a-0 since 0s: 2", "wait.duration of a-0 since 0s: 3 of 20 s in [2 1]",
	}, strings.ReplaceAll(page(50, 4, 2), `le="1"`, `le="2"`)+"scheduler_schedule_attempts_total{profile=\"a\",result=\"unschedulable\"} 2\n")
}

// Catches processes that answer in turn, as behind a load balancer, and count as many restarts, and memory that grows with those.
func TestMemoryInTurn(t *testing.T) {
	m := NewMemory()
	f := func(want, began int, attempts float64) {
		t.Helper()
		now := start.Add(time.Hour)
		got := m.Follow(Read("kube-scheduler", pages(page(began, attempts, 1)), vendors, nil), now, start)
		for _, s := range got.Sums {
			if s.N != float64(want) {
				t.Errorf("%v attempts, want %v", s.N, want)
			}
		}
	}
	f(100, 0, 100)
	f(101, 1000, 1)
	f(102, 0, 101)
	f(104, 1000, 3)
	f(105, 1, 102) // its clock was adjusted
	for i := range 3 * maxStarts {
		f(106+i, 2000+10*i, 1)
	}
	if n := len(m.totals[totalKey{Point{Name: Attempts, Word: "scheduled"}, "a-0"}].series); n != maxStarts || m.series != 2*maxStarts {
		t.Errorf("%d processes with %d series are remembered, want %d", n, m.series, maxStarts)
	}
}

// Catches memory that grows with what a page invents, and sums that are wrong because of the limit.
func TestMemoryBounds(t *testing.T) {
	m := NewMemory()
	var b strings.Builder
	for reading := range 3 {
		b.Reset()
		for i := range 3 * maxQueues {
			fmt.Fprintf(&b, "kueue_pending_workloads{cluster_queue=\"q%d-%d\"} 1\nkueue_cluster_queue_weighted_share{cluster_queue=\"q%d-%d\"} 1\n", reading, i, reading, i)
			fmt.Fprintf(&b, "kueue_evicted_workloads_total{cluster_queue=\"q%d-%d\",reason=\"r%d-%d\"} 1\n", reading, i, reading, i)
			for j := range 8 {
				fmt.Fprintf(&b, "kueue_admission_attempts_total{result=\"success\",x=\"%d-%d-%d\"} 1\n", reading, i, j)
			}
		}
		r := m.Follow(Read("kueue", pages(b.String()), vendors, nil), start, start)
		jobs, shares := 0.0, 0
		for _, v := range r.Values {
			switch v.Name {
			case Jobs:
				jobs += v.N
			case FairShare:
				shares++
			}
		}
		if jobs != 3*maxQueues || shares > maxQueues || len(r.Values) > 2*maxQueues+1 {
			t.Errorf("reading %d: %v jobs, %d shares, %d values", reading, jobs, shares, len(r.Values))
		}
		if len(m.queues) > maxQueues || len(m.words) > maxWords || m.series > maxSeries || len(m.totals) > (maxQueues+1)*(maxWords+1) {
			t.Errorf("reading %d: %d queues, %d words, %d series of %d totals are remembered", reading, len(m.queues), len(m.words), m.series, len(m.totals))
		}
		if reading == 2 && r.Refused == 0 {
			t.Error("nothing was refused")
		}
	}
	for range forget + 1 {
		m.Follow(Read("kueue", nil, vendors, nil), start, start)
	}
	if m.series != 0 || len(m.totals)+len(m.processes) != 0 {
		t.Errorf("%d series of %d totals and %d processes are remembered of one that is gone", m.series, len(m.totals), len(m.processes))
	}
}

// Catches memory without room that counts what it has forgotten again and again.
func TestMemoryForgetsOnce(t *testing.T) {
	m := NewMemory()
	read := func(text string) *Report {
		return m.Follow(Read("kube-scheduler", pages(text), vendors, nil), start, start)
	}
	read(page(-100, 5, 2))
	m.series = maxSeries + 5 // of others
	for range 2 {
		if r := read(strings.ReplaceAll(page(-100, 5, 2), `le="1"`, `le="2"`)); r.Refused != 1 || len(r.Durations) != 0 || m.series != maxSeries+4 {
			t.Errorf("%d refused, %d histograms, %d series, want 1, 0, %d", r.Refused, len(r.Durations), m.series, maxSeries+4)
		}
	}
}
