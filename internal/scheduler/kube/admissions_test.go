package kube

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/tally"
)

// admitted returns a Workload that was created, got its quota and was admitted at these moments; a negative one has not come.
func admitted(name, resource string, created, reserved, at int, more ...object) object {
	list := []any{}
	for _, c := range []object{condition("QuotaReserved", reserved), condition("Admitted", at)} {
		if c["lastTransitionTime"] != moment(-1) {
			list = append(list, c)
		}
	}
	for _, c := range more {
		list = append(list, c)
	}
	status := object{"conditions": list}
	if at >= 0 {
		status["admission"] = object{"podSetAssignments": []any{object{"resourceUsage": object{resource: "4", "cpu": "8"}}}}
	}
	return object{
		"metadata": object{
			"namespace": "ml", "name": name, "uid": "uid-" + name, "creationTimestamp": moment(created),
			"ownerReferences": []any{object{"uid": "uid-of-" + name}},
		},
		"status": status,
	}
}

// Catches an admission that counts twice, at each event, in a list, or for who watches next; one that is missing because it came
// while nobody watched; the run of a Workload that was evicted as a part of its wait; Workloads without GPUs.
func TestAdmissions(t *testing.T) {
	const gpus = "nvidia.com/gpu"
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	f := func(when string, count, sum float64) {
		t.Helper()
		if got := sums(w.Totals().Admitted)["ml"]; got != [2]float64{count, sum} {
			t.Errorf("%s: %v, want %v of %v s", when, got, count, sum)
		}
	}
	set(t, &c.kueue, admitted("before", gpus, 0, 5, 5), admitted("a", gpus, 10, -1, -1), admitted("b", gpus, 10, -1, -1))
	f("the first list", 0, 0)
	for range 2 {
		c.kueue.Put(raw(t, admitted("a", gpus, 10, 30, -1)))
		c.kueue.Put(raw(t, admitted("a", gpus, 10, 30, 40)))
		c.kueue.Put(raw(t, admitted("plain", "memory", 10, 30, 40)))
	}
	f("one is admitted", 1, 30)
	again := []object{{"type": "Evicted", "status": "False", "reason": "QuotaReserved", "lastTransitionTime": moment(90)}}
	c.kueue.Put(raw(t, admitted("a", gpus, 10, 90, 90, again...)))
	f("admitted again", 1, 30)
	set(t, at(c, epoch.Add(100*time.Second))) // the note has everything from the pods' first list on
	note, _ := w.Note(epoch.Add(100 * time.Second))

	var err error
	if w, err = ContinueWaits(note, epoch.Add(200*time.Second)); err != nil {
		t.Fatal(err)
	}
	c = NewCluster(vendors, "", w)
	set(t, &c.kueue, admitted("before", gpus, 0, 5, 5), admitted("a", gpus, 10, 90, 90, again...), admitted("b", gpus, 10, 150, 150))
	f("one while nobody watched", 2, 30+140)
	set(t, &c.kueue, admitted("b", gpus, 10, 150, 150))
	set(t, at(c, epoch.Add(900*time.Second)))
	c.kueue.Put(raw(t, admitted("c", gpus, 800, 810, 810)))
	f("another", 3, 30+140+10)
	note, _ = w.Note(epoch.Add(900 * time.Second))
	if w, err = ContinueWaits(note, epoch.Add(900*time.Second)); err != nil {
		t.Fatal(err)
	}
	set(t, &NewCluster(vendors, "", w).kueue, admitted("b", gpus, 10, 150, 150), admitted("c", gpus, 800, 810, 810))
	f("a third process", 3, 30+140+10)
	if n := len(w.admitted.Counted); n != 1 {
		t.Errorf("%d Workloads are known by UID: those before the mark need not be", n)
	}
}

// Catches the wait for quota that is not told from that for other gates, phases that do not add up to the wait, and a Workload that
// was admitted before the pod came.
func TestPhasesOfKueue(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	set(t, at(c, epoch))
	set(t, &c.kueue,
		admitted("held", "nvidia.com/gpu", 1, 50, 80), admitted("quota", "nvidia.com/gpu", 1, 50, 50), admitted("early", "nvidia.com/gpu", -100, -90, -90))
	pods := PodSink{Cluster: c, Now: func() time.Time { return epoch }}
	for i, name := range []string{"held", "quota", "early", "none"} {
		of := annotations("kueue.x-k8s.io/workload", name)
		gone := object{"metadata": object{"managedFields": []any{object{"time": moment(100)}}}}
		gpus := []int{1, 2, 4, 8}[i]
		pods.Put(raw(t, pod(name, "", gpus, "1", of, gates("kueue.x-k8s.io/admission"))))
		pods.Put(raw(t, pod(name, "", gpus, "1", of, gone)))
		pods.Put(raw(t, pod(name, "gn1", gpus, "1", of, scheduled(110))))
	}
	want := map[string][2]float64{
		"quota 1": {1, 50}, "admission 1": {1, 30}, "gated 1": {1, 20}, "queued 1": {1, 10},
		"quota 2-3": {1, 50}, "admission 2-3": {1, 0}, "gated 2-3": {1, 50}, "queued 2-3": {1, 10},
		"gated 4-7": {1, 100}, "queued 4-7": {1, 10},
		"gated 8-15": {1, 100}, "queued 8-15": {1, 10},
	}
	if diff := cmp.Diff(want, sums(w.Totals().Phases)); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
	if got := sums(w.Totals().Scheduled)["ml"]; got != [2]float64{4, 440} {
		t.Errorf("waits %v", got)
	}
}

// Catches a note that outgrows the annotations of an object when everything that it can have is there.
func TestFullNote(t *testing.T) {
	w := NewWaits(epoch)
	fill := func(into *tally.Tally, most int) {
		for i := range 2 * most {
			into.Once(tally.Of(fmt.Sprint(i)), epoch, true, false)
		}
	}
	fill(&w.pods, maxCounted)
	fill(&w.admitted, maxOnce)
	fill(&w.evicted, maxOnce)
	w.pods.Begun, w.admitted.Begun = true, true
	for i := range maxGated {
		w.gates.closed[tally.Of(fmt.Sprint(i))] = true
		w.gates.open[tally.Of(fmt.Sprint(i))] = 1
	}
	for i := range 2 * maxEvictions {
		queue := fmt.Sprintf("a-namespace-with-a-long-name-%d", i)
		w.lost(sight{pod: &Pod{UID: fmt.Sprint(i), Namespace: queue, Team: "a-team-with-a-long-name", Evicted: "preempted"}, now: epoch, old: &Pod{}})
		for _, h := range []scheduler.Histograms{w.totals.Scheduled, w.totals.Started, w.totals.Admitted} {
			for j := range 17 {
				h.Add(queue, time.Duration(j)*10*time.Hour)
			}
		}
	}
	note, _ := w.Note(epoch.Add(time.Hour))
	if n := len(note); n > 240<<10 {
		t.Errorf("the note takes %d bytes", n)
	}
	t.Logf("%d bytes", len(note))
}
