//go:build linux

package neuron

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
)

// line is the output of neuron-monitor on a machine with two devices of two cores each.
//
//go:embed testdata/trn1/monitor.json
var line string

// oneLine returns s in the single-line form that neuron-monitor writes.
func oneLine(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(s)); err != nil {
		t.Fatal(err)
	}
	return b.String() + "\n"
}

// output creates the file that neuron-monitor writes to, with an age.
func output(t *testing.T, content string, age time.Duration) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "monitor.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	touch(t, path, testTime.Add(-age))
	return path
}

func touch(t *testing.T, path string, at time.Time) {
	t.Helper()
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func corrected(location string, v float64) device.ECC {
	return device.ECC{Type: "corrected", Lifetime: "volatile", Location: location, Count: of(v)}
}

// heardMachine is trn1 with what line adds: utilization, sizes, and processes per core.
func heardMachine() []device.Sample {
	want := trn1()
	for i, v := range map[int]float64{0: 0.125, 1: 0, 2: 0.25, 3: 0.5, 4: 1, 5: 0} {
		want[i].Utilization.Compute = of(v)
	}
	for _, i := range []int{0, 3} {
		m := &want[i].Memory
		used, _ := m.Used.Get()
		m.Total, m.Free = of(34359738368), of(34359738368-used)
	}
	want[0].ECC = append([]device.ECC{corrected("", 7), corrected("memory", 3), corrected("sram", 4)}, want[0].ECC...)
	want[3].ECC = append([]device.ECC{corrected("memory", 0)}, want[3].ECC...)
	with(device.Process{PID: 42, Name: "python3", MemoryUsed: of(111)}, &want[0], &want[2])
	with(device.Process{PID: 42, Name: "python3", MemoryUsed: of(7)}, &want[3], &want[4])
	with(device.Process{PID: 43, Name: "python3"}, &want[3], &want[5])
	return want
}

func users2() tree {
	return tree{}.device(0, 2).device(1, 2).process(42, "python3", 0, 1).process(43, "python3", 1)
}

// Everything that neuron-monitor adds. Cores that no runtime uses are idle, and a process
// is listed only on the cores it uses.
func TestMonitor(t *testing.T) {
	got, err := read(t, users2(), Options{Monitor: output(t, oneLine(t, line), time.Second)})
	if diff := cmp.Diff(heardMachine(), got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// The last complete line counts if it is recent; the rest of the file does not matter.
func TestFile(t *testing.T) {
	root := users2().write(t, t.TempDir())
	all := func(o Options) ([]device.Sample, error) {
		o.Root = root
		return readRoot(t, o)
	}
	f := func(name, content string, age time.Duration, ok bool, wantErr string) {
		t.Helper()
		samples, err := all(Options{Monitor: output(t, content, age)})
		if samples[2].Utilization.Compute.OK() != ok || ok && samples[2].Utilization.Compute != of(0.25) {
			t.Errorf("%s: %v", name, samples[2].Utilization.Compute)
		}
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), "neuron-monitor: "+wantErr) {
			t.Errorf("%s: error %v", name, err)
		}
		if samples[2].Memory.Used != of(4097) { // from the driver, whatever neuron-monitor reports
			t.Errorf("%s: %v", name, samples[2].Memory)
		}
	}
	good := oneLine(t, line)
	other := strings.Replace(good, `"neuroncore_utilization":25`, `"neuroncore_utilization":75`, 1)
	f("first of all", good, 0, true, "")
	f("the last", other+good, 0, true, "")
	f("torn end", other+good+other[:200], 0, true, "")
	f("empty lines", good+"\n\r\n\n", 0, true, "")
	f("noise before", "\x00\xff{{{\n"+good, 0, true, "")
	f("still true", good, 3900*time.Millisecond, true, "")
	f("old", good, 4100*time.Millisecond, false, "no new output: neuron-monitor has stopped")
	f("slower", strings.ReplaceAll(good, `"period":1.0`, `"period":60`), 100*time.Second, true, "")
	f("no period", strings.ReplaceAll(good, `"period":1.0`, `"period":0`), 15*time.Second, true, "")
	f("from the future", good, -time.Second, true, "")
	f("nothing", "", 0, false, "no output yet")
	f("no end", good[:len(good)-1], 0, false, "no output yet")
	f("noise", good+"{}}\n", 0, false, "the line is not from neuron-monitor")
	f("too long", strings.Repeat("x", maxLine+10)+"\n", 0, false, "a line is too long")
	f("after a long one", strings.Repeat("x", maxLine+10)+"\n"+good, 0, true, "")
	_, err := all(Options{Monitor: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "neither a file nor a socket") {
		t.Errorf("error %v", err)
	}
	samples, err := all(Options{Monitor: "/no/such/file"})
	if err == nil || !strings.Contains(err.Error(), "neuron-monitor: no such file or directory") || len(samples[5].Processes) != 2 {
		t.Errorf("%v, %v", samples[5], err)
	}
}

// A file that grew is read again, an unchanged file is not, and the file may be replaced.
func TestFileGrows(t *testing.T) {
	now := testTime
	clock := func() time.Time { return now }
	path := output(t, oneLine(t, line), 0)
	list := devices(t, open(t, Options{Root: users2().write(t, t.TempDir()), Monitor: path, Now: clock}))
	busy := func(want device.Value, wantErr string) {
		t.Helper()
		s, err := list[2].Read(t.Context(), device.Fast)
		_, chipErr := list[0].Read(t.Context(), device.Fast)
		if s.Utilization.Compute != want || err != nil || (chipErr == nil) != (wantErr == "") || chipErr != nil && !strings.Contains(chipErr.Error(), wantErr) {
			t.Errorf("%v, %v, %v", s.Utilization.Compute, err, chipErr)
		}
	}
	busy(of(0.25), "")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Replace(oneLine(t, line), `"neuroncore_utilization":25`, `"neuroncore_utilization":75`, 1)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	now = now.Add(time.Second)
	touch(t, path, now)
	busy(of(0.75), "")
	now = now.Add(3 * time.Second)
	busy(of(0.75), "")
	now = now.Add(3 * time.Second)
	busy(device.Value{}, "no new output: neuron-monitor has stopped")
	if err := os.WriteFile(path, []byte(oneLine(t, line)), 0o600); err != nil { // rotated
		t.Fatal(err)
	}
	touch(t, path, now)
	now = now.Add(time.Second)
	busy(of(0.25), "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	busy(device.Value{}, "no such file")
}

// A socket delivers lines in pieces and may be slow, silent or gone. No read waits for it.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	now := testTime
	m := &monitor{path: path, now: func() time.Time { return now }}
	defer m.close()
	hears := func(want float64, wantErr string) {
		t.Helper()
		h := m.hear()
		if wantErr != "" {
			if h.report != nil || h.err == nil || !strings.Contains(h.err.Error(), wantErr) {
				t.Errorf("%v, %v", h.report, h.err)
			}
		} else if h.report == nil || h.err != nil || h.report.utilization(0, 1, 2) != of(want) {
			t.Errorf("%v, %v", h.report, h.err)
		}
	}
	hears(0, "no output yet")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	send := func(s string) {
		t.Helper()
		if _, err := conn.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	good := oneLine(t, line)
	other := strings.Replace(good, `"neuroncore_utilization":25`, `"neuroncore_utilization":75`, 1)
	send(good[:100])
	hears(0, "no output yet")
	send(good[100:] + other[:10])
	hears(0.25, "")
	send(other[10:] + good + other + "\n")
	hears(0.75, "")
	now = now.Add(3 * time.Second)
	hears(0.75, "")
	now = now.Add(3 * time.Second)
	hears(0, "no new output: neuron-monitor has stopped")
	go func() { // an overlong line is neither waited for nor kept
		_, _ = conn.Write(bytes.Repeat([]byte("x"), maxLine+100))
		_, _ = conn.Write([]byte("\n" + good))
	}()
	await.True(t, "the line after the long one", func() bool {
		if len(m.torn) > maxLine {
			t.Fatal("the overlong line was kept")
		}
		return m.hear().report != nil
	})
	hears(0.25, "")
	conn.Close()
	hears(0.25, "") // the last line is still valid
	hears(0.25, "") // and a new connection was made
	if conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	send(other)
	hears(0.75, "")
	conn.Close()
	l.Close()
	now = now.Add(time.Minute)
	m.hear()
	hears(0, "no such file")
}
