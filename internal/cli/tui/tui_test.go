package tui

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

var update = flag.Bool("update", false, "rewrite the golden frames")

const gib = 1 << 30

// sample returns a snapshot of two nodes at the n-th tick.
func sample(n int) Snapshot {
	s := Snapshot{
		Time: time.Date(2026, 11, 15, 12, 0, 2*n, 0, time.UTC), From: "http://hub:9500", Simulated: true, Currency: "USD",
		Findings: []Finding{
			{Severity: Critical, Host: "h200-01", UUID: "GPU-b7", Of: "nvidia 7", Reason: "the driver requests a reset of the device", Action: "Drain and reset the device.", Since: time.Date(2026, 11, 15, 9, 0, 0, 0, time.Local)},
			{Severity: Info, Host: "h200-01", Of: "workloads", Reason: "resolver: no match", Action: "Run gpumeter doctor on the node for details."},
		},
	}
	of := device.Of
	for i := range 8 {
		s.Devices = append(s.Devices, Device{
			Host: "h100-02", Vendor: "nvidia", Index: i, Model: "NVIDIA H100 80GB HBM3", UUID: fmt.Sprintf("GPU-a%d", i), Up: true, State: "ok", Simulated: true,
			Utilization: of(0), SM: of(0), Memory: of(33 * gib), MemoryTotal: of(80 * gib), Power: of(70), PowerLimit: of(700), Celsius: of(33), Cost: of(2.9), Lost: of(2.9), Held: true, Idle: of(3600),
			Owners: []Owner{{Kind: "statefulset", Name: "segmentation-dev", Label: "vision/segmentation-dev", Team: "vision", Share: 1, Utilization: of(0), Memory: of(33 * gib), Power: of(70), Cost: of(2.9)}},
		})
	}
	for i := range 8 {
		busy := 0.90 + 0.01*float64(i)
		d := Device{
			Host: "h200-01", Vendor: "nvidia", Index: i, Model: "NVIDIA H200", UUID: fmt.Sprintf("GPU-b%d", i), Up: true, State: "power cap", Simulated: true,
			Utilization: of(busy), SM: of(busy - 0.1), Memory: of(120 * gib), MemoryTotal: of(141 * gib), Power: of(690 - float64(i)), PowerLimit: of(700), Celsius: of(60 + float64(i)), Cost: of(3.6), Lost: of(3.6), Held: true, Idle: of(0),
			Owners: []Owner{{Kind: "job", Name: "mixtral-pretrain", Label: "research/mixtral-pretrain", Team: "research", Share: 1, Utilization: of(busy), Memory: of(120 * gib), Power: of(690), Cost: of(3.6)}},
		}
		switch i {
		case 3: // somebody else is on it
			d.Owners = append(d.Owners, Owner{Kind: "statefulset", Name: "mallory", Label: "notebooks/mallory", Team: "interns", Uninvited: true, Utilization: of(0.2), Memory: of(9 * gib), Cost: of(0)})
		case 5:
			d.Up, d.State, d.Severity = false, "DOWN", Critical
			d.Utilization, d.SM, d.Memory, d.Power, d.Celsius, d.Owners = device.Value{}, device.Value{}, device.Value{}, device.Value{}, device.Value{}, nil
			d.Held, d.Idle = false, device.Value{}
		case 6:
			d.Owners, d.Held, d.Idle = nil, false, device.Value{}
			d.Utilization, d.SM, d.State = of(0), of(0), "ok"
		case 7:
			d.State, d.Severity, d.More = "needs reset", Critical, []string{"driver 580.95.05, pci 0000:db:00.0, numa 1", "xid 94: 5 times"}
		}
		s.Devices = append(s.Devices, d)
	}
	s.Devices = append(s.Devices, Device{
		Host: "lab-01", Vendor: "tenstorrent", Index: 0, Model: "Tenstorrent Blackhole p150a", UUID: "tt-0", Up: true, State: "ok", Power: of(50), PowerLimit: of(150), Celsius: of(39), Held: true,
		Owners: []Owner{
			{Kind: "deployment", Name: "tagger", Label: "inference/tagger", Team: "product", Share: 0.5, Power: of(25)},
			{Kind: "deployment", Name: "ocr", Label: "inference/ocr", Team: "product", Share: 0.5, Power: of(25)},
		},
	})
	return s
}

