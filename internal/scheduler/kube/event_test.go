package kube

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ended returns the status of a pod that has ended.
func ended(phase string, began, end int) object {
	return object{"status": object{"phase": phase, "containerStatuses": []any{object{"state": object{"terminated": object{
		"startedAt": moment(began), "finishedAt": moment(end),
	}}}}}}
}

// told returns the events of a cluster in short.
func told(c *Cluster) (out []string) {
	for _, e := range c.Events() {
		out = append(out, fmt.Sprintf("%s %s at %v, %d", e.Pod.Name, e.Kind, e.Time.Sub(epoch), e.Devices))
	}
	return out
}

// Catches a pod that is told twice by one process or by none, an end that is taken for another, and what happened before anybody
// watched that is told as news.
func TestEvents(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	f := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, told(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	sink := at(c, epoch.Add(1000*time.Second))
	set(t, sink, pod("old", "gn1", 1, "1", scheduled(1), ran(2)), pod("over", "gn1", 1, "1", scheduled(1), ended("Failed", 2, 3)), pod("a", "", 4, "1", gates("x")))
	f("the first list")
	sink.Put(raw(t, pod("a", "", 4, "1", object{"metadata": object{"managedFields": []any{object{"time": moment(50)}}}})))
	sink.Put(raw(t, pod("a", "gn1", 4, "1", scheduled(100))))
	f("scheduled")
	sink.Put(raw(t, pod("a", "gn1", 4, "1", scheduled(100), ran(120))))
	list := c.Events()
	if len(list) != 1 || !list[0].Pod.Ungated.Equal(epoch.Add(50*time.Second)) {
		t.Errorf("the start: %v", list)
	}
	sink.Put(raw(t, pod("a", "gn1", 4, "1", scheduled(100), ran(120))))
	f("nothing new")
	over := pod("a", "gn1", 4, "1", scheduled(100), ended("Succeeded", 120, 300))
	sink.Put(raw(t, over))
	sink.Put(raw(t, pod("quick", "gn1", 1, "1", scheduled(200), ended("Failed", 210, 220))))
	sink.Put(raw(t, pod("waits", "", 1, "1")))
	sink.Delete(raw(t, pod("waits", "", 1, "1")))
	f("ends", "a succeeded at 5m0s, 4", "quick started at 3m30s, 1", "quick failed at 3m40s, 1", "waits deleted at 16m40s, 1")

	note, _ := w.Note(epoch.Add(1000 * time.Second))
	w, err := ContinueWaits(note, epoch.Add(1000*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	c = NewCluster(vendors, "", w)
	sink = at(c, epoch.Add(1010*time.Second))
	add, commit := sink.Begin()
	add(raw(t, over))
	add(raw(t, pod("old", "gn1", 1, "1", scheduled(1), ran(2))))
	add(raw(t, pod("new", "gn1", 1, "1", scheduled(1001), ran(1002))))
	commit()
	// The mark is at 80 s: what came after it may have been told, or not.
	got := map[string]bool{}
	for _, e := range told(c) {
		got[e] = true
	}
	want := map[string]bool{"a started at 2m0s, 4": true, "a succeeded at 5m0s, 4": true, "new started at 16m42s, 1": true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	sink.Delete(raw(t, pod("old", "gn1", 1, "1", scheduled(1), ran(2))))
	f("deleted while it ran", "old deleted at 16m50s, 1")
}

// Catches events without bound, and ones beyond it that are taken for pods that are not understood until the next list.
func TestEventsAreBounded(t *testing.T) {
	c := NewCluster(vendors, "", NewWaits(epoch))
	for range maxEvents + 3 {
		c.tell(EventStarted, epoch, &Pod{})
	}
	if s := c.Snapshot(epoch); s.Untold != 3 || s.Refused != 0 || len(c.Events()) != maxEvents {
		t.Errorf("%d untold, %d refused", s.Untold, s.Refused)
	}
}
