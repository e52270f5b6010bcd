package devicetest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A value of 0 is present; an absent value is not.
func TestFields(t *testing.T) {
	of := device.Of
	a := device.Sample{
		ID:     device.ID{UUID: "A", Model: "x"},
		Info:   device.Info{Driver: "1"},
		Memory: device.Memory{Used: of(0)},
		Temperatures: []device.Temperature{
			{Sensor: "edge"},
			{Sensor: "memory", Value: of(1), Limits: []device.TemperatureCap{{Event: "slowdown", Margin: of(3)}}},
		},
		Throttles: []device.Throttle{{Cause: "power"}},
		Aliases:   []string{"nvidia0"},
	}
	b := device.Sample{Processes: []device.Process{{PID: 1, Name: "x", MemoryUsed: of(1)}}, Runtime: device.Runtime{Latencies: []device.Latency{{Operation: "p"}}}}
	want := []string{"Info.Driver", "Memory.Used", "Processes.MemoryUsed", "Runtime.Latencies", "Temperatures.Limits.Margin", "Temperatures.Value", "Throttles"}
	if diff := cmp.Diff(want, Fields(a, b)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A document that promises a value nobody reads, or omits a value that is read, is wrong.
func TestCheckSources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sources.txt")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := device.Sample{Memory: device.Memory{Used: device.Of(1), Total: device.Of(2)}}
	rest := "-Utilization.Compute: a\n-Temperatures.Value: a\n-Powers.Instant: a\n-Clocks.Frequency: a\n-ECC.Count: a\n-Processes.MemoryUsed: a\n-Throttles: a\n"
	write("# c\n\nMemory.Used: file: x\nMemory.Total: file\n-Energy: none\n" + rest)
	if got := CheckSources(path, s); len(got) > 0 {
		t.Errorf("%q", got)
	}
	write("Memory.Used: file\nVoltages.Volts: file\n" + rest)
	want := []string{"Memory.Total is read but has no source", "Voltages.Volts has a source but no test reads it", "Memory.Total is absent without a reason", "Energy is absent without a reason"}
	if diff := cmp.Diff(want, CheckSources(path, s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"Memory.Used", "Memory.Used: a\nMemory.Used: b\n", ": a\n"} {
		write(bad)
		if _, err := ReadSources(path); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// Every number in a filled sample is a field, under the same path.
func TestFill(t *testing.T) {
	s, paths := Fill()
	fields := Fields(s)
	for _, path := range paths {
		if !slices.Contains(fields, path) {
			t.Errorf("%s is not a field", path)
		}
	}
	if len(paths) < 60 || len(fields) < len(paths) {
		t.Errorf("%d numbers, %d fields", len(paths), len(fields))
	}
}
