package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// journal is an event log that outlives its readers, like the kernel's.
type journal struct {
	mu      sync.Mutex
	records []device.Event
	changed chan struct{}
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

func (j *journal) add(events ...device.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range events {
		e.Position = device.Position{Record: uint64(len(j.records) + 1)}
		if e.Time.IsZero() {
			e.Time = time.Now()
		}
		j.records = append(j.records, e)
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// after returns the records after n, and a channel that is closed when there are more.
func (j *journal) after(n uint64) ([]device.Event, chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.records[n:]), j.changed
}

// witness is a machine whose reader reports the events in a journal.
type witness struct {
	*machine
	*journal
	resume *device.Position
	fail   error
	hang   chan struct{}
}

func (w *witness) open(ctx context.Context) (device.Reader, error) {
	if _, err := w.machine.open(ctx); err != nil {
		return nil, err
	}
	return &witness{machine: w.machine, journal: w.journal, fail: w.fail, hang: w.hang}, nil
}

func (w *witness) Resume(p device.Position) { w.resume = &p }

func (w *witness) Events(ctx context.Context, emit func(device.Event)) error {
	if w.hang != nil {
		<-w.hang
	}
	if w.fail != nil {
		return w.fail
	}
	emit(device.Event{Origin: "a journal"})
	old, _ := w.after(0)
	read := uint64(len(old))
	if w.resume != nil {
		read = w.resume.Record
	}
	for {
		news, changed := w.after(read)
		for _, e := range news {
			emit(e)
			read = e.Position.Record
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// newWitness returns a rig of n GPUs whose events are in j.
func newWitness(n int, j *journal, dir string) (*rig, *witness) {
	r := newRig(n)
	for i, g := range r.m.devices {
		g.id.PCI = fmt.Sprintf("0000:0%d:00.0", i)
		g.s.ID = g.id
	}
	w := &witness{machine: r.m, journal: j}
	cfg := r.cfg
	cfg.Sources = []Source{{Name: "test", Open: w.open}}
	cfg.StateDir, cfg.BootID = dir, "boot 1"
	r.View = New(cfg)
	return r, w
}

// xid returns an XID of GPU i, identified by its PCI address.
func xid(i, code int) device.Event {
	return device.Event{Name: device.EventXID, Code: code, PCI: fmt.Sprintf("0000:0%d:00.0", i)}
}

// Catches a count of XIDs that starts long before its first event: a store that learns of the
// code from a count of 1 would see no increase in the last minutes.
func TestXIDCountStartsAtFirstEvent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		j := newJournal()
		r, _ := newWitness(1, j, t.TempDir())
		for range 3 {
			r.tick(t)
		}
		first, future := xid(0, 48), xid(0, 31)
		first.Time, future.Time = time.Now().Add(-300*time.Millisecond), time.Now().Add(time.Hour)
		j.add(first, future)
		synctest.Wait()
		tick := r.tick(t)
		later := xid(0, 48)
		later.Time = time.Now()
		j.add(later)
		synctest.Wait()
		want := []XIDCount{{31, 1, tick.Time.Add(-time.Millisecond)}, {48, 2, first.Time.Add(-time.Millisecond)}}
		if diff := cmp.Diff(want, r.tick(t).Readings[0].XIDs); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Catches an XID 79 that leaves no finding because no reader lists the GPU.
func TestXIDOfUnlistedGPU(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		j := newJournal()
		r, _ := newWitness(1, j, t.TempDir())
		r.tick(t)
		j.add(xid(7, 79))
		synctest.Wait()
		var got []string
		for _, f := range r.tick(t).Findings {
			got = append(got, f.Rule+" "+f.Key+" "+f.Severity.String())
		}
		wantList(t, got, "gpu.xid 79 0000:07:00.0 critical")
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// counted returns the XIDs of a tick as "GPU code count".
func counted(t Tick) []string {
	list := []string{}
	for _, r := range t.Readings {
		for _, x := range r.XIDs {
			list = append(list, fmt.Sprint(r.ID.Index, " ", x.Code, " ", x.Count))
		}
	}
	return list
}

func names(t Tick) []string {
	list := []string{}
	for _, e := range t.Events {
		list = append(list, fmt.Sprint(e.Name, " ", e.Device, " ", e.Code))
	}
	return list
}

func wantList(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each event is in one tick, with its device, and stays counted for as long as the agent
// runs, also while the drivers are released.
func TestEvents(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		j := newJournal()
		j.add(xid(0, 13)) // before the start: another agent may have reported it
		r, _ := newWitness(2, j, "")
		r.tick(t)
		synctest.Wait()
		r.tick(t)
		r.wantNotice(t, "events come from a journal")
		j.add(xid(0, 31), xid(1, 48), xid(0, 31), xid(7, 62))
		synctest.Wait()
		tick := r.tick(t)
		wantList(t, names(tick), "gpu.xid A 31", "gpu.xid B 48", "gpu.xid A 31", "gpu.xid  62")
		wantList(t, counted(tick), "0 31 2", "1 48 1")
		if err := r.Pause(t.Context(), time.Now(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		j.add(xid(1, 48))
		wantList(t, names(r.tick(t)))
		r.tick(t)
		resumed := names(r.tick(t))
		synctest.Wait()
		tick = r.tick(t)
		wantList(t, append(resumed, names(tick)...), "gpu.xid B 48")
		wantList(t, counted(tick), "0 31 2", "1 48 2")
		if n := slices.Index(r.notices, "test: events come from a journal"); slices.Contains(r.notices[n+1:], r.notices[n]) {
			t.Errorf("reported twice: %q", r.notices)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A device that is found late gets the counts of its PCI address.
func TestEventsOfLateDevice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		j := newJournal()
		r, w := newWitness(2, j, "")
		late := r.m.devices[1]
		r.m.devices = r.m.devices[:1]
		r.cfg.Rediscover = time.Second
		r.tick(t)
		synctest.Wait()
		j.add(xid(1, 79), xid(1, 79))
		synctest.Wait()
		wantList(t, counted(r.tick(t)))
		w.set(func() { r.m.devices = append(r.m.devices, late) })
		var tick Tick
		for range 3 {
			tick = r.tick(t)
			synctest.Wait()
		}
		wantUp(t, tick, 0, 1)
		wantList(t, counted(tick), "1 79 2")
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A flood of events is counted in full and reported in part.
func TestEventFlood(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		j := newJournal()
		r, _ := newWitness(1, j, "")
		r.tick(t)
		synctest.Wait()
		for i := range 2 * maxEvents {
			j.add(xid(0, i%(maxCodes+10)))
		}
		synctest.Wait()
		tick := r.tick(t)
		var sum uint64
		for _, x := range tick.Readings[0].XIDs {
			sum += x.Count
		}
		if len(tick.Events) != maxEvents || tick.LostEvents != maxEvents || sum != 2*maxEvents || len(tick.Readings[0].XIDs) != maxCodes+1 {
			t.Errorf("%d events, %d lost, %d counted of %d codes", len(tick.Events), tick.LostEvents, sum, len(tick.Readings[0].XIDs))
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestLostAndReturnedEvents(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		r.tick(t)
		r.m.devices[1].set(func(g *gpu) { g.err = device.ErrLost })
		tick := r.tick(t)
		want := []device.Event{{Time: tick.Time, Device: "B", Name: device.EventLost, Message: "device is lost"}}
		if diff := cmp.Diff(want, tick.Events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		wantList(t, names(r.tick(t)))
		r.m.devices[1].set(func(g *gpu) { g.err = nil })
		wantList(t, names(r.tick(t)), "gpu.returned B 0")
	})
}

// A failure to read events is reported once and retried; a call that hangs keeps the driver
// open.
func TestEventsFail(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		j := newJournal()
		r, w := newWitness(1, j, "")
		w.fail = errors.New("no permission")
		r.cfg.Rediscover = time.Second
		for range 5 {
			r.tick(t)
			synctest.Wait()
		}
		n := 0
		for _, s := range r.notices {
			if s == "test: events cannot be read: no permission" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("reported %d times: %q", n, r.notices)
		}
		r, w = newWitness(1, j, "")
		w.hang = make(chan struct{})
		r.tick(t)
		if err := r.Pause(t.Context(), time.Now(), time.Second); err == nil || r.m.closes != 0 {
			t.Errorf("paused in spite of a call in progress: %v", err)
		}
		close(w.hang)
		synctest.Wait()
		if err := r.Close(); err != nil || r.m.closes != 1 {
			t.Errorf("close: %v", err)
		}
	})
}
