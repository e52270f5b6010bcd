package kube

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// moment returns a time as the API writes it.
func moment(s int) string { return epoch.Add(time.Duration(s) * time.Second).Format(time.RFC3339) }

func condition(name string, s int) object {
	return object{"type": name, "status": "True", "lastTransitionTime": moment(s)}
}

// scheduled returns a status with conditions: when the pod was scheduled, and others.
func scheduled(s int, more ...object) object {
	list := []any{condition("PodScheduled", s)}
	for _, c := range more {
		list = append(list, c)
	}
	return object{"status": object{"conditions": list}}
}

func ran(s int) object {
	return object{"status": object{"containerStatuses": []any{object{"state": object{"running": object{"startedAt": moment(s)}}}}}}
}

// sums returns the number of values and their sum in seconds.
func sums(h scheduler.Histograms) map[string][2]float64 {
	out := map[string][2]float64{}
	for key, at := range h {
		out[key] = [2]float64{float64(at.Count), at.Sum}
	}
	return out
}

// Catches a pod that counts twice: at each event, after a list, and for a process that counted it before.
func TestWaits(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	sink := at(c, epoch)
	check := func(when string, count, sum, startedCount, startedSum float64) {
		t.Helper()
		a, b := sums(w.Totals().Scheduled)["ml"], sums(w.Totals().Started)["ml"]
		if a != [2]float64{count, sum} || b != [2]float64{startedCount, startedSum} {
			t.Errorf("%s: %v waited and %v started; want %v, %v and %v, %v", when, a, b, count, sum, startedCount, startedSum)
		}
	}
	if note, _ := w.Note(epoch); note != "" {
		t.Errorf("before the first list: note %s", note)
	}
	set(t, sink, pod("before", "gn1", 1, "1", scheduled(5)), pod("a", "", 1, "1"), pod("plain", "gn1", 0, "1", scheduled(9)))
	check("the first list", 0, 0, 0, 0)
	a := pod("a", "gn1", 1, "1", scheduled(30))
	sink.Put(raw(t, a))
	sink.Put(raw(t, a))
	check("one was scheduled", 1, 30, 0, 0)
	a = pod("a", "gn1", 1, "1", scheduled(30), ran(50))
	sink.Put(raw(t, a))
	sink.Put(raw(t, pod("before", "gn1", 1, "1", scheduled(5), ran(8))))
	check("two started", 1, 30, 2, 23)
	set(t, sink, a, pod("between", "gn1", 1, "1", scheduled(7)))
	check("another list", 2, 37, 2, 23)
	sink.Put(raw(t, pod("late", "", 1, "1")))
	sink.Delete(raw(t, pod("late", "gn1", 1, "1", scheduled(3), object{"status": object{"phase": "Failed"}})))
	check("deleted before it was seen on a node", 3, 40, 2, 23)
}

