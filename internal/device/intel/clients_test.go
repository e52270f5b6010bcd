//go:build linux

package intel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/openfiles"
)

// process adds a process with one open DRM node to the machine.
func (m *machine) process(pid, fd int, node, info string) {
	m.t.Helper()
	dir := "proc/" + itoa(pid)
	m.set(dir+"/comm", "job"+itoa(pid)+"\n")
	m.remove(dir + "/fd/" + itoa(fd))
	m.link(dir+"/fd/"+itoa(fd), "/dev/dri/"+node)
	m.set(dir+"/fdinfo/"+itoa(fd), info)
}

// use returns the fdinfo of a client of oneCard's card.
func use(client, cycles, total int) string {
	return fmt.Sprintf("drm-driver:\txe\ndrm-client-id:\t%d\ndrm-pdev:\t0000:08:00.0\n"+
		"drm-resident-vram0:\t1 MiB\ndrm-cycles-ccs:\t%d\ndrm-total-cycles-ccs:\t%d\n", client, cycles, total)
}

// The device's utilization is the sum of its clients only if none can be missing: a wrong 0
// is worse than no value.
func TestWhole(t *testing.T) {
	f := func(what string, change func(*machine), whole bool) {
		t.Helper()
		m := oneCard(t, nil)
		m.process(10, 3, "renderD128", use(1, 0, 0))
		d := m.devices()[0]
		m.read(d, device.Static, 0)
		m.process(10, 3, "renderD128", use(1, 250, 1000))
		change(m)
		m.now = m.now.Add(time.Second)
		s, _ := d.Read(context.Background(), device.Fast)
		var busy, used device.Value
		if whole {
			busy, used = device.Of(0.25), device.Of(1<<20)
		}
		if s.Utilization.Compute != busy || s.Memory.Used != used {
			t.Errorf("%s: %v, %v", what, s.Utilization, s.Memory)
		}
		if len(s.Processes) == 0 || s.Processes[0].Utilization != device.Of(0.25) || s.Processes[0].Name != "job10" {
			t.Errorf("%s: %+v", what, s.Processes)
		}
	}
	f("all is seen", func(*machine) {}, true)
	f("a PID namespace of our own", func(m *machine) { m.set("proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 4194304 0 0") }, false)
	f("no process 2", func(m *machine) { m.remove("proc/2") }, false)
	f("virtual functions", func(m *machine) { m.set(cardDir+"/sriov_numvfs", "2") }, true) // noticed at the next slow read
	f("a garbled neighbor", func(m *machine) { m.process(11, 3, "renderD128", "drm-client-id:\tx\n") }, false)
	f("an unreadable neighbor", func(m *machine) {
		m.process(11, 3, "renderD128", "")
		m.spoil("proc/11/fdinfo/3")
	}, false)
	f("a neighbor that ended", func(m *machine) {
		m.process(11, 3, "renderD128", "")
		m.remove("proc/11/fdinfo")
	}, true)
	f("a number that was given to another GPU's file", func(m *machine) {
		m.process(11, 3, "renderD128", strings.Replace(use(7, 5, 5), "08:00", "09:00", 1))
	}, true)
	f("a file of another GPU", func(m *machine) { m.process(11, 3, "renderD129", use(7, 5, 5)) }, true)
	f("an old kernel without client numbers", func(m *machine) { m.process(11, 3, "renderD128", "drm-pdev:\t0000:08:00.0\n") }, false)
	f("a kernel that counts no clients", func(m *machine) { m.process(11, 3, "renderD128", "pos:\t0\n") }, false)
	if os.Getuid() == 0 {
		return // root is denied nothing
	}
	f("somebody else's process", func(m *machine) {
		m.process(11, 3, "renderD129", "")
		dir := m.path("proc/11/fd")
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(dir, 0o755) }) // otherwise the directory cannot be removed
	}, false)
	f("somebody else's file", func(m *machine) {
		m.process(11, 3, "renderD128", "")
		if err := os.Chmod(m.path("proc/11/fdinfo/3"), 0); err != nil {
			t.Fatal(err)
		}
	}, false)
}

// The same at the level of a search result, for runs as root.
func TestWholeAnswer(t *testing.T) {
	f := func(o openFiles, want bool) {
		t.Helper()
		if o.whole() != want {
			t.Errorf("%+v", o)
		}
	}
	f(openFiles{host: true}, true)
	f(openFiles{}, false)
	f(openFiles{host: true, denied: 1}, false)
	f(openFiles{host: true, err: errSearching}, false)
}

