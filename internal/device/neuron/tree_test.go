//go:build linux

package neuron

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

func of(v float64) device.Value { return device.Of(v) }

// tree is a file system: content by path. "-> x" is a link to x; a path that ends in / is a
// directory.
type tree map[string]string

func (m tree) write(t *testing.T, root string) string {
	t.Helper()
	for name, content := range m {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(to, path)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o700)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// become changes the files of m at root to those of next.
func (m tree) become(t *testing.T, root string, next tree) {
	t.Helper()
	changed := tree{}
	for name, content := range m {
		if _, stays := next[name]; !stays {
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
			for dir := filepath.Dir(filepath.Join(root, name)); os.Remove(dir) == nil; {
				dir = filepath.Dir(dir) // as long as they are empty
			}
		} else if content != next[name] {
			changed[name] = next[name]
		}
	}
	for name, content := range next {
		if _, known := m[name]; !known {
			changed[name] = content
		}
	}
	changed.write(t, root)
}

const virtual = "sys/devices/virtual/neuron_device/"

// device adds device n with some cores. All numbers are different.
func (m tree) device(n, cores int) tree {
	dir := fmt.Sprintf(virtual+"neuron%d/", n)
	put := func(name string, v any) { m[dir+name] = fmt.Sprint(v) + "\n" }
	put("core_count", cores)
	put("connected_devices", "1")
	put("reset", 0)
	put("info/serial_number", fmt.Sprintf("A1B2C3D4%02d", n))
	put("info/notify_delay", -1)
	put("info/architecture/arch_type", "NCv2")
	put("info/architecture/device_name", "Trainium1")
	put("info/architecture/instance_type", "Trn1")
	put("stats/hardware/mem_ecc_uncorrected", 10*n+1)
	put("stats/hardware/mem_ecc_repairable_uncorrected", 10*n+2)
	put("stats/hardware/sram_ecc_uncorrected", 10*n+3)
	put("stats/power/utilization", fmt.Sprintf("POWER_STATUS_VALID,%d,10.00,90.00,%.2f", testTime.Unix()-30, 40.5+float64(n)))
	put("stats/memory_usage/host_mem/tensors/total", 999)
	for i := range cores {
		c := fmt.Sprintf("neuron_core%d/stats/", i)
		put(c+"status/success/total", 1000+100*n+i)
		put(c+"status/success/present", 1)
		put(c+"status/timeout/total", i)
		put(c+"status/hw_error/total", 0)
		put(c+"memory_usage/device_mem/tensors/total", 4096*(n+1))
		put(c+"memory_usage/device_mem/tensors/present", 77)
		put(c+"memory_usage/device_mem/tensors/peak", 1<<40)
		put(c+"memory_usage/device_mem/constants/total", i)
		put(c+"other_info/flop_count/total", 1_000_000_000_000+i)
		put(c+"other_info/flop_count/present", 3)
		put(c+"other_info/inference_count/total", 5)
		put(c+"other_info/reset_req_count/total", 2+i)
		put(c+"other_info/reset_req_count/present", 9)
		put(c+"other_info/reset_fail_count/total", 1)
		put(c+"other_info/nc_time_in_use/total", 17)
	}
	m["sys/module/neuron/version"] = "2.21.37.0\n"
	m["proc/1/comm"] = "init\n"
	m["proc/1/fd/0"] = "-> /dev/null"
	return m
}

func (m tree) process(pid int, name string, devices ...int) tree {
	m[fmt.Sprintf("proc/%d/comm", pid)] = name + "\n"
	m[fmt.Sprintf("proc/%d/fd/0", pid)] = "-> /dev/null"
	for i, n := range devices {
		m[fmt.Sprintf("proc/%d/fd/%d", pid, 3+2*i)] = fmt.Sprintf("-> /dev/neuron%d", n)
		m[fmt.Sprintf("proc/%d/fd/%d", pid, 4+2*i)] = fmt.Sprintf("-> /dev/neuron%d", n)
	}
	return m
}

// sortedKeys is for tests that walk a tree.
func (m tree) sortedKeys() []string { return slices.Sorted(maps.Keys(m)) }

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func open(t *testing.T, o Options) *Reader {
	t.Helper()
	if o.Now == nil {
		o.Now = func() time.Time { return testTime }
	}
	r, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func devices(t *testing.T, r *Reader) []device.Device {
	t.Helper()
	list, err := r.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// readAll reads every device, concurrently as the agent does.
func readAll(t *testing.T, list []device.Device, tier device.Tier) ([]device.Sample, error) {
	t.Helper()
	samples, errs := make([]device.Sample, len(list)), make([]error, len(list))
	var wg sync.WaitGroup
	for i, d := range list {
		wg.Go(func() { samples[i], errs[i] = d.Read(t.Context(), tier) })
	}
	wg.Wait()
	return samples, errors.Join(errs...)
}

func read(t *testing.T, m tree, o Options) ([]device.Sample, error) {
	t.Helper()
	o.Root = m.write(t, t.TempDir())
	return readRoot(t, o)
}

// readRoot reads a tree on disk. The shared values are computed first, because on a busy
// machine devices would not wait long enough for each other.
func readRoot(t *testing.T, o Options) ([]device.Sample, error) {
	t.Helper()
	r := open(t, o)
	r.hear(t.Context())
	r.look(t.Context(), device.Static)
	return readAll(t, devices(t, r), device.Static)
}

// chipSample is the expected sample of device n, and coreSample that of its core i.
func chipSample(n, cores int) device.Sample {
	used := 0
	for i := range cores {
		used += 4096*(n+1) + i
	}
	ecc := func(location string, v int) device.ECC {
		return device.ECC{Type: "uncorrected", Lifetime: "volatile", Location: location, Count: of(float64(v))}
	}
	return device.Sample{
		ID:     device.ID{Vendor: "neuron", UUID: fmt.Sprintf("neuron-a1b2c3d4%02d", n), Index: n, Model: "Trainium1"},
		Info:   device.Info{Driver: "2.21.37.0", Architecture: "NCv2"},
		Memory: device.Memory{Used: of(float64(used))},
		Powers: []device.Power{{Scope: "gpu", Utilization: of((40.5 + float64(n)) / 100)}},
		ECC:    []device.ECC{ecc("", 30*n+6), ecc("memory", 10*n+1), ecc("sram", 10*n+3), ecc("memory_repairable", 10*n+2)},
		Aliases: []string{
			fmt.Sprintf("neuron%d", n), fmt.Sprintf("aws.amazon.com/neuron/%d", n), fmt.Sprintf("aws.amazon.com/neurondevice/%d", n),
		},
	}
}

func coreSample(n, i, cores int) device.Sample {
	count := func(kind string, v int) device.ErrorCount {
		return device.ErrorCount{Type: kind, Count: of(float64(v))}
	}
	s := chipSample(n, cores)
	s.ID.Parent, s.ID.UUID, s.ID.Profile = s.ID.UUID, fmt.Sprintf("%s-nc%d", s.ID.UUID, i), "neuroncore"
	return device.Sample{
		ID: s.ID, Info: s.Info,
		Memory:  device.Memory{Used: of(float64(4096*(n+1) + i))},
		Resets:  []device.ErrorCount{count("requested", 2+i), count("failed", 1)},
		Runtime: device.Runtime{Operations: of(1e12 + float64(i)), Executions: []device.ErrorCount{count("hw_error", 0), count("success", 1000+100*n+i), count("timeout", i)}},
		Slice:   device.Slice{Held: 1, Of: cores},
		Aliases: []string{fmt.Sprintf("aws.amazon.com/neuroncore/%d", n*cores+i)},
	}
}

func trn1() []device.Sample {
	return []device.Sample{
		chipSample(0, 2), coreSample(0, 0, 2), coreSample(0, 1, 2),
		chipSample(1, 2), coreSample(1, 0, 2), coreSample(1, 1, 2),
	}
}

func with(process device.Process, samples ...*device.Sample) {
	process.Type = "compute"
	for _, s := range samples {
		s.Processes = append(s.Processes, process)
	}
}