// press returns the model after keys: names of keys, and "type:text" for text.
func press(t *testing.T, m Model, keys ...string) Model {
	t.Helper()
	codes := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "end": tea.KeyEnd, "home": tea.KeyHome, "pgdown": tea.KeyPgDown, "backspace": tea.KeyBackspace}
	for _, k := range keys {
		var list []tea.KeyPressMsg
		if text, ok := strings.CutPrefix(k, "type:"); ok {
			for _, r := range text {
				list = append(list, tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		} else if code, ok := codes[k]; ok {
			list = append(list, tea.KeyPressMsg{Code: code})
		} else {
			list = append(list, tea.KeyPressMsg{Code: []rune(k)[0], Text: k})
		}
		for _, key := range list {
			next, _ := m.Update(key)
			m = next.(Model)
		}
	}
	return m
}

// short stands for the short names of the vendors.
func short(model string) string {
	return strings.NewReplacer("NVIDIA ", "", " 80GB HBM3", "", "Tenstorrent Blackhole ", "").Replace(model)
}

func shown(s Snapshot, width, height int) Model {
	m, _ := New(Options{Plain: true, ShortModel: short}).Resized(width, height).Update(s)
	return m.(Model)
}

// Whatever is on the screen it has as many lines as the terminal, none of them wider: a
// longer one would wrap and push the rest away.
func TestFrames(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {160, 50}} {
		for name, keys := range map[string][]string{
			"devices":  nil,
			"details":  {"e", "enter"},
			"owners":   {"tab"},
			"findings": {"f"},
			"help":     {"?"},
			"filter":   {"/", "type:h200 !ok"},
			"cost":     {"c", "down", "down"},
			"last":     {"end"},
		} {
			t.Run(fmt.Sprintf("%s_%dx%d", name, size[0], size[1]), func(t *testing.T) {
				m := press(t, shown(sample(1), size[0], size[1]), keys...)
				got := m.Frame()
				lines := strings.Split(got, "\n")
				if len(lines) != size[1] {
					t.Errorf("%d lines on a screen of %d", len(lines), size[1])
				}
				for _, l := range lines {
					if w := lipgloss.Width(l); w > size[0] {
						t.Errorf("%d cells in a line of %d: %s", w, size[0], l)
					}
				}
				golden(t, strings.Join(lines, "\n")+"\n")
			})
		}
	}
}