// Catches phases that do not add up, a gate that opened while nobody watched and counts as if it were known when, a new sandbox
// that is taken for the first, sizes that are mixed, and a sandbox that was ready in time only to the kubelet: the pull of images
// counts as the sandbox then, or the pod is left out.
func TestPhases(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	sink := at(c, epoch)
	init := object{"spec": object{"initContainers": []any{object{"name": "init"}}}}
	changed := func(s int) object {
		return object{"metadata": object{"managedFields": []any{object{"time": moment(0)}, object{"time": moment(s)}}}}
	}
	set(t, sink, pod("old", "", 1, "1"), pod("gated", "", 8, "1", gates("x")), pod("unseen", "", 1, "1", gates("x")))
	sink.Put(raw(t, pod("gated", "", 8, "1", changed(100))))
	sink.Put(raw(t, pod("gated", "gn1", 8, "1", scheduled(160))))
	sink.Put(raw(t, pod("gated", "gn1", 8, "1", scheduled(160, condition("PodReadyToStartContainers", 165), condition("Initialized", 161)), ran(200))))
	sink.Put(raw(t, pod("plain", "", 2, "1")))
	sink.Put(raw(t, pod("plain", "gn1", 2, "1", init, scheduled(10, condition("PodReadyToStartContainers", 14), condition("Initialized", 24)), ran(54))))
	sink.Put(raw(t, pod("again", "gn1", 16, "1", scheduled(10, condition("PodReadyToStartContainers", 900)), ran(50))))
	sink.Put(raw(t, pod("same", "gn1", 4, "1", scheduled(10, condition("PodReadyToStartContainers", 70)), ran(70))))
	early := object{"status": object{"initContainerStatuses": []any{object{"state": object{"terminated": object{"startedAt": moment(30)}}}}}}
	sink.Put(raw(t, pod("inits", "gn1", 4, "1", init, early, scheduled(10, condition("PodReadyToStartContainers", 31), condition("Initialized", 40)), ran(50))))
	for _, name := range []string{"again", "same", "inits"} {
		if p := c.pods.own["uid-"+name]; !p.Sandboxed.IsZero() || len(p.took()) > 0 {
			t.Errorf("%s had a sandbox at %v: %q", name, p.Sandboxed, p.took())
		}
	}
	sink.Put(raw(t, pod("old", "gn1", 1, "1", scheduled(7))))
	const took = "From its node to its start it took 4s for volumes and network, 10s for init containers and 30s for images and the first container."
	if lines := c.Snapshot(epoch).Why(c.pods.own["uid-plain"]); len(lines) != 2 || lines[1] != took {
		t.Errorf("plain: %q", lines)
	}
	set(t, sink, pod("unseen", "", 1, "1", changed(300)))
	sink.Put(raw(t, pod("unseen", "gn1", 1, "1", scheduled(310))))
	want := map[string][2]float64{
		"gated 8-15": {1, 100}, "queued 8-15": {1, 60}, "sandbox 8-15": {1, 5}, "image 8-15": {1, 35},
		"queued 2-3": {1, 10}, "sandbox 2-3": {1, 4}, "init 2-3": {1, 10}, "image 2-3": {1, 30},
		"queued 16+": {1, 10}, "image 16+": {1, 40}, "queued 4-7": {2, 20}, "image 4-7": {2, 60 + 40},
	}
	if diff := cmp.Diff(want, sums(w.Totals().Phases)); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
	if got := sums(w.Totals().Scheduled)["ml"]; got != [2]float64{7, 160 + 10 + 10 + 10 + 10 + 7 + 310} {
		t.Errorf("waits %v", got)
	}
}

