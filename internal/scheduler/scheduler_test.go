package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches jobs or devices that are lost when there are too many groups, and groups that are not combined.
func TestFold(t *testing.T) {
	c := Counts{}
	for i := range 400 {
		c.Add(Group{Queue: fmt.Sprint("q", i%50), Team: fmt.Sprint("t", i), State: Running}, 1, int64(i))
	}
	sum := func(c Counts) (jobs, devices int64) {
		for _, n := range c {
			jobs, devices = jobs+n.Jobs, devices+n.Devices
		}
		return jobs, devices
	}
	for _, limit := range []int{1000, 400, 100, 40, 10} {
		out := c.Fold(limit)
		if jobs, devices := sum(out); jobs != 400 || devices != 399*400/2 {
			t.Errorf("limit %d: %d jobs with %d devices, want 400 and %d", limit, jobs, devices, 399*400/2)
		}
		if len(out) > limit {
			t.Errorf("limit %d: %d groups", limit, len(out))
		}
		if biggest := (Group{Queue: "q49", Team: "t399", State: Running}); out[biggest].Devices != 399 {
			t.Errorf("limit %d: the biggest group is %+v", limit, out[biggest])
		}
	}
}

// Catches a sum over groups that keeps what it should sum over, or counts what is left out.
func TestBy(t *testing.T) {
	c := Counts{}
	c.Add(Group{Queue: "a", State: Running, Model: "x"}, 2, 8)
	c.Add(Group{Queue: "a", State: Running, Model: "y"}, 1, 4)
	c.Add(Group{Queue: "a", State: Finished}, 9, 9)
	got := c.By(func(g *Group) bool { has := g.State.Has(); g.Model = ""; return has })
	if diff := cmp.Diff([]Count{{Group{Queue: "a", State: Running}, 3, 12}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a histogram per user of a cluster with thousands, and a duration that is in the wrong bucket.
func TestHistograms(t *testing.T) {
	h := Histograms{}
	for i := range maxQueues + 50 {
		h.Add(fmt.Sprint("q", i), time.Minute)
	}
	h.Add("q0", -time.Second)
	h.Add("q0", 30*24*time.Hour)
	if len(h) != maxQueues+1 || h[other].Count != 50 {
		t.Errorf("%d histograms, %d durations in the common one; want %d and 50", len(h), h[other].Count, maxQueues+1)
	}
	want := &Histogram{Counts: make([]uint64, len(Bounds())+1), Count: 3, Sum: 60 + 30*24*3600}
	want.Counts[0], want.Counts[3], want.Counts[len(Bounds())] = 1, 1, 1
	if diff := cmp.Diff(want, h["q0"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches jobs beyond the limit whose devices are lost, and a job without a time that goes before those with one.
func TestLongest(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 11, 19, hour, 0, 0, 0, time.UTC) }
	w := func(name string, devices int64, since time.Time) Waiting {
		return Waiting{Group: Group{Queue: "q", Reason: Device}, ID: "id-" + name, Name: name, Devices: devices, Since: since}
	}
	list := []Waiting{w("unknown", 1, time.Time{}), w("young", 2, at(9)), w("old", 4, at(1)), w("big", 8, at(5)), w("small", 1, at(5))}
	f := func(limit int, want ...Waiting) {
		t.Helper()
		if diff := cmp.Diff(want, Longest(list, limit)); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
	}
	f(5, list[2], list[3], list[4], list[1], list[0])
	f(2, list[2], list[3], Waiting{Group: Group{Queue: other, Team: other, Reason: Other}, ID: other, Name: other, Devices: 4})
	f(0, Waiting{Group: Group{Queue: other, Team: other, Reason: Other}, ID: other, Name: other, Devices: 16})
}
