package anomaly

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Each fault is found in two windows, or four if others are to blame, and named, with a share of the right size, and its end
// is reported.
func TestCauses(t *testing.T) {
	f := func(name string, change func(*machine), cause Cause, least float64, fact string) {
		t.Helper()
		windows := sure
		if name == "slow ranks" {
			windows = together
		}
		t.Run(name, func(t *testing.T) {
			m := newMachine(1)
			m.barrier = 2e-6
			d := NewDetector()
			if told := m.run(d, 20); len(told) > 0 {
				t.Fatalf("before anything happened: %s", told[0].Text())
			}
			well := *m
			change(m)
			told := m.run(d, windows+1)
			if len(told) != 1 || told[0].State != Open {
				t.Fatalf("got %d anomalies: %+v", len(told), told)
			}
			a := told[0]
			t.Log(a.Text())
			if a.Cause() != cause || a.Explanations[0].Share < least {
				t.Errorf("the largest cause is %s with %.2f, want %s with %.2f or more", a.Cause(), a.Explanations[0].Share, cause, least)
			}
			if !strings.Contains(a.Text(), fact) {
				t.Errorf("%q does not say %q", a.Text(), fact)
			}
			if !a.Since.Equal(noon.Add(20*window)) || !a.Time.Equal(noon.Add(time.Duration(20+windows)*window)) || a.PID != 12 || a.Workload != "team x" || a.Device != gpuA {
				t.Errorf("got %+v", a)
			}
			if got := d.Counts()[cause]; got != 1 {
				t.Errorf("%d are counted", got)
			}
			m.clock, m.capped, m.hot, m.neighbour, m.queued, m.storm, m.barrier, m.hung, m.behind = 1, 0, 0, 0, 0, 0, well.barrier, well.hung, nil
			told = m.run(d, 4)
			if len(told) != 1 || told[0].State != Ended || told[0].Cause() != cause {
				t.Fatalf("when it is over: %+v", told)
			}
			if len(d.Active()) != 0 {
				t.Error("it is still open")
			}
		})
	}
	f("CPU hog", func(m *machine) { m.queued = 0.4 }, HostDelay, 0.9, "launching threads waited 4.0 s more for a CPU")
	f("power cap", func(m *machine) { m.clock, m.capped, m.limit = 0.6, 1, 300 }, PowerCap, 0.8, "limit 700 -> 300 W")
	f("thermal", func(m *machine) { m.clock, m.hot = 0.6, 0.8 }, Throttling, 0.8, "MHz, 600 of 700 W, too hot")
	f("both", func(m *machine) { m.clock, m.hot, m.capped = 0.5, 0.2, 0.8 }, PowerCap, 0.6, "power cap")
	f("neighbour", func(m *machine) { m.neighbour = 0.5 }, Neighbour, 0.9, "a neighbor on the GPU (infer (pid 99, team y) uses 50 % of the device's time)")
	f("copy storm", func(m *machine) { m.storm = 10e9 }, Copy, 0.9, "GB/s, copies took")
	f("slow ranks", func(m *machine) { m.barrier = 100e-6 }, Communication, 0.9, "waits after collectives took")
	f("missing rank", func(m *machine) { m.hung, m.behind = m.at, []int{3} }, Communication, 0.9,
		"waits for ranks that do not arrive since 12:03:20; 20.0 s of 20.0 s lost: 100 % of the lost time is communication (rank 3 (pid 15) of 8 did not enter AllReduce 4711 for 20.0 s)")
}

// Without scheduler events the main thread's facts are used, and without per-process driver
// utilization the traced activity of both.
func TestCausesSecondBest(t *testing.T) {
	m := newMachine(1)
	m.noSched = true
	d := NewDetector()
	m.run(d, 20)
	m.queued = 0.4
	if told := m.run(d, 2); len(told) != 1 || told[0].Cause() != HostDelay || !strings.Contains(told[0].Text(), "the main thread waited") {
		t.Errorf("without the scheduler: %+v", told)
	}

	for name, hide := range map[string]func(*machine){
		"without shares": func(m *machine) { m.noProcUtil = true },
		"a share of 0":   func(m *machine) { m.zeroUtil = true },
		"not listed":     func(m *machine) { m.unlisted = true },
	} {
		m = newMachine(1)
		hide(m)
		m.other = &tracer.Process{PID: 99, Name: "infer", Since: noon, Devices: []tracer.Device{{UUID: gpuA}}}
		d = NewDetector()
		m.run(d, 20)
		m.neighbour = 0.5
		var told []Anomaly
		for range 2 {
			other := *m.other
			other.Devices = []tracer.Device{{UUID: gpuA, Busy: other.Devices[0].Busy + window}}
			m.other = &other
			told = append(told, d.Observe(m.next())...)
		}
		if len(told) != 1 || told[0].Cause() != Neighbour || told[0].Explanations[0].Share < 0.9 {
			t.Errorf("%s: %+v", name, told)
		}
	}
}