// Catches time behind a gate that counts as time in the queue, because the gate came and went while nobody watched: before a
// process was elected, or before a list that follows a lost connection. Catches also a pod that somebody has watched all the time
// and whose phases are dropped.
func TestGatesThatNobodySaw(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	made := func(name, node string, created int, more ...object) object {
		return pod(name, node, 1, "1", append(more, object{"metadata": object{"creationTimestamp": moment(created)}})...)
	}
	set(t, at(c, epoch.Add(10*time.Second)))
	sink := at(c, epoch.Add(500*time.Second))
	sink.Put(raw(t, made("watched", "", 20)))
	sink.Put(raw(t, made("other", "gn1", 20, scheduled(490))))
	note, _ := w.Note(epoch.Add(500 * time.Second))
	w, err := ContinueWaits(note, epoch.Add(900*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	c = NewCluster(vendors, "", w)
	sink = at(c, epoch.Add(900*time.Second))
	list := []object{made("watched", "", 20), made("waits", "", 600), made("placed", "gn1", 600, scheduled(700)), made("other", "gn1", 20, scheduled(490))}
	set(t, sink, list...)
	set(t, sink, append(list, made("relisted", "", 880), made("relisted and placed", "gn1", 880, scheduled(890)))...)
	for _, name := range []string{"waits", "relisted", "watched"} {
		sink.Put(raw(t, made(name, "gn1", map[string]int{"waits": 600, "relisted": 880, "watched": 20}[name], scheduled(920))))
	}
	sink.Put(raw(t, made("new", "gn1", 910, scheduled(930))))
	want := map[string][2]float64{"queued 1": {3, 470 + 900 + 20}} // other, watched and new
	if diff := cmp.Diff(want, sums(w.Totals().Phases)); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
	if n := len(w.gates.open) + len(w.gates.closed); n > 0 {
		t.Errorf("it remembers the gates of %d pods that are placed", n)
	}
}

// life is a pod of a test of many.
type life struct {
	name                     string
	created, placed, started int // seconds
	gateless                 int // when its gate opened; 0: it had none
}

// at returns the pod at a moment, nil before it is created.
func (l *life) at(s int) object {
	if s < l.created {
		return nil
	}
	more := []object{{"metadata": object{"creationTimestamp": moment(l.created)}}}
	node := ""
	if s >= l.placed {
		node = "gn1"
		more = append(more, scheduled(l.placed))
	}
	if s >= l.started {
		more = append(more, ran(l.started))
	}
	if s < l.gateless {
		more = append(more, gates("x"))
	}
	return pod(l.name, node, 1, "1", more...)
}

// lives returns pods that are scheduled during an hour, and what histograms must have in the end.
func lives(r *rand.Rand, n int) (all []life, waits, starts [2]float64) {
	for i := range n {
		l := life{name: fmt.Sprint("p", i), created: 1 + r.IntN(3000)}
		l.placed = l.created + r.IntN(900)
		l.started = l.placed + r.IntN(300)
		if r.IntN(3) == 0 {
			l.gateless = l.created + (l.placed-l.created)/2
		}
		all = append(all, l)
		waits[0], waits[1] = waits[0]+1, waits[1]+float64(l.placed-l.created)
		starts[0], starts[1] = starts[0]+1, starts[1]+float64(l.started-l.placed)
	}
	return all, waits, starts
}

// Catches a pod that is lost or counted twice when the process that watches is killed at any moment, with or without having
// written what it counted last, when nobody watches for a while, and when its clock is wrong.
func TestWaitsOverRestarts(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable
		all, waits, starts := lives(r, 50)
		var sink PodSink
		var w *Waits
		note, written := "", Totals{}
		skew := time.Duration(0)
		watch := func(s int) {
			now := epoch.Add(time.Duration(s)*time.Second + skew)
			var err error
			if w, err = ContinueWaits(note, now); err != nil {
				t.Fatal(err)
			}
			sink = at(NewCluster(vendors, "", w), now)
			add, commit := sink.Begin()
			for i := range all {
				if o := all[i].at(s); o != nil {
					add(raw(t, o))
				}
			}
			commit()
		}
		watch(0)
		for s := 1; s < 4400; s++ {
			if w == nil { // nobody watches
				if r.IntN(200) == 0 || s == 4399 {
					watch(s)
				}
				continue
			}
			for i := range all {
				if l := &all[i]; s == l.created || s == l.placed || s == l.started || s == l.gateless {
					sink.Put(raw(t, l.at(s)))
				}
			}
			if s%3 == 0 || s > 4390 {
				note, written = w.Note(epoch.Add(time.Duration(s)*time.Second + skew))
			}
			if r.IntN(300) == 0 && s < 4300 {
				w = nil
				if skew = 0; seed%3 == 1 {
					skew = time.Hour // of the next one
				}
			}
		}
		if w != nil {
			_, written = w.Note(epoch.Add(4400 * time.Second))
		}
		if a, b := sums(written.Scheduled)["ml"], sums(written.Started)["ml"]; a != waits || b != starts {
			t.Errorf("seed %d: %v waited and %v started, want %v and %v", seed, a, b, waits, starts)
		}
		if !written.Since.Equal(epoch) {
			t.Errorf("seed %d: since %v", seed, written.Since)
		}
	}
}

// Catches a note that is written while a list is applied, and passes pods that follow in the list: they are older than the newest
// so far, and never count.
func TestNoteInTheMiddleOfAList(t *testing.T) {
	w := NewWaits(epoch)
	set(t, at(NewCluster(vendors, "", w), epoch))
	note, _ := w.Note(epoch)
	now := epoch.Add(2 * time.Hour)
	w, err := ContinueWaits(note, now)
	if err != nil {
		t.Fatal(err)
	}
	see := func(name string, s int) *Pod {
		p, err := parsePod(raw(t, pod(name, "gn1", 1, "1", scheduled(s))), vendors, "")
		if err != nil {
			t.Fatal(err)
		}
		w.seen(sight{pod: &p, now: now, listed: true, first: true})
		return &p
	}
	w.list()
	a := see("new", 5000)
	w.Note(now)
	b := see("old", 1000)
	w.listed(map[string]*Pod{a.UID: a, b.UID: b}, now)
	if got := sums(w.Totals().Scheduled)["ml"]; got != [2]float64{2, 6000} {
		t.Errorf("number and sum of waits: %v", got)
	}
}

// Catches a note that grows without bound, or forgets whom it counts.
func TestNoteIsBounded(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	set(t, at(c, epoch))
	const n = maxCounted + 1000
	for i := range n {
		namespace := object{"metadata": object{"namespace": fmt.Sprintf("%063d", i)}}
		at(c, epoch).Put(raw(t, pod(fmt.Sprint(i), "gn1", 1, "1", namespace, scheduled(i))))
		at(c, epoch).Put(raw(t, pod(fmt.Sprint("gated", i), "", 1, "1", gates("x"))))
	}
	note, totals := w.Note(epoch.Add(time.Hour))
	if len(note) > 200<<10 || w.Refused() != 1000 || len(totals.Scheduled) > 201 {
		t.Errorf("%d bytes, %d refused, %d namespaces", len(note), w.Refused(), len(totals.Scheduled))
	}
	after, err := ContinueWaits(note, epoch.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(totals, after.Totals()); diff != "" {
		t.Errorf("totals (-before +after):\n%s", diff)
	}
	if again, _ := after.Note(epoch.Add(time.Hour)); strings.Contains(note, "moreGated") != strings.Contains(again, "moreGated") && len(again) > len(note) {
		t.Errorf("the next note has %d bytes", len(again))
	}
	c = NewCluster(vendors, "", after)
	add, commit := at(c, epoch).Begin()
	for i := range n {
		add(raw(t, pod(fmt.Sprint(i), "gn1", 1, "1", scheduled(i))))
	}
	commit()
	if got := after.Totals(); got.Scheduled["ml"] != nil {
		t.Errorf("%v are counted again", sums(got.Scheduled)["ml"])
	}
}

// Catches a note that is not understood and ends the process or makes it count what was counted, and a clock that was set back.
func TestContinueWaits(t *testing.T) {
	first := []object{pod("a", "gn1", 1, "1", scheduled(5), ran(6))}
	f := func(note, want string, now time.Time) Totals {
		t.Helper()
		w, err := ContinueWaits(note, now)
		if got := fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("%.40s: %s, want %s", note, got, want)
		}
		set(t, at(NewCluster(vendors, "", w), now), first...)
		return w.Totals()
	}
	w := NewWaits(epoch)
	c := NewCluster(vendors, "", w)
	set(t, at(c, epoch))
	at(c, epoch).Put(raw(t, first[0]))
	note, totals := w.Note(epoch.Add(time.Hour))
	if diff := cmp.Diff(totals, f(note, "nil", epoch.Add(time.Hour))); diff != "" {
		t.Errorf("continued (-before +after):\n%s", diff)
	}
	back := epoch.Add(-time.Minute)
	if diff := cmp.Diff(newTotals(back), f(note, "nil", back)); diff != "" {
		t.Errorf("the clock was set back (-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		"":                                     "nil",
		"{":                                    "unexpected end of JSON",
		`"\xff`:                                "cannot continue",
		`{"version":2}`:                        "version 2, want 1",
		`{"version":1,"mark":99999999999}`:     "from the future",
		`{"version":1,"waits":{"ml":[]}}`:      "another form",
		`{"version":1,"waits":{"ml":[1,-1]}}`:  "counts -1",
		`{"version":1,"waits":{"ml":[1,0.5]}}`: "counts 0.5",
		`{"version":1,"waits":{"ml":[-1]}}`:    "sum of a histogram is -1",
		`{"version":1,"waits":{"ml":[1e999]}}`: "cannot",
		`{"version":1,"scheduled":"AAAA"}`:     "is cut",
		`{"version":1,"scheduled":"?"}`:        "illegal base64",
		`{"version":1,"since":"yesterday"}`:    "cannot",
		`{"version":1,"phases":{"a":[0` + strings.Repeat(",1", 99) + `]}}`: "another form",
	} {
		if diff := cmp.Diff(newTotals(epoch), f(text, want, epoch)); diff != "" {
			t.Errorf("%.40s (-want +got):\n%s", text, diff)
		}
	}
}

// Catches a note that makes the process panic, or counts that no histogram can have.
func FuzzContinueWaits(f *testing.F) {
	f.Add(`{"version":1,"since":"2026-11-19T11:00:00Z","mark":5,"scheduled":"AAAAAAAAAAAAAA","waits":{"ml":[1,0,1]}}`)
	f.Add(`{"version":1,"waits":{"ml":null},"gated":null}`)
	f.Fuzz(func(t *testing.T, note string) {
		w, _ := ContinueWaits(note, epoch)
		c := NewCluster(vendors, "", w)
		set(t, at(c, epoch), pod("a", "gn1", 1, "1", scheduled(5)))
		text, _ := w.Note(epoch)
		if _, err := ContinueWaits(text, epoch); err != nil {
			t.Errorf("its own note: %v", err)
		}
	})
}