// A kernel that counts engines but no memory: one client's value is not the total.
func TestMemoryUnknown(t *testing.T) {
	m := oneCard(t, nil)
	m.process(10, 3, "renderD128", use(1, 0, 0))
	m.process(11, 3, "renderD128", strings.Replace(use(2, 0, 0), "resident", "total", 1))
	s := m.read(m.devices()[0], device.Static, 0)
	if s.Memory.Used.OK() || s.Processes[0].MemoryUsed != device.Of(1<<20) || s.Processes[1].MemoryUsed.OK() || s.Utilization.Compute != device.Of(0) {
		t.Errorf("%+v %+v %+v", s.Memory, s.Utilization, s.Processes)
	}
}

// The users of virtual functions are in virtual machines and not visible here.
func TestVirtualFunctions(t *testing.T) {
	m := oneCard(t, map[string]string{"sriov_numvfs": "0\n"})
	d := m.devices()[0]
	if s := m.read(d, device.Static, 0); s.Utilization.Compute != device.Of(0) || s.Memory.Used != device.Of(0) {
		t.Errorf("none: %+v %+v", s.Utilization, s.Memory)
	}
	m.set(cardDir+"/sriov_numvfs", "2\n")
	if s := m.read(d, device.Slow, time.Second); s.Utilization.Compute.OK() || s.Memory.Used.OK() {
		t.Errorf("two: %+v %+v", s.Utilization, s.Memory)
	}
}

// A new client that has already worked did so at an unknown time: the sum is absent until
// the next tick. A new client without work does not affect the sum.
func TestNewClient(t *testing.T) {
	m := oneCard(t, nil)
	m.process(10, 3, "renderD128", use(1, 0, 0))
	d := m.devices()[0]
	m.read(d, device.Static, 0)
	compute := func() device.Value {
		t.Helper()
		return m.read(d, device.Fast, time.Second).Utilization.Compute
	}
	m.process(10, 3, "renderD128", use(1, 100, 1000))
	m.process(11, 3, "renderD128", use(2, 0, 1000))
	if v := compute(); v != device.Of(0.1) {
		t.Errorf("beside an idle new client: %v", v)
	}
	m.process(10, 3, "renderD128", use(1, 200, 2000))
	m.process(12, 3, "renderD128", use(3, 50, 2000))
	if v := compute(); v.OK() {
		t.Errorf("beside a busy new client: %v", v)
	}
	m.process(10, 3, "renderD128", use(1, 300, 3000))
	m.process(11, 3, "renderD128", use(2, 0, 3000))
	m.process(12, 3, "renderD128", use(3, 350, 3000))
	if v := compute(); v != device.Of(0.4) {
		t.Errorf("all known: %v", v)
	}
	m.process(10, 3, "renderD128", use(1, 290, 4000)) // the count goes backwards for a moment
	m.process(11, 3, "renderD128", use(2, 900, 4000))
	m.process(12, 3, "renderD128", use(3, 1350, 4000))
	if v := compute(); v != device.Of(1) {
		t.Errorf("more than all: %v", v)
	}
	m.process(10, 3, "renderD128", use(1, 400, 5000))
	m.process(11, 3, "renderD128", use(2, 900, 5000))
	m.process(12, 3, "renderD128", use(3, 1350, 5000))
	if v := compute(); v != device.Of(0.1) {
		t.Errorf("after a count that went back: %v", v)
	}
}