func golden(t *testing.T, got string) {
	t.Helper()
	var b strings.Builder
	for l := range strings.Lines(got) {
		b.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	file := filepath.Join("testdata", strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestFrames/"), "/", "_")+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Errorf("%s was written: read it, and run again without -update", file)
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

// Text for a pipe has every device, and no escape sequence.
func TestText(t *testing.T) {
	s := sample(1)
	got := New(Options{Plain: true, ShortModel: short}).Text(s, 120)
	if strings.ContainsRune(got, 0x1b) {
		t.Error("there are escape sequences in what goes to a pipe")
	}
	for _, want := range []string{"segmentation-dev", "SIMULATED", "(not given)", "Drain and reset the device"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n < len(s.Devices) {
		t.Errorf("%d lines for %d devices", n, len(s.Devices))
	}
}

// A pod can be called anything, and a terminal obeys what it is sent.
func TestHostileNames(t *testing.T) {
	s := sample(1)
	s.Devices[0].Owners[0].Name = "x\x1b[2J\x1b]0;pwned\x07\r\nfake"
	s.Devices[0].Host = "h\x1b[31most"
	s.Findings[0].Reason = "r\x1b[5m\u202eeversed"
	for _, keys := range [][]string{nil, {"enter"}, {"tab"}, {"f"}} {
		frame := press(t, shown(s, 160, 50), keys...).Frame()
		if strings.ContainsAny(frame, "\x1b\x07\r\u202e") {
			t.Errorf("after %v a name reaches the terminal as it is", keys)
		}
		if n := strings.Count(frame, "\n"); n != 49 {
			t.Errorf("after %v a name makes %d lines of 50", keys, n+1)
		}
	}
}

// A screen of any size is filled and not overrun.
func TestSizes(t *testing.T) {
	for width := 1; width < 200; width += 17 {
		for height := 1; height < 60; height += 11 {
			for _, keys := range [][]string{nil, {"enter"}, {"tab"}, {"f"}, {"?"}, {"/", "type:x"}} {
				frame := press(t, shown(sample(1), width, height), keys...).Frame()
				if n := strings.Count(frame, "\n") + 1; n > height {
					t.Fatalf("%dx%d after %v: %d lines", width, height, keys, n)
				}
				if w := lipgloss.Width(frame); w > width {
					t.Fatalf("%dx%d after %v: %d cells", width, height, keys, w)
				}
			}
		}
	}
}

// The row that is selected stays the same device whatever the order and the next tick.
func TestSelectionStays(t *testing.T) {
	m := press(t, shown(sample(1), 160, 50), "down", "down", "down")
	before := m.selected
	for _, key := range []string{"u", "t", "r", "c", "d"} {
		m = press(t, m, key)
		next, _ := m.Update(sample(2))
		m = next.(Model)
		if d, _ := m.current(m.visible()); d.key() != before {
			t.Errorf("after %s %s is selected, not %s", key, d.key(), before)
		}
	}
}

// A pause shows what there was, and what came meanwhile when it ends.
func TestPause(t *testing.T) {
	m := press(t, shown(sample(1), 80, 24), "p")
	next, _ := m.Update(sample(5))
	m = next.(Model)
	if frame := m.Frame(); !strings.Contains(frame, "PAUSED") || !strings.Contains(frame, "12:00:02") {
		t.Errorf("the screen moves while it is paused:\n%s", frame)
	}
	if frame := press(t, m, "p").Frame(); strings.Contains(frame, "PAUSED") || !strings.Contains(frame, "12:00:10") {
		t.Errorf("after the pause the screen is not what came last:\n%s", frame)
	}
}

// A hub that does not answer leaves what it said last, and says so.
func TestProblem(t *testing.T) {
	next, _ := shown(sample(1), 100, 24).Update(Snapshot{Problem: "connection refused"})
	frame := next.(Model).Frame()
	if !strings.Contains(frame, "cannot read: connection refused") || !strings.Contains(frame, "segmentation-dev") {
		t.Errorf("a failed question is not said, or takes the devices away:\n%s", frame)
	}
	next, _ = next.Update(sample(2))
	if strings.Contains(next.(Model).Frame(), "cannot read") {
		t.Error("an answer does not end the problem")
	}
}

// Keys that end the program do, and only those.
func TestQuit(t *testing.T) {
	for key, quits := range map[string]bool{"q": true, "x": false, "p": false} {
		_, cmd := shown(sample(1), 80, 24).Update(tea.KeyPressMsg{Code: []rune(key)[0], Text: key})
		if (cmd != nil) != quits {
			t.Errorf("%s ends: %v", key, cmd != nil)
		}
	}
	_, cmd := press(t, shown(sample(1), 80, 24), "/").Update(tea.KeyPressMsg{Code: 'q', Text: "q"})
	if cmd != nil {
		t.Error("a q that is typed into the filter ends the program")
	}
	_, cmd = press(t, shown(sample(1), 80, 24), "/").Update(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl})
	if cmd == nil {
		t.Error("ctrl+c does not end the program while somebody types")
	}
}

// The order is that of the column, and absent values come last.
func TestSort(t *testing.T) {
	f := func(key, first, last string) {
		t.Helper()
		list := press(t, shown(sample(1), 160, 50), key).visible()
		if got := list[0].key(); got != first {
			t.Errorf("%s: the first is %s, want %s", key, got, first)
		}
		if got := list[len(list)-1].key(); got != last {
			t.Errorf("%s: the last is %s, want %s", key, got, last)
		}
	}
	f("u", "h200-01/GPU-b7", "lab-01/tt-0")
	f("t", "h200-01/GPU-b7", "h200-01/GPU-b5")
	f("c", "h200-01/GPU-b0", "lab-01/tt-0")
	f("e", "h200-01/GPU-b5", "lab-01/tt-0")
}

// Words of a filter all have to be there, and those with a ! must not.
func TestFilter(t *testing.T) {
	f := func(filter string, want int) {
		t.Helper()
		m := shown(sample(1), 160, 50)
		m.filter = filter
		if got := len(m.visible()); got != want {
			t.Errorf("%q finds %d devices, want %d", filter, got, want)
		}
	}
	f("", 17)
	f("vision", 8)
	f("IDLE", 8)
	f("free", 1)
	f("h200 !power", 3)
	f("interns", 1)
	f("!", 17)
	f("nothing like it", 0)
}

// What nobody reports is not a zero, and what it costs to be idle is.
func TestTotals(t *testing.T) {
	s := sample(1)
	want := totals{devices: 17, held: 15, idle: 8, down: 1, hosts: 3, watts: device.Of(8*70 + 7*690 - (0 + 1 + 2 + 3 + 4 + 6 + 7) + 50), cost: 8*2.9 + 8*3.6, lost: 8 * 2.9}
	got := s.totals()
	for _, x := range []*float64{&want.cost, &want.lost, &got.cost, &got.lost} {
		*x = math.Round(*x*1e6) / 1e6
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(totals{}, device.Value{})); d != "" {
		t.Error(d)
	}
}

// Catches 100 % utilization of a workload that uses a quarter of a device without an allocation, and
// 0 GiB or 0 W where nothing is known.
func TestWorkloadRow(t *testing.T) {
	of := device.Of
	owner := func(name string, share float64, busy, memory device.Value) Owner {
		return Owner{Kind: "job", Name: name, Label: name, Share: share, Uninvited: share == 0, Utilization: busy, Memory: memory}
	}
	s := Snapshot{Time: time.Unix(0, 0), Devices: []Device{
		{Host: "n", UUID: "a", Up: true, State: "ok", Held: true, Owners: []Owner{owner("thief", 0, of(0.26), of(9*gib)), owner("unknown", 1, device.Value{}, device.Value{})}},
		{Host: "n", UUID: "b", Index: 1, Up: true, State: "ok", Held: true, Owners: []Owner{owner("half", 0.5, of(0.4), device.Value{})}},
	}}
	m := shown(s, 120, 20)
	cells := map[string][]string{}
	for _, h := range m.shown.workloads() {
		for _, c := range m.workloadColumns() {
			cells[h.Label] = append(cells[h.Label], c.text(h))
		}
	}
	want := map[string][]string{ // GPUS, ACTIVE, UTIL, GIB, WATTS
		"thief":   {"0", "1", "26%", "9", "-"},
		"unknown": {"1", "-", "-", "-", "-"},
		"half":    {"0.5", "1", "80%", "-", "-"},
	}
	if diff := cmp.Diff(want, cells); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := m.top(); strings.Contains(strings.Join(got, " "), " W") {
		t.Errorf("unknown power is shown: %q", got)
	}
}

// A terminal that shows colours gets some, one without characters beyond ASCII none of
// those.
func TestStyles(t *testing.T) {
	m, _ := New(Options{}).Resized(80, 24).Update(sample(1))
	if !strings.Contains(m.(Model).Frame(), "\x1b[") {
		t.Error("nothing is painted")
	}
	m, _ = New(Options{Plain: true, ASCII: true}).Resized(80, 24).Update(sample(1))
	for _, r := range m.(Model).Frame() {
		if r > 126 {
			t.Fatalf("%q is not ASCII", r)
		}
	}
}

// BenchmarkFrame is of a fleet of 10,000 devices: a key must be answered at once.
func BenchmarkFrame(b *testing.B) {
	s := sample(1)
	small := s.Devices
	s.Devices = nil
	for i := range 10_000 {
		d := small[i%len(small)]
		d.Host, d.UUID = fmt.Sprintf("node-%d", i/8), fmt.Sprintf("GPU-%d", i)
		s.Devices = append(s.Devices, d)
	}
	next, _ := New(Options{}).Resized(160, 50).Update(s)
	m := next.(Model)
	m.by, m.filter = "UTIL", "research"
	for b.Loop() {
		_ = m.Frame()
	}
}

// Catches two workloads of the same name in different clusters shown as one.
func TestWorkloadsOfClusters(t *testing.T) {
	own := func(label, cluster string) Device {
		return Device{UUID: label + cluster, Owners: []Owner{{Kind: "job", Name: label, Label: label, Cluster: cluster, Share: 1}}}
	}
	s := Snapshot{Devices: []Device{own("train", "east"), own("train", "west"), own("train", "west"), own("eval", "west")}}
	var got []string
	for _, w := range s.workloads() {
		got = append(got, fmt.Sprint(w.Label, " ", w.devices))
	}
	if diff := cmp.Diff([]string{"train @west 2", "eval 1", "train @east 1"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
