//go:build linux

package nvidia

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// ear collects the events of a reader until its test ends.
type ear struct {
	t      *testing.T
	events chan device.Event
	stop   func()
}

func listen(t *testing.T, r *Reader) *ear {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	e := &ear{t: t, events: make(chan device.Event, 1000)}
	done := make(chan error, 1)
	go func() { done <- r.Events(ctx, func(ev device.Event) { e.events <- ev }) }()
	e.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("events ended: %v", err)
		}
	}
	return e
}

// next returns the next event that ok accepts.
func (e *ear) next(ok func(device.Event) bool) device.Event {
	e.t.Helper()
	for {
		if ev := <-e.events; ok(ev) {
			return ev
		}
	}
}

func isNews(e device.Event) bool   { return e.Name != "" }
func isOrigin(e device.Event) bool { return e.Origin != "" }

// kernelLog creates a kernel log below root and returns a function that appends a record
// and waits until it is read.
func kernelLog(t *testing.T, root string) (write func(e *ear, seq int, priority int, text string)) {
	t.Helper()
	for _, dir := range []string{"dev", "proc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/uptime"), []byte("1000.00 1.00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "dev/kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return func(e *ear, seq, priority int, text string) {
		t.Helper()
		if _, err := fmt.Fprintf(w, "%d,%d,%d,-;%s\n", priority, seq, 1e6*seq, text); err != nil {
			t.Fatal(err)
		}
		await.True(e.t, "the log to be read", func() bool { return unread(t, w) == 0 })
	}
}

func TestEventsOfKernelLog(t *testing.T) {
	h := nvmltest.New(t, "gpus 2")
	root, c := t.TempDir(), newClock()
	write := kernelLog(t, root)
	r, err := Open(t.Context(), Options{Library: h.Library, Root: root, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	devices(t, r)
	r.Resume(device.Position{Record: 5})
	e := listen(t, r)
	defer e.stop()
	if o := e.next(isOrigin); o.Origin != "the kernel log" {
		t.Errorf("origin %q", o.Origin)
	}
	write(e, 5, 4, "NVRM: Xid (PCI:0000:10:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
	write(e, 6, 4, "NVRM: GPU 0000:10:00.0: GPU has fallen off the bus.") // the same event, already reported
	write(e, 7, 12, "NVRM: Xid (PCI:0000:10:00): 48, said by a program")
	write(e, 8, 4, "NVRM: GPU Board Serial Number: 1650123456789")
	write(e, 9, 4, strings.Replace(realXID, "0000:00:06", "0000:18:00", 1))
	write(e, 13, 4, "NVRM: Xid (PCI:0000:99:00): 62, nobody we know")
	write(e, 14, 4, `NVRM: The NVIDIA GPU 18:00.0\x0aNVRM: (PCI ID: 10de:2335) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`)
	write(e, 15, 4, "NVRM: GPU 18:00.0: GPU has fallen off the bus.")                                                                                                             // the same event
	write(e, 16, 4, `NVRM: The NVIDIA GPU 0000:10:00.0\x0aNVRM: (PCI ID: 10de:2335) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`) // known
	write(e, 17, 4, "NVRM: GPU 99:00.0: GPU has fallen off the bus.")
	boot := c.now().Add(-1000 * time.Second)
	want := []device.Event{
		{
			Time: boot.Add(9 * time.Second), Device: "GPU-00000000-0000-4000-8000-000000000001", PCI: "0000:18:00.0",
			Name: device.EventXID, Code: 31, PID: 610, Process: "bad", Position: device.Position{Record: 9},
		},
		{Time: boot.Add(13 * time.Second), PCI: "0000:99:00.0", Name: device.EventXID, Code: 62, Missed: 3, Position: device.Position{Record: 13}},
	}
	want = append(want,
		device.Event{Time: boot.Add(14 * time.Second), Device: "GPU-00000000-0000-4000-8000-000000000001", PCI: "0000:18:00.0", Name: device.EventXID, Code: 79, Position: device.Position{Record: 14}},
		device.Event{Time: boot.Add(17 * time.Second), PCI: "0000:99:00.0", Name: device.EventXID, Code: 79, Position: device.Position{Record: 17}})
	got := []device.Event{e.next(isNews), e.next(isNews), e.next(isNews), e.next(isNews)}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(device.Event{}, "Message")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// XIDs that the event set reported are not repeated from the kernel log, nor is anything
// earlier.
func TestEventsAfterEventSet(t *testing.T) {
	h := nvmltest.New(t, "")
	root, c := t.TempDir(), newClock()
	write := kernelLog(t, root)
	r, err := Open(t.Context(), Options{Library: h.Library, Root: root, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	devices(t, r)
	r.Resume(device.Position{Record: 2, Time: c.now().Add(-990 * time.Second)})
	e := listen(t, r)
	defer e.stop()
	for _, seq := range []int{2, 5, 20} {
		write(e, seq, 4, realXID)
	}
	if got := e.next(isNews); got.Position.Record != 20 {
		t.Errorf("the first new event has record %d, want 20", got.Position.Record)
	}
}

// Without a kernel log XIDs come from the library, also across a re-initialization. Neither
// discovery nor Close has to wait for them.
func TestEventsOfSet(t *testing.T) {
	h := nvmltest.New(t, "gpus 2\nxid 0 1 13")
	r := openFake(t, h, newClock())
	devices(t, r)
	e := listen(t, r)
	if o := e.next(isOrigin).Origin; !strings.Contains(o, "event set") || !strings.Contains(o, "no such file") {
		t.Errorf("origin %q", o)
	}
	heard := func(ev device.Event) bool { return !ev.Position.Time.IsZero() }
	e.next(heard)
	f := func(code int) {
		t.Helper()
		want := device.Event{Device: "GPU-00000000-0000-4000-8000-000000000001", PCI: "0000:18:00.0", Name: device.EventXID, Code: code}
		if diff := cmp.Diff(want, e.next(isNews), cmpopts.IgnoreFields(device.Event{}, "Time")); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
	}
	h.Append(t, "xid 1 1 31\nxid 1 2 48") // the first line precedes the registration
	f(31)
	f(48)
	h.Append(t, "generation 1")
	r.stale.Store(true)
	devices(t, r)
	for len(e.events) > 0 {
		<-e.events
	}
	e.next(heard)
	h.Append(t, "xid 1 3 63")
	f(63)
	e.stop()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// A driver without event sets is reported as such.
func TestNoEventSet(t *testing.T) {
	h := nvmltest.Without(t, "", "nvmlEventSet*")
	r := openFake(t, h, newClock())
	devices(t, r)
	err := r.Events(t.Context(), func(device.Event) {})
	if err == nil || !strings.Contains(err.Error(), "nvmlEventSetCreate") {
		t.Errorf("err = %v", err)
	}
}

// unread returns the number of unread bytes in a pipe.
func unread(t *testing.T, f *os.File) int {
	t.Helper()
	var n int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), 0x541B, uintptr(unsafe.Pointer(&n))); errno != 0 { // FIONREAD
		t.Fatal(errno)
	}
	return int(n)
}