func TestBusyOf(t *testing.T) {
	f := func(before, now string, elapsed time.Duration, want device.Value) {
		t.Helper()
		a, err := parseFdinfo(before)
		b, err2 := parseFdinfo(now)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if got := b.busy(&a, elapsed); got != want {
			t.Errorf("%q then %q: %v, not %v", before, now, got, want)
		}
	}
	none := device.Value{}
	xe := func(class string, cycles, total, capacity int) string {
		return fmt.Sprintf("drm-cycles-%[1]s: %[2]d\ndrm-total-cycles-%[1]s: %[3]d\ndrm-engine-capacity-%[1]s: %[4]d\n", class, cycles, total, capacity)
	}
	f(xe("ccs", 0, 0, 4), xe("ccs", 1000, 1000, 4), time.Second, device.Of(0.25)) // one of four engines
	f(xe("ccs", 0, 0, 0), xe("ccs", 500, 1000, 0), time.Second, device.Of(0.5))
	f(xe("rcs", 0, 0, 1)+xe("ccs", 0, 0, 1), xe("rcs", 250, 1000, 1)+xe("ccs", 500, 1000, 1), time.Second, device.Of(0.75))
	f(xe("rcs", 0, 0, 1)+xe("ccs", 0, 0, 1), xe("rcs", 900, 1000, 1)+xe("ccs", 900, 1000, 1), time.Second, device.Of(1))
	f(xe("vcs", 0, 0, 1), xe("vcs", 500, 1000, 1), time.Second, none)                                                  // video engines do not count
	f(xe("rcs", 0, 0, 1)+xe("bcs", 0, 0, 1), xe("rcs", 0, 1000, 1)+xe("bcs", 900, 1000, 1), time.Second, device.Of(0)) // neither do copy engines
	f(xe("ccs", 10, 1000, 1), xe("ccs", 20, 10, 1), time.Second, none)                                                 // the clock was reset
	f(xe("ccs", 10, 1000, 1), xe("ccs", 20, 1000, 1), time.Second, none)                                               // the clock stood still
	f(xe("ccs", 10, 1000, 1), xe("ccs", 10, 1000, 1), time.Second, device.Of(0))
	f("drm-cycles-ccs: 1\n", "drm-cycles-ccs: 2\n", time.Second, none)
	f("", xe("ccs", 20, 1000, 1), time.Second, none)
	f("drm-engine-render: 0 ns\n", "drm-engine-render: 250000000 ns\n", time.Second, device.Of(0.25))
	f("drm-engine-compute: 0 ns\n", "drm-engine-compute: 2000000000 ns\ndrm-engine-capacity-compute: 4\n", time.Second, device.Of(0.5))
	f("drm-engine-render: 0 ns\n", "drm-engine-render: 250000000 ns\n", 0, none)
	f("drm-engine-capacity-render: 1\n", "drm-engine-capacity-render: 1\n", time.Second, none)
}

