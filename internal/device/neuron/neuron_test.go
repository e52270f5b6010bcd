//go:build linux

package neuron

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
)

// A whole machine without neuron-monitor: a value from another core, from a neighboring
// file (present, peak), or in another unit would show.
func TestMachine(t *testing.T) {
	m := tree{}.device(0, 2).device(1, 2).process(42, "python3", 1).process(7, "server", 1, 0)
	got, err := read(t, m, Options{})
	want := trn1()
	with(device.Process{PID: 7, Name: "server"}, &want[0], &want[1], &want[2], &want[3], &want[4], &want[5])
	with(device.Process{PID: 42, Name: "python3"}, &want[3], &want[4], &want[5])
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// A missing file is absent, 0 is 0, and a broken file is named and affects no other.
func TestDegraded(t *testing.T) {
	base := tree{}.device(0, 2).device(1, 2)
	root := base.write(t, t.TempDir())
	f := func(name string, change func(m tree), expect func(want []device.Sample), wantErr string) {
		t.Helper()
		m := maps.Clone(base)
		change(m)
		base.become(t, root, m)
		defer m.become(t, root, base)
		got, err := readRoot(t, Options{Root: root})
		want := trn1()
		expect(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	const n0, core1 = virtual + "neuron0/", virtual + "neuron0/neuron_core1/stats/"
	lose := func(names ...string) func(tree) {
		return func(m tree) {
			for _, n := range names {
				for k := range m {
					if k == n || strings.HasPrefix(k, n+"/") {
						delete(m, k)
					}
				}
			}
		}
	}
	set := func(name, content string) func(tree) { return func(m tree) { m[name] = content } }
	folder := func(name string) func(tree) { // reading fails, as with a broken device
		return func(m tree) { delete(m, name); m[name+"/"] = "" }
	}
	f("no power", lose(n0+"stats/power/utilization"), func(w []device.Sample) { w[0].Powers = nil }, "")
	f("no power now", set(n0+"stats/power/utilization", "POWER_STATUS_NO_DATA,0,0,0,0\n"), func(w []device.Sample) { w[0].Powers = nil }, "")
	f("power 0", set(n0+"stats/power/utilization", fmt.Sprintf("POWER_STATUS_VALID,%d,0.00,0.00,0.00", testTime.Unix())), func(w []device.Sample) { w[0].Powers[0].Utilization = of(0) }, "")
	f("broken power", set(n0+"stats/power/utilization", "??"), func(w []device.Sample) { w[0].Powers = nil }, "neuron0/stats/power/utilization")
	f("no ECC", lose(n0+"stats/hardware"), func(w []device.Sample) { w[0].ECC = nil }, "")
	f("no SRAM ECC", lose(n0+"stats/hardware/sram_ecc_uncorrected"), func(w []device.Sample) { w[0].ECC = []device.ECC{w[0].ECC[1], w[0].ECC[3]} }, "")
	f("broken ECC", folder(n0+"stats/hardware/mem_ecc_uncorrected"), func(w []device.Sample) { w[0].ECC = w[0].ECC[2:] }, "mem_ecc_uncorrected")
	f("one kind of memory", lose(core1+"memory_usage/device_mem/constants"), func(w []device.Sample) {
		w[0].Memory.Used, w[2].Memory.Used = of(8192), of(4096)
	}, "")
	f("no memory", lose(core1+"memory_usage"), func(w []device.Sample) { w[0].Memory, w[2].Memory = device.Memory{}, device.Memory{} }, "")
	f("broken memory", set(core1+"memory_usage/device_mem/constants/total", "-1\n"), func(w []device.Sample) {
		w[0].Memory, w[2].Memory = device.Memory{}, device.Memory{}
	}, `neuron_core1/stats/memory_usage/device_mem/constants/total: "-1" is not an unsigned integer`)
	f("no operations", lose(core1+"other_info"), func(w []device.Sample) { w[2].Runtime.Operations, w[2].Resets = device.Value{}, nil }, "")
	f("no operation", set(core1+"other_info/flop_count/total", "0\n"), func(w []device.Sample) { w[2].Runtime.Operations = of(0) }, "")
	f("broken operations", folder(core1+"other_info/flop_count/total"), func(w []device.Sample) { w[2].Runtime.Operations = device.Value{} }, "flop_count")
	f("plain files", func(m tree) { // as in AWS's guide
		lose(core1 + "other_info")(m)
		m[core1+"other_info/flop_count"], m[core1+"other_info/reset_req_count"] = "7\n", "8\n"
	}, func(w []device.Sample) {
		w[2].Runtime.Operations, w[2].Resets = of(7), []device.ErrorCount{{Type: "requested", Count: of(8)}}
	}, "")
	f("memory of all kinds", set(core1+"memory_usage/device_mem/total", "9000\n"), func(w []device.Sample) {
		w[0].Memory.Used, w[2].Memory.Used = of(4096+9000), of(9000)
	}, "")
	f("no repairable ECC", lose(n0+"stats/hardware/mem_ecc_repairable_uncorrected"), func(w []device.Sample) {
		w[0].ECC = w[0].ECC[:3]
		w[0].ECC[0].Count = of(4)
	}, "")
	f("no resets", lose(core1+"other_info/reset_req_count"), func(w []device.Sample) { w[2].Resets = w[2].Resets[1:] }, "")
	f("broken resets", set(core1+"other_info/reset_fail_count/total", "many"), func(w []device.Sample) { w[2].Resets = w[2].Resets[:1] }, "reset_fail_count")
	f("no status", lose(core1+"status"), func(w []device.Sample) { w[2].Runtime.Executions = nil }, "")
	f("new status", set(core1+"status/a_new_one/total", "5\n"), func(w []device.Sample) {
		w[2].Runtime.Executions = append([]device.ErrorCount{{Type: "a_new_one", Count: of(5)}}, w[2].Runtime.Executions...)
	}, "")
	f("broken status", set(core1+"status/success/total", ""), func(w []device.Sample) {
		w[2].Runtime.Executions = []device.ErrorCount{w[2].Runtime.Executions[0], w[2].Runtime.Executions[2]}
	}, "status/success/total")
	f("no version", lose("sys/module"), func(w []device.Sample) {
		for i := range w {
			w[i].Info.Driver = ""
		}
	}, "")
	f("no processes", lose("proc"), func([]device.Sample) {}, "cannot find the processes on the devices")
}

// Slow counters keep their value in fast reads, and their power reading expires.
func TestTiers(t *testing.T) {
	root := tree{}.device(0, 2).write(t, t.TempDir())
	list := devices(t, open(t, Options{Root: root}))
	before, err := readAll(t, list, device.Static)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, virtual, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("neuron0/stats/hardware/mem_ecc_uncorrected", "100")
	put("neuron0/stats/power/utilization", fmt.Sprintf("POWER_STATUS_VALID,%d,1,1,1", testTime.Add(-powerAge-time.Second).Unix()))
	put("neuron0/neuron_core0/stats/other_info/reset_req_count/total", "100")
	put("neuron0/neuron_core0/stats/other_info/flop_count/total", "5")
	want := slices.Clone(before)
	want[1].Runtime.Operations = of(5)
	got, err := readAll(t, list, device.Fast)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	want[0].ECC = slices.Clone(want[0].ECC)
	want[0].ECC[0].Count, want[0].ECC[1].Count = of(105), of(100)
	want[0].Powers = nil
	want[1].Resets = []device.ErrorCount{{Type: "requested", Count: of(100)}, want[1].Resets[1]}
	got, err = readAll(t, list, device.Slow)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// Sixteen devices with gaps, in numeric order. A core's number over all devices is its name
// in Kubernetes.
func TestManyDevices(t *testing.T) {
	m := tree{}
	numbers := []int{0, 1, 2, 4, 5, 7, 8, 10, 11, 12, 15, 16, 20, 21, 30, 31}
	for _, n := range numbers {
		m.device(n, 4)
	}
	m[virtual+"neuronx/core_count"] = "1"
	m[virtual+"neuron_cluster/x"] = "1"
	samples, err := read(t, m, Options{})
	var got []string
	for _, s := range samples {
		got = append(got, fmt.Sprint(s.ID.Index, s.Slice, s.Aliases[0]))
	}
	var want []string
	for _, n := range numbers {
		want = append(want, fmt.Sprint(n, device.Slice{}, fmt.Sprintf("neuron%d", n)))
		for i := range 4 {
			want = append(want, fmt.Sprint(n, device.Slice{Held: 1, Of: 4}, fmt.Sprintf("aws.amazon.com/neuroncore/%d", 4*n+i)))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// Devices without a serial number are named after the machine. Two devices with the same
// name count once.
func TestNames(t *testing.T) {
	f := func(serial, machine, want string) {
		t.Helper()
		m := tree{}.device(3, 1)
		m[virtual+"neuron3/info/serial_number"] = serial
		r := open(t, Options{Root: m.write(t, t.TempDir()), Machine: machine})
		if got := devices(t, r)[0].ID().UUID; got != want {
			t.Errorf("%q: %s", serial, got)
		}
	}
	f("AbC1\n", "m1", "neuron-abc1")
	f("0000000000000000\n", "m1", "neuron-m1-3")
	f("0x0\n", "m1", "neuron-m1-3")
	f("", "", "neuron-3")
	m := tree{}.device(0, 1).device(1, 1)
	m[virtual+"neuron1/info/serial_number"] = m[virtual+"neuron0/info/serial_number"]
	delete(m, virtual+"neuron0/info/architecture/device_name")
	list, err := open(t, Options{Root: m.write(t, t.TempDir())}).Devices(t.Context())
	if len(list) != 2 || err == nil || list[0].ID().Model != "Neuron device" {
		t.Errorf("%v, %v", list, err)
	}
	m = tree{}.device(0, 1).device(1, 1)
	delete(m, virtual+"neuron0/info/architecture/arch_type")
	m[virtual+"neuron0/info/architecture/arch_type/"] = ""
	list, err = open(t, Options{Root: m.write(t, t.TempDir())}).Devices(t.Context())
	if len(list) != 4 || err == nil || !strings.Contains(err.Error(), "arch_type") {
		t.Errorf("%v, %v", list, err)
	}
}

func TestAbsent(t *testing.T) {
	for _, m := range []tree{{}, {virtual + "neuron/x": ""}, {virtual + "neuronx/x": ""}, {"sys/bus/pci/devices/0000:00:1e.0/vendor": "0x1d0f\n"}} {
		if _, err := Open(t.Context(), Options{Root: m.write(t, t.TempDir())}); !errors.Is(err, device.ErrAbsent) {
			t.Errorf("error %v", err)
		}
	}
}

// The same device keeps its Device, a changed one does not, and a removed one is lost.
func TestRediscovery(t *testing.T) {
	root := tree{}.device(0, 2).device(1, 2).write(t, t.TempDir())
	r := open(t, Options{Root: root})
	first := devices(t, r)
	if again := devices(t, r); !slices.Equal(first, again) {
		t.Errorf("%v, then %v", first, again)
	}
	if err := os.RemoveAll(filepath.Join(root, virtual, "neuron1")); err != nil {
		t.Fatal(err)
	}
	for _, d := range first[3:] {
		if s, err := d.Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) || !cmp.Equal(s, device.Sample{ID: d.ID()}) {
			t.Errorf("%v, %v", s, err)
		}
	}
	if _, err := readAll(t, first[:3], device.Static); err != nil {
		t.Error(err)
	}
	if again := devices(t, r); !slices.Equal(first[:3], again) {
		t.Errorf("%v, then %v", first[:3], again)
	}
	tree{virtual + "neuron0/neuron_core1/stats/status/a_new_one/total": "1"}.write(t, root)
	if again := devices(t, r); again[0] == first[0] || again[2] == first[2] || len(again) != 3 {
		t.Errorf("%v, then %v", first, again)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, d := range first[:3] {
		if _, err := d.Read(ctx, device.Fast); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	}
}

// A process that exited is gone at the next read of any tier; a new process with its PID is
// not mistaken for it.
func TestProcessEnds(t *testing.T) {
	root := tree{}.device(0, 1).process(42, "python3", 0).process(43, "python3", 0).write(t, t.TempDir())
	list := devices(t, open(t, Options{Root: root}))
	if samples, err := readAll(t, list, device.Static); err != nil || len(samples[0].Processes) != 2 || len(samples[1].Processes) != 2 {
		t.Fatalf("%v, %v", samples, err)
	}
	for _, fd := range []string{"3", "4"} {
		if err := os.Remove(filepath.Join(root, "proc/42/fd", fd)); err != nil {
			t.Fatal(err)
		}
	}
	tree{"proc/42/fd/3": "-> /dev/null", "proc/42/fd/4": "-> /dev/null"}.write(t, root)
	samples, err := readAll(t, list, device.Fast)
	for _, s := range samples {
		if len(s.Processes) != 1 || s.Processes[0].PID != 43 || err != nil {
			t.Errorf("%v, %v", s.Processes, err)
		}
	}
}

// A panic or hang while computing the shared value must not block the other devices.
func TestShared(t *testing.T) {
	var s shared[int]
	now := func() time.Time { return testTime }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		s.get(t.Context(), now, time.Hour, func() int { panic("boom") })
	}()
	if v := s.get(t.Context(), now, time.Hour, func() int { return 1 }); v != 1 {
		t.Errorf("%d", v)
	}
	if v := s.get(t.Context(), now, time.Hour, func() int { return 2 }); v != 1 {
		t.Errorf("%d: the value was not kept", v)
	}
	begun, end := make(chan bool), make(chan bool)
	go s.get(t.Context(), now, 0, func() int { begun <- true; <-end; return 3 })
	<-begun
	if v := s.get(t.Context(), now, 0, func() int { return 4 }); v != 1 {
		t.Errorf("%d while another one hangs", v)
	}
	end <- true
	await.True(t, "the late answer", func() bool { return s.get(t.Context(), now, time.Hour, func() int { return 5 }) == 3 })
}

// The kernel's answer for a device that was removed while its file was open.
func TestGoneMeanwhile(t *testing.T) {
	f := files{}
	f.check(&fs.PathError{Op: "read", Path: "x", Err: unix.ENOENT})
	f.check(nil)
	if f.lost || f.errs != nil {
		t.Errorf("%+v", f)
	}
	f.check(&fs.PathError{Op: "read", Path: "x", Err: unix.EIO})
	if f.lost || len(f.errs) != 1 {
		t.Errorf("%+v", f)
	}
	f.check(&fs.PathError{Op: "read", Path: "x", Err: unix.ENODEV})
	if !f.lost || len(f.errs) != 1 {
		t.Errorf("%+v", f)
	}
}

func TestParsePower(t *testing.T) {
	f := func(line string, want device.Value, ok bool) {
		t.Helper()
		got, err := parsePower(line, testTime)
		if got != want || (err == nil) != ok {
			t.Errorf("%q: %v, %v", line, got, err)
		}
	}
	now := testTime.Unix()
	f(fmt.Sprintf("POWER_STATUS_VALID,%d,1.5,3.5,2.25", now), of(0.0225), true)
	f(fmt.Sprintf("POWER_STATUS_VALID, %d, 1.5, 3.5, 2.25, 9", now-59), of(0.0225), true)
	f(fmt.Sprintf("POWER_STATUS_VALID,%d,0,0,0", now), of(0), true)
	f(fmt.Sprintf("POWER_STATUS_VALID,%d,1,1,1", now-600), device.Value{}, true)
	f(fmt.Sprintf("POWER_STATUS_INVALID,%d,1,1,1", now), device.Value{}, true)
	f("POWER_STATUS_NO_DATA", device.Value{}, true)
	f("", device.Value{}, false)
	f("POWER_STATUS_GREAT,1,1,1,1", device.Value{}, false)
	f("POWER_STATUS_VALID,1,1,1", device.Value{}, false)
	f("POWER_STATUS_VALID,now,1,1,1", device.Value{}, false)
	for _, bad := range []string{"-1", "NaN", "Inf", "1e9", "x", ""} {
		f(fmt.Sprintf("POWER_STATUS_VALID,%d,1,1,%s", now, bad), device.Value{}, false)
	}
}

func FuzzParsePower(f *testing.F) {
	f.Add(fmt.Sprintf("POWER_STATUS_VALID,%d,1.5,3.5,2.25", testTime.Unix()))
	f.Fuzz(func(t *testing.T, line string) {
		if v, _ := parsePower(line, testTime); v.OK() {
			if x, _ := v.Get(); !(x >= 0 && x <= 2) {
				t.Errorf("%q: %v", line, v)
			}
		}
	})
}
