//go:build linux

package neuron

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Every group has its own error: values are used if it is empty and ignored if it is not,
// and other groups are unaffected.
func TestGroups(t *testing.T) {
	f := func(name, old, replacement string, check func(r *report) bool, wantErr string) {
		t.Helper()
		s := strings.Replace(oneLine(t, line), old, replacement, 1)
		if !strings.Contains(oneLine(t, line), old) {
			t.Fatalf("%s: the line has no %s", name, old)
		}
		r, err := parseReport([]byte(s))
		if r == nil || !check(r) || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	none := device.Value{}
	f("runtime", `"neuron_runtime_tag":"a","error":""`, `"neuron_runtime_tag":"a","error":"gone"`, func(r *report) bool {
		return len(r.runtimes) == 1 && r.utilization(0, 1, 2) == none && r.utilization(1, 1, 2) == of(0) && r.memory.OK()
	}, "neuron_runtime_data: a runtime has an error")
	f("counters", `100.02}},"error":""`, `100.02}},"error":"failed with secret"`, func(r *report) bool {
		return r.utilization(0, 1, 2) == none && r.utilization(0, 0, 2) == none && r.utilization(1, 1, 2) == of(0) && r.runtimes[0].memory[1] == of(111)
	}, "neuroncore_counters: the group reports an error")
	f("broken counters", `"neuroncore_utilization":25`, `"neuroncore_utilization":"x"`, func(r *report) bool {
		return r.utilization(0, 1, 2) == none && r.runtimes[0].memory[1] == of(111)
	}, "neuroncore_counters: implausible values")
	f("negative", `"neuroncore_utilization":25`, `"neuroncore_utilization":-1`, func(r *report) bool { return r.utilization(0, 1, 2) == none }, "neuroncore_counters")
	f("above all", `"neuroncore_utilization":25`, `"neuroncore_utilization":1000`, func(r *report) bool { return r.utilization(0, 1, 2) == none }, "neuroncore_counters")
	f("not said", `"neuroncore_utilization":25`, `"x":1`, func(r *report) bool { return r.utilization(0, 1, 2) == none }, "neuroncore_counters")
	f("odd core", `"1":{"neuroncore_utilization"`, `"-1":{"neuroncore_utilization"`, func(r *report) bool { return !r.complete }, "neuroncore_counters")
	f("not counted", `"neuroncore_counters":{"period":1.0,"neuroncores_in_use":{"3"`, `"other":{"neuroncores_in_use":{"3"`, func(r *report) bool {
		return r.utilization(1, 1, 2) == none && r.utilization(0, 1, 2) == of(0.25)
	}, "neuroncore_counters")
	f("null", `"neuroncore_counters":{"period":1.0,"neuroncores_in_use":{"3"`, `"neuroncore_counters":null,"other":{"neuroncores_in_use":{"3"`, func(r *report) bool {
		return r.utilization(1, 1, 2) == none && r.utilization(0, 1, 2) == of(0.25)
	}, "neuroncore_counters: no values")
	f("memory", `"loaded_models":[],"error":""`, `"loaded_models":[],"error":"x"`, func(r *report) bool {
		return r.runtimes[0].memory == nil && r.utilization(0, 1, 2) == of(0.25)
	}, "memory_used: the group reports an error")
	f("negative memory", `"constants":100`, `"constants":-100`, func(r *report) bool { return r.runtimes[0].memory == nil && r.complete }, "memory_used: implausible values")
	f("hardware", `34359738368,"error":""`, `34359738368,"error":"x"`, func(r *report) bool {
		return r.perDevice == 0 && !r.memory.OK() && r.utilization(0, 1, 2) == of(0.25)
	}, "neuron_hardware_info: the group reports an error")
	f("mad hardware", `34359738368`, `-1`, func(r *report) bool { return !r.memory.OK() }, "neuron_hardware_info: implausible values")
	f("ECC", `"mem_ecc_corrected":0}],"error":""`, `"mem_ecc_corrected":0}],"error":"x"`, func(r *report) bool { return r.corrected(0) == nil }, "neuron_hw_counters: the group reports an error")
	f("negative ECC", `"mem_ecc_corrected":3`, `"mem_ecc_corrected":-3`, func(r *report) bool { return r.corrected(0) == nil }, "neuron_hw_counters: implausible values")
	f("pid", `"pid":42`, `"pid":-42`, func(r *report) bool { return len(r.runtimes) == 1 && !r.complete }, "neuron_runtime_data")
	for _, bad := range []string{"", "[]", "1", "{", `{"neuron_runtime_data": 5}`, `{"neuron_runtime_data": [5]}`} {
		if r, err := parseReport([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, r)
		}
	}
	many := `{"neuron_runtime_data": [` + strings.Repeat(`{"pid":1,"error":"x"},`, 5000) + `{"pid":1}]}`
	if r, err := parseReport([]byte(many)); r == nil || len(r.runtimes) > maxRuntimes || r.complete || err == nil || len(err.Error()) > 300 {
		t.Errorf("%v", err)
	}
	if r, err := parseReport([]byte(`{}`)); err != nil || r.utilization(0, 0, 2) != of(0) {
		t.Errorf("an idle machine: %v, %v", r, err)
	}
}

// Where the runtime counts two cores as one, its numbers refer to such pairs: a core must
// not get another core's value, and its number in Kubernetes is unknown.
func TestLogicalCores(t *testing.T) {
	const trn2 = `{"neuron_runtime_data": [{"pid": 42, "error": "", "report": {"neuroncore_counters": {"period": 1, "neuroncores_in_use": {
	  "4": {"neuroncore_utilization": 42, "v3d": {"nc_v3.8": {"neuroncore_utilization": 21}, "nc_v3.9": {"neuroncore_utilization": 63}}},
	  "5": {"neuroncore_utilization": 10, "v3d": {"nc_v3.11": {"neuroncore_utilization": 15}, "nc_v3.10": {"neuroncore_utilization": 5}}},
	  "7": {"neuroncore_utilization": 50}}, "error": ""},
	  "memory_used": {"neuron_runtime_used_bytes": {"usage_breakdown": {"neuroncore_memory_usage": {"4": {"tensors": 10}, "7": {"tensors": 6}}}}, "error": ""}}}],
	 "neuron_hardware_info": {"neuroncore_per_device_count": 4, "logical_neuroncore_config": 2, "error": ""}}`
	root := tree{}.device(0, 8).device(1, 8).process(42, "python3", 1).write(t, t.TempDir())
	all := func(o Options) ([]device.Sample, error) {
		o.Root = root
		return readRoot(t, o)
	}
	samples, err := all(Options{Monitor: output(t, oneLine(t, trn2), 0)})
	var got []string
	for _, s := range samples[9:] {
		memory := device.Value{}
		if len(s.Processes) > 0 {
			memory = s.Processes[0].MemoryUsed
		}
		v, _ := s.Utilization.Compute.Get()
		got = append(got, fmt.Sprintf("%.4f %d %v %d", v, len(s.Processes), memory, len(s.Aliases)))
	}
	want := []string{
		"0.2550 1 {16 true} 3", // the device: (0.21+0.63+0.05+0.15+0+0+0.5+0.5)/8
		"0.2100 1 {5 true} 0", "0.6300 1 {5 true} 0", "0.0500 1 {0 false} 0", "0.1500 1 {0 false} 0",
		"0.0000 0 {0 false} 0", "0.0000 0 {0 false} 0", "0.5000 1 {3 true} 0", "0.5000 1 {3 true} 0",
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	// Without neuron-monitor the numbering is ambiguous, so the cores have no alias. With
	// neuron-monitor reporting as many cores as the driver has, they do.
	samples, _ = all(Options{})
	if samples[1].Aliases != nil || samples[1].Slice != (device.Slice{Held: 1, Of: 8}) {
		t.Errorf("%v", samples[1])
	}
	one := strings.Replace(oneLine(t, trn2), `"neuroncore_per_device_count":4`, `"neuroncore_per_device_count":8`, 1)
	samples, _ = all(Options{Monitor: output(t, one, 0)})
	if diff := cmp.Diff([]string{"aws.amazon.com/neuroncore/9"}, samples[11].Aliases); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A PID from neuron-monitor's own PID namespace is an unrelated process here: a process
// that has no device open must not be billed.
func TestForeignPID(t *testing.T) {
	m := tree{}.device(0, 2).device(1, 2).process(42, "sshd").process(44, "python3", 0)
	samples, err := read(t, m, Options{Monitor: output(t, oneLine(t, line), 0)})
	if err != nil || len(samples[0].Processes) != 1 || samples[0].Processes[0].PID != 44 || samples[2].Processes != nil {
		t.Errorf("%v, %v, %v", samples[0].Processes, samples[2].Processes, err)
	}
}

// A process whose files may not be read is believed, because nothing contradicts it.
func TestHiddenProcess(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root sees the files of every process")
	}
	root := tree{}.device(0, 2).device(1, 2).process(42, "python3").write(t, t.TempDir())
	fd := filepath.Join(root, "proc/42/fd")
	if err := os.Chmod(fd, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(fd, 0o700) }()
	samples, err := readRoot(t, Options{Root: root, Monitor: output(t, oneLine(t, line), 0)})
	want := []device.Process{{PID: 42, Name: "python3", Type: "compute", MemoryUsed: of(111)}}
	if diff := cmp.Diff(want, samples[2].Processes); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// A captured line from a real machine.
func TestCapture(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("../../../../shared/fixtures/neuron", "neuron-monitor-trn1.2xlarge.json"))
	if err != nil {
		t.Skipf("no captures found: %v", err)
	}
	m := tree{}.device(0, 2).process(1337, "python3", 0)
	samples, err := read(t, m, Options{Monitor: output(t, oneLine(t, string(b)), 0)})
	want := []device.Sample{chipSample(0, 2), coreSample(0, 0, 2), coreSample(0, 1, 2)}
	want[0].Utilization.Compute = of(0.013631567613356375 / 2)
	want[1].Utilization.Compute, want[2].Utilization.Compute = of(0.013631567613356375), of(0)
	want[0].ECC = append([]device.ECC{corrected("", 0), corrected("memory", 0), corrected("sram", 0)}, want[0].ECC...)
	const first, second = 196608 + 101125344 + 943608, 32768
	with(device.Process{PID: 1337, Name: "python3", MemoryUsed: of(first + second)}, &want[0])
	with(device.Process{PID: 1337, Name: "python3", MemoryUsed: of(first)}, &want[1])
	with(device.Process{PID: 1337, Name: "python3", MemoryUsed: of(second)}, &want[2])
	if diff := cmp.Diff(want, samples); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(line))
	f.Add([]byte(`{"neuron_runtime_data":[{"pid":1,"report":{"neuroncore_counters":{"neuroncores_in_use":{"0":{"v3d":{"nc_v3.0":{}}}}}}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseReport(b)
		if r == nil {
			if err == nil {
				t.Error("neither a report nor an error")
			}
			return
		}
		for _, of := range []int{1, 2, 8} {
			for place := range of {
				if v, ok := r.utilization(1, place, of).Get(); ok && !(v >= 0 && v <= 1) {
					t.Errorf("%v", v)
				}
				for _, rt := range r.runtimes {
					if v, ok := rt.on(0, &corePlace{place, of}, r.perDevice); ok && v.OK() {
						if x, _ := v.Get(); !(x >= 0 && x < 1e16) {
							t.Errorf("%v", v)
						}
					}
					rt.on(0, nil, r.perDevice)
				}
			}
		}
		r.corrected(0)
	})
}

func FuzzFeed(f *testing.F) {
	f.Add([]byte("a\nbc\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		cut = max(0, min(cut, len(b)))
		m := &monitor{}
		first, second := m.feed(b[:cut]), m.feed(b[cut:])
		if second == nil {
			second = first
		}
		want, ok := lastLine(b, true)
		if ok != (second != nil) || !bytes.Equal(want, second) {
			t.Errorf("%q cut at %d: %q, want %q", b, cut, second, want)
		}
	})
}