func TestParseFdinfo(t *testing.T) {
	f := func(text string, want fdinfo, wantErr string) {
		t.Helper()
		got, err := parseFdinfo(text)
		if want.engines == nil && wantErr == "" {
			want.engines = map[string]engine{}
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(fdinfo{}, engine{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%q: error %v", text, err)
		}
	}
	f("", fdinfo{}, "")
	f("pos:\t0\nflags:\t02\nclient-id:\t9\n", fdinfo{}, "") // not a DRM key
	f("drm-pdev:\t0000:3A:00.0\ndrm-client-id:\t0\n", fdinfo{pdev: "0000:3a:00.0", identified: true}, "")
	f("drm-resident-vram0:\t0\n", fdinfo{vram: device.Of(0)}, "")
	f("drm-resident-vram0:\t2 KiB\ndrm-resident-vram1:\t1 MiB\ndrm-resident-system:\t5 GiB\n", fdinfo{vram: device.Of(2<<10 + 1<<20)}, "")
	f("drm-resident-local0:\t77\ndrm-total-local0:\t99\n", fdinfo{vram: device.Of(77)}, "")
	f("drm-memory-local0:\t3 GiB\n", fdinfo{vram: device.Of(3 << 30)}, "")
	f("drm-memory-vram0:\t3 GiB\ndrm-resident-vram0:\t1 GiB\n", fdinfo{vram: device.Of(1 << 30)}, "")
	f("drm-total-vram0:\t3 GiB\n", fdinfo{}, "") // total may include memory elsewhere
	f("drm-engine-video-enhance:\t12 ns\ndrm-engine-capacity-video-enhance:\t2\n",
		fdinfo{engines: map[string]engine{"video-enhance": {counted: true, busy: 12, capacity: 2}}}, "")
	f("drm-cycles-rcs:\t3\ndrm-total-cycles-rcs:\t9\n",
		fdinfo{engines: map[string]engine{"rcs": {counted: true, busy: 3, cycles: true, total: 9, hasTotal: true}}}, "")
	f("drm-client-id:\t-1\n", fdinfo{}, "client-id")
	f("drm-cycles-rcs:\tmany\n", fdinfo{}, "cycles-rcs")
	f("drm-resident-vram0:\t1 TB\n", fdinfo{}, "resident-vram0")
	f("drm-resident-vram0:\t99999999999999999999\n", fdinfo{}, "resident-vram0")
}

func TestProcessType(t *testing.T) {
	f := func(want bool, text string) {
		t.Helper()
		if info, err := parseFdinfo(text); err != nil || info.computes() != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	f(true, "")
	f(true, "drm-cycles-ccs: 1\ndrm-cycles-rcs: 5\n")
	f(true, "drm-engine-compute: 1 ns\n")
	f(true, "drm-cycles-bcs: 5\n")
	f(false, "drm-cycles-rcs: 5\ndrm-cycles-ccs: 0\n")
	f(false, "drm-engine-video: 5 ns\n")
}

// All GPUs share one search per tick, and none waits for a search that hangs.
func TestScanner(t *testing.T) {
	m := oneCard(t, nil)
	m.process(10, 3, "renderD128", "")
	ctx := context.Background()
	s := newScanner(m.root+"/proc", func() time.Time { return m.now })
	find := func() *openFiles {
		t.Helper()
		o, err := s.find(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := find()
	if diff := cmp.Diff([]openFile{{10, 3, 128}}, first.files, cmp.AllowUnexported(openFile{})); diff != "" || !first.whole() {
		t.Errorf("whole %v (-want +got):\n%s", first.whole(), diff)
	}
	m.now = m.now.Add(sameTick - 1)
	if find() != first {
		t.Error("searched again in the same tick")
	}
	m.now = m.now.Add(1)
	second := find()
	if second == first {
		t.Error("not searched again in the next tick")
	}
	second.cost = 200 * time.Millisecond // a machine with very many files
	m.now = m.now.Add(20*time.Second - 1)
	if find() != second {
		t.Error("a search that takes 0.2 s runs more often than every 20 s")
	}
	second.cost = time.Minute
	m.now = m.now.Add(10*time.Second + 1)
	if find() == second {
		t.Error("a result older than 30 s is used")
	}
	m.now = m.now.Add(-time.Hour)
	third := s.last.Load()
	if find() == third {
		t.Error("a result from the future is used")
	}

	s.turn <- struct{}{} // another GPU's search hangs
	m.now = m.now.Add(time.Second)
	late, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := s.find(late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	s.patience = 10 * time.Millisecond
	if _, err := s.find(ctx); !errors.Is(err, errSearching) {
		t.Errorf("error %v", err)
	}
}

// Devices are read by one goroutine each: run with -race.
func TestConcurrent(t *testing.T) {
	m := load(t, "node.txt")
	devices := m.devices()
	for range 3 {
		var wg sync.WaitGroup
		for _, d := range devices {
			wg.Go(func() {
				if _, err := d.Read(context.Background(), device.Slow); err != nil {
					t.Error(err)
				}
				_ = d.(device.Busy).Busy()
			})
		}
		wg.Wait()
		m.now = m.now.Add(time.Second)
	}
}

// A container may name one GPU's node like another GPU's: the device number decides.
func TestRenamedNode(t *testing.T) {
	null, err := os.Stat("/dev/null")
	if err != nil || null.Mode()&os.ModeCharDevice == 0 {
		t.Skip("no device files here")
	}
	m := newMachine(t)
	s := newScanner(m.root+"/proc", time.Now)
	m.link("proc/10/fd/3", "/dev/null")
	m.link("proc/10/fd/4", "/dev/dri/renderD900")
	for fd, want := range map[int]bool{3: false, 4: true} { // the major number of /dev/null is not that of DRM
		if n, ok := s.node(openfiles.File{PID: 10, FD: fd, Path: "/dev/dri/renderD900"}); ok != want || ok && n != 900 {
			t.Errorf("file %d: %d, %v", fd, n, ok)
		}
	}
	if n, ok := s.node(openfiles.File{PID: 10, FD: 5, Path: "/dev/dri/by-path"}); ok {
		t.Errorf("a folder: %d", n)
	}
}

// ENODEV means that the device has left the bus.
func TestGone(t *testing.T) {
	for err, gone := range map[error]bool{unix.ENODEV: true, unix.ENXIO: true, unix.EIO: false, unix.ENOENT: false} {
		var g gpu
		g.fail(&os.PathError{Op: "read", Path: "x", Err: err})
		if g.gone != gone || (len(g.errs) == 0) != errors.Is(err, unix.ENOENT) {
			t.Errorf("%v: gone %v, %v", err, g.gone, g.errs)
		}
	}
}

// An implausible number of open files must neither be read forever nor be taken as
// complete.
func TestTooManyFiles(t *testing.T) {
	m := oneCard(t, nil)
	m.process(10, 3, "renderD128", use(1, 0, 0))
	d := m.devices()[0].(*gpu)
	m.read(d, device.Static, 0)
	o := &openFiles{host: true, ended: m.now, cost: time.Minute}
	for range maxFiles {
		o.files = append(o.files, openFile{pid: 10, fd: 3, minor: 128})
	}
	d.r.scan.last.Store(o)
	if s, err := d.Read(context.Background(), device.Fast); err != nil || s.Utilization.Compute != device.Of(0) {
		t.Errorf("just enough: %v, %+v", err, s.Utilization)
	}
	o.files = append(o.files, openFile{pid: 10, fd: 3, minor: 128})
	s, err := d.Read(context.Background(), device.Fast)
	if err == nil || !strings.Contains(err.Error(), "too many") || s.Utilization.Compute.OK() || len(s.Processes) != 1 {
		t.Errorf("too many: %v, %+v", err, s.Utilization)
	}
}