// A loop that slept little, and now sleeps between its launches, waits for its input. One that is
// used to it does not, nor one that has more work.
func TestLateInput(t *testing.T) {
	f := func(name string, change func(*machine), want Cause) {
		t.Helper()
		m := newMachine(1)
		d := NewDetector()
		m.run(d, 20)
		m.asleep = 0.4
		change(m)
		told := m.run(d, 10)
		if want == "" && len(told) != 0 || want != "" && (len(told) != 1 || told[0].Cause() != want) {
			t.Errorf("%s: got %+v", name, told)
		}
	}
	f("late input", func(*machine) {}, LateInput)
	f("late input, without waits", func(m *machine) { m.events = true }, LateInput)
	f("smaller requests", func(m *machine) { m.gpu /= 2 }, "")
	f("larger requests", func(m *machine) { m.gpu *= 1.5 }, "")
	f("nothing known of sleep", func(m *machine) { m.noSched = true }, "")

	// Threads that sleep while another one launches do not sleep by choice.
	m := newMachine(1)
	m.process.Host.Threads = 2
	d := NewDetector()
	var told []Anomaly
	for i := range 40 {
		if i == 20 {
			m.host += 60e-6
		}
		m.process.Host.Blocked += window
		told = append(told, d.Observe(m.next())...)
	}
	if len(told) != 1 || told[0].Cause() != Unexplained {
		t.Errorf("a slower program: %+v", told)
	}
}

// What goes on for five minutes without its input is used to that, and is reported once.
func TestLateInputOnce(t *testing.T) {
	m := newMachine(1)
	d := NewDetector()
	m.run(d, 20)
	m.asleep = 0.4
	told := m.run(d, 60)
	if len(told) != 2 || told[0].State != Open || told[1].State != Adopted {
		t.Fatalf("got %+v", told)
	}
	for _, asleep := range []float64{0, 0.4} {
		m.asleep = asleep
		if told := m.run(d, 60); len(told) != 0 {
			t.Errorf("asleep %v: %+v", asleep, told)
		}
	}
}

// Two concurrent causes share the blame by size.
func TestTwoCauses(t *testing.T) {
	m := newMachine(2)
	d := NewDetector()
	m.run(d, 20)
	m.queued, m.clock, m.capped = 0.2, 0.7, 1
	told := m.run(d, 2)
	if len(told) != 1 {
		t.Fatalf("got %+v", told)
	}
	a := told[0]
	t.Log(a.Text())
	shares := map[Cause]float64{}
	for _, e := range a.Explanations {
		shares[e.Cause] = math.Round(e.Share*10) / 10
	}
	if diff := cmp.Diff(map[Cause]float64{HostDelay: 0.5, PowerCap: 0.5}, shares); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The complete value and its text.
func TestAnomaly(t *testing.T) {
	m := newMachine(1)
	m.jitter = 0
	d := NewDetector()
	m.run(d, 20)
	m.clock, m.capped = 0.5, 1
	told := m.run(d, 2)
	want := []Anomaly{{
		State: Open, Time: noon.Add(22 * window), Since: noon.Add(20 * window), PID: 12, Process: "python3", Workload: "team x", Device: gpuA,
		Op: Step, Baseline: 100e-6, Observed: 180e-6, Lost: 8880 * 1e6, Over: 2 * window,
		Explanations: []Explanation{{Cause: PowerCap, Share: 1, Seconds: 8.88, Fact: "SM clock 1982 -> 988 MHz, 600 of 700 W"}},
		Changes:      []Change{{Op: "cuStreamSynchronize", Baseline: 720e-6, Observed: 1440e-6, Seconds: 4}},
	}}
	// The clock reading has a little noise.
	opts := cmp.Options{cmpopts.EquateApprox(0.01, 0), cmpopts.IgnoreFields(Explanation{}, "Fact"), cmp.Comparer(func(a, b Cause) bool { return a == b })}
	if diff := cmp.Diff(want, told, opts, cmpopts.IgnoreFields(Anomaly{}, "Lost")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	const text = "python3 (pid 12, team x) does 44 % fewer launches per second since 12:03:20; 8.9 s of 20.0 s lost: 100 % of the lost time is power cap (SM clock "
	if got := told[0].Text(); !strings.HasPrefix(got, text) {
		t.Errorf("%q does not begin with %q", got, text)
	}
}
