//go:build linux

package amd

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
)

// A line becomes the right event, on the GPU it names, with the process at fault.
func TestParseLine(t *testing.T) {
	f := func(line string, want device.Event) {
		t.Helper()
		got, ok := parseLine(line)
		if !ok {
			t.Errorf("%q is not an event", line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	const at = "0000:c1:00.0"
	f("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", device.Event{Name: device.EventReset, PCI: at, Message: "GPU reset begin!"})
	f("amdgpu 0000:C1:00.0: amdgpu: GPU reset(3) succeeded!", device.Event{Name: device.EventReset, PCI: at, Message: "GPU reset(3) succeeded!"})
	f("amdgpu 0000:c1:00.0: amdgpu: GPU reset(3) failed", device.Event{Name: device.EventReset, PCI: at, Message: "GPU reset(3) failed"})
	f("amdgpu 0000:c1:00.0: amdgpu: GPU reset end with ret = -110", device.Event{Name: device.EventReset, PCI: at, Message: "GPU reset end with ret = -110"})
	f("amdgpu 0000:c1:00.0: amdgpu: MODE1 reset failed", device.Event{Name: device.EventReset, PCI: at, Message: "MODE1 reset failed"})
	f("amdgpu 0000:c1:00.0: [drm] device wedged, but recovered through reset",
		device.Event{Name: device.EventReset, PCI: at, Message: "device wedged, but recovered through reset"})
	f("amdgpu 0000:c1:00.0: amdgpu: socket: 4, die: 0 1 correctable hardware errors detected in total in gfx block, no user action is needed.",
		device.Event{Name: device.EventECC, PCI: at, Message: "socket: 4, die: 0 1 correctable hardware errors detected in total in gfx block, no user action is needed."})
	f("amdgpu 0000:c1:00.0: {7}socket: 0, die: 0 2 new deferred hardware errors detected in umc block",
		device.Event{Name: device.EventECC, PCI: at, Message: "socket: 0, die: 0 2 new deferred hardware errors detected in umc block"})
	f("amdgpu 0000:c1:00.0: amdgpu: uncorrectable hardware error (ERREVENT_ATHUB_INTERRUPT) detected!",
		device.Event{Name: device.EventECC, PCI: at, Message: "uncorrectable hardware error (ERREVENT_ATHUB_INTERRUPT) detected!"})
	f("amdgpu 0000:c1:00.0: {14}poison is consumed by client 12, kick off gpu reset flow",
		device.Event{Name: device.EventECC, PCI: at, Message: "poison is consumed by client 12, kick off gpu reset flow"})
	f("amdgpu 0000:c1:00.0: amdgpu: Poison is created", device.Event{Name: device.EventECC, PCI: at, Message: "Poison is created"})
	f("amdgpu: Saved bad pages 200 reaches threshold value 128", device.Event{Name: device.EventECC, Message: "Saved bad pages 200 reaches threshold value 128"})
	f("amdgpu 0000:c1:00.0: {1}[Hardware Error]: Accelerator Check Architecture events logged",
		device.Event{Name: device.EventECC, PCI: at, Message: "[Hardware Error]: Accelerator Check Architecture events logged"})
	f("amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=12, emitted seq=14",
		device.Event{Name: device.EventHang, PCI: at, Message: "ring gfx_0.0.0 timeout, signaled seq=12, emitted seq=14"})
	f("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, but soft recovered",
		device.Event{Name: device.EventHang, Message: "ring sdma0 timeout, but soft recovered"})
	f("amdgpu 0000:c1:00.0: [drm] *ERROR* ring gfx timeout", device.Event{Name: device.EventHang, PCI: at, Message: "ring gfx timeout"})
	f("amdgpu: qcm fence wait loop timeout expired", device.Event{Name: device.EventHang, Message: "qcm fence wait loop timeout expired"})
	f("amdgpu 00000000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32771, for process python3 pid 1234 thread python3 pid 1240)",
		device.Event{
			Name: device.EventHang, PCI: at, PID: 1234, Process: "python3",
			Message: "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32771, for process python3 pid 1234 thread python3 pid 1240)",
		})
	f("amdgpu 0000:c1:00.0: amdgpu: [mmhub0] retry page fault (src_id:0 ring:0 vmid:0 pasid:0, for process  pid 0 thread  pid 0)",
		device.Event{
			Name: device.EventHang, PCI: at,
			Message: "[mmhub0] retry page fault (src_id:0 ring:0 vmid:0 pasid:0, for process  pid 0 thread  pid 0)",
		})
	f("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin! Serial 123456", device.Event{Name: device.EventReset, PCI: at})
	long, _ := parseLine("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!!" + strings.Repeat("é", 1000))
	if n := len(long.Message); n > maxMessage || n < maxMessage-1 {
		t.Errorf("a message of %d bytes", n)
	}

	not := func(line string) {
		t.Helper()
		if e, ok := parseLine(line); ok {
			t.Errorf("%q parsed as %+v", line, e)
		}
	}
	not("")
	not("amdgpu 0000:c1:00.0: amdgpu: Fetched VBIOS from VFCT")
	not("amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0")
	not("amdgpu 0000:c1:00.0: amdgpu:   in page starting at address 0x0000000000000000 from client 10")
	not("amdgpu 0000:c1:00.0: amdgpu: \t Faulty UTCL2 client ID: TCP (0x8)")
	not("nvidia 0000:c1:00.0: GPU reset begin!")
	not("systemd[1]: amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!")
	not("mce: [Hardware Error]: Machine check events logged")
}

func FuzzParseLine(f *testing.F) {
	f.Add("amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:3 pasid:32771, for process x pid 1 thread x pid 2)")
	f.Add("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout")
	f.Add("amdgpu 00000000:c1:00.0: {7}socket: 0, die: 0 2 new deferred hardware errors detected in umc block")
	f.Fuzz(func(t *testing.T, s string) {
		e, ok := parseLine(s)
		totals{}.repeats(e.PCI, s, 0)
		if ok != (e.Name != "") || len(e.Message) > maxMessage || len(e.Process) > maxProcess || strings.Contains(strings.ToLower(e.Message+e.Process), "serial") {
			t.Errorf("%q parsed as %+v", s, e)
		}
	})
}

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

// next returns the next event.
func (e *ear) next() device.Event {
	e.t.Helper()
	return <-e.events
}

// kernelLog creates a kernel log in the tree and returns a function that appends a record
// and waits until it is read.
func kernelLog(tr tree) (write func(seq, priority int, text string)) {
	tr.t.Helper()
	tr.write("proc/uptime", "1000.00 1.00\n")
	tr.write("dev/null", "")
	path := tr.path("dev/kmsg")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		tr.t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() { w.Close() })
	return func(seq, priority int, text string) {
		tr.t.Helper()
		if _, err := fmt.Fprintf(w, "%d,%d,%d,-;%s\n", priority, seq, 1e6*seq, text); err != nil {
			tr.t.Fatal(err)
		}
		await.True(tr.t, "the log to be read", func() bool {
			n, err := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ)
			if err != nil {
				tr.t.Fatal(err)
			}
			return n == 0
		})
	}
}

// Events resume where an earlier run ended, count lost records, and name the GPU.
func TestEvents(t *testing.T) {
	tr := machine(t)
	write := kernelLog(tr)
	r := tr.open()
	devices(t, r)
	r.Resume(device.Position{Record: 5})
	e := listen(t, r)
	defer e.stop()
	const a, reset = "amdgpu 0000:05:00.0: amdgpu: ", "GPU reset begin!"
	write(5, 4, a+"3 new correctable hardware errors detected in umc block")
	write(6, 4, a+"9 correctable hardware errors detected in total in umc block") // reported before
	write(7, 12, a+reset)                                                         // written by a program, not by the kernel
	write(8, 4, a+reset)
	write(12, 4, "amdgpu 0000:99:00.0: amdgpu: "+reset) // an unknown GPU
	write(13, 4, a+"1 uncorrectable hardware errors detected in total in umc block")
	write(14, 4, "amdgpu: qcm fence wait loop timeout expired") // no address, and more than one GPU
	boot := now.Add(-1000 * time.Second)
	at := func(seq uint64) (time.Time, device.Position) {
		return boot.Add(time.Duration(seq) * time.Second), device.Position{Record: seq}
	}
	want := []device.Event{
		{Origin: "the kernel log"},
		{Position: device.Position{Record: 6}},
		{Position: device.Position{Record: 7}},
		{Name: device.EventReset, PCI: "0000:05:00.0", Device: "amd-e3aa1c0d5b6f7081", Message: reset},
		{Name: device.EventReset, PCI: "0000:99:00.0", Message: reset, Missed: 3},
		{Name: device.EventECC, PCI: "0000:05:00.0", Device: "amd-e3aa1c0d5b6f7081", Message: "1 uncorrectable hardware errors detected in total in umc block"},
		{Name: device.EventHang, Message: "qcm fence wait loop timeout expired"},
	}
	want[3].Time, want[3].Position = at(8)
	want[4].Time, want[4].Position = at(12)
	want[5].Time, want[5].Position = at(13)
	want[6].Time, want[6].Position = at(14)
	var got []device.Event
	for range want {
		got = append(got, e.next())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A message without an address belongs to the machine's only GPU.
func TestEventsOfOnlyGPU(t *testing.T) {
	tr := newTree(t)
	tr.card(3, "0000:01:00.0", map[string]string{"unique_id": "00000000000000ab\n"})
	write := kernelLog(tr)
	r := tr.open()
	devices(t, r)
	r.Resume(device.Position{Time: now.Add(-990 * time.Second)}) // everything up to record 10 came from another source
	e := listen(t, r)
	defer e.stop()
	for _, seq := range []int{9, 10, 11} {
		write(seq, 4, "amdgpu: qcm fence wait loop timeout expired")
	}
	e.next()
	got := e.next()
	if got.Device != "amd-00000000000000ab" || got.PCI != "0000:01:00.0" || got.Position.Record != 11 {
		t.Errorf("%+v", got)
	}
}

// Records that the kernel overwrote since an earlier run are counted.
func TestEventsMissed(t *testing.T) {
	tr := newTree(t)
	tr.card(0, "0000:26:00.0", nil)
	write := kernelLog(tr)
	r := tr.open()
	r.Resume(device.Position{Record: 5})
	e := listen(t, r)
	defer e.stop()
	write(9, 4, "amdgpu 0000:26:00.0: amdgpu: GPU reset begin!")
	e.next()
	if got := e.next(); got.Missed != 3 {
		t.Errorf("%+v", got)
	}
}

// Without Resume only new events are reported; without a log, none.
func TestEventsBegin(t *testing.T) {
	tr := newTree(t)
	tr.card(0, "0000:26:00.0", nil)
	r := tr.open()
	err := r.Events(t.Context(), func(e device.Event) { t.Errorf("%+v", e) })
	if err == nil || !strings.Contains(err.Error(), "cannot receive resets") {
		t.Errorf("no log: %v", err)
	}
	write := kernelLog(tr)
	tr.remove("proc/uptime")
	e := listen(t, r)
	defer e.stop()
	write(5, 4, "amdgpu 0000:26:00.0: amdgpu: GPU reset begin!")
	e.next()
	if got := e.next(); got.Name != device.EventReset || !got.Time.Equal(now.Add(5*time.Second)) || got.Missed != 0 {
		t.Errorf("%+v", got)
	}
}
