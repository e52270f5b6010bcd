package anomaly

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// slowed is a machine whose host takes longer per launch, for a reason that only change
// reveals, window by window.
func slowed(t *testing.T, prepare, change func(*machine)) Anomaly {
	t.Helper()
	m := newMachine(9)
	if prepare != nil {
		prepare(m)
	}
	d := NewDetector()
	m.run(d, 20)
	m.host += 60e-6
	var told []Anomaly
	for range patient {
		change(m)
		told = append(told, d.Observe(m.next())...)
	}
	if len(told) != 1 {
		t.Fatalf("got %d: %+v", len(told), told)
	}
	return told[0]
}

// Each host fact is used, and facts that count the same seconds are used once.
func TestHostDelay(t *testing.T) {
	f := func(name string, prepare, change func(*machine), cause Cause, share float64, fact string) {
		t.Helper()
		a := slowed(t, prepare, change)
		got := 0.0
		for _, e := range a.Explanations {
			if e.Cause == cause {
				got = e.Share
			}
		}
		if got < share-0.05 || got > share+0.05 || !strings.Contains(a.Text(), fact) {
			t.Errorf("%s: %s has %.2f, want %.2f and %q: %s", name, cause, got, share, fact, a.Text())
		}
	}
	// 3.7 s of 10 s are lost.
	unknown := func(m *machine) { m.noSched, m.noMain = true, true }
	// The kernel sums throttled time over CPUs, and over threads that do not launch.
	quota := func(m *machine) { m.facts.Throttled = more(m.facts.Throttled, 3.7) }
	f("a CPU limit that launching threads never met", nil, quota, HostDelay, 0, "unexplained")
	f("a CPU limit that the main thread met", func(m *machine) { m.noSched = true }, func(m *machine) {
		m.facts.Throttled = more(m.facts.Throttled, 8*1.9)
		m.facts.RunQueue = more(m.facts.RunQueue, 1.9)
	}, HostDelay, 1, "9 s more for a CPU, CPU throttling of its cgroup took 15.2 s more, summed over CPUs")
	f("the same seconds again, on eight CPUs", nil, func(m *machine) {
		m.facts.Throttled = more(m.facts.Throttled, 8*1.9)
		m.process.Host.RunQueue += dur(1.9)
	}, HostDelay, 0.5, "launching threads waited 1.9 s more for a CPU, CPU throttling of its cgroup took 15.2 s more, summed over CPUs")
	f("a CPU limit by pressure", unknown, func(m *machine) {
		m.facts.Throttled = more(m.facts.Throttled, 8*1.9)
		m.facts.CPUPressure = more(m.facts.CPUPressure, 1.9)
	}, HostDelay, 1, "tasks of its cgroup waited 1.9 s more for a CPU")
	nothing := func(m *machine) {
		unknown(m)
		m.facts.PressureOf, m.facts.ThrottledPeriods = "machine", optional.Of(0)
	}
	f("a CPU limit by its periods, of 0.1 s", nothing, func(m *machine) {
		m.facts.Throttled = more(m.facts.Throttled, 8*1.9)
		m.facts.ThrottledPeriods = more(m.facts.ThrottledPeriods, 19)
	}, HostDelay, 0.5, "CPU throttling of its cgroup took 15.2 s more")
	f("pressure instead of the scheduler", unknown, func(m *machine) {
		m.facts.CPUPressure = more(m.facts.CPUPressure, 1.9)
	}, HostDelay, 1, "100 % of the lost time is host delay (tasks of its cgroup waited 1.9 s more")
	f("disks", func(m *machine) { m.facts.BlockIO = optional.Of(0) }, func(m *machine) {
		m.facts.BlockIO, m.facts.MajorFaults = more(m.facts.BlockIO, 1.9), more(m.facts.MajorFaults, 500)
		m.facts.IOPressure = more(m.facts.IOPressure, 1.9) // the same again
	}, HostDelay, 0.5, "the main thread waited 1.9 s more for block I/O, 500 more major page faults")
	f("disks by pressure", nil, func(m *machine) { m.facts.IOPressure = more(m.facts.IOPressure, 1.9) }, HostDelay, 0.5, "tasks of its cgroup waited 1.9 s more for I/O")
	f("pressure beside the scheduler, which knows better", nil, func(m *machine) { m.facts.CPUPressure = more(m.facts.CPUPressure, 1.9) }, HostDelay, 0, "unexplained")
	f("memory", nil, func(m *machine) { m.facts.MemoryPressure = more(m.facts.MemoryPressure, 1.9) }, HostDelay, 0.5, "for memory")
	machineWide := func(m *machine) { m.facts.PressureOf = "machine" }
	f("pressure of the machine may be anybody's", machineWide, func(m *machine) { m.facts.MemoryPressure = more(m.facts.MemoryPressure, 5) }, HostDelay, 0, "unexplained")
	f("another process with the pid", nil, func(m *machine) { m.facts.Start++; quota(m) }, HostDelay, 0, "unexplained")
	f("a clock that is lower without a reason", nil, func(m *machine) { m.clock = 0.9 }, PowerCap, 0, "unexplained")
	f("faults alone take no known time", nil, func(m *machine) { m.faults = 1000 }, HostDelay, 0, "unexplained")
}

// A neighbor that copies keeps the links busy although its kernels take no time.
func TestNeighbourCopies(t *testing.T) {
	a := slowed(t, func(m *machine) {
		m.other = &tracer.Process{PID: 99, Name: "infer", Since: noon, Ops: []tracer.OpStat{{Op: "cuMemcpyHtoD", Class: tracer.Copy, Kind: "htod"}}}
	}, func(m *machine) {
		other := *m.other
		other.Ops = append([]tracer.OpStat{}, other.Ops...)
		count(&other.Ops[0], 1000, 8, 2e11)
		m.other = &other
	})
	if a.Cause() != Neighbour || !strings.Contains(a.Text(), "infer (pid 99, team y) uses 0 % of the device's time and copies 20.0 GB/s") {
		t.Errorf("got %s", a.Text())
	}
}

// Of ranks that wait for each other, the one that does not wait is named.
func TestAwaited(t *testing.T) {
	d := NewDetector()
	m := newMachine(10)
	m.barrier = 5e-6
	slowest := newMachine(11)
	slowest.process.PID = 15
	group := tracer.CommGroup{ID: "c", Size: 2, Ranks: []tracer.RankSeen{{Rank: 0, PID: 12}, {Rank: 1, PID: 15}}}
	var told []Anomaly
	for i := range 40 {
		switch i {
		case 20:
			m.barrier = 100e-6
			slowest.gpu += 95e-6
		case 24: // all is well
			m.barrier = 5e-6
			slowest.gpu -= 95e-6
		case 30: // both wait for another machine
			m.barrier, slowest.barrier = 100e-6, 95e-6
		}
		w := m.next()
		w.Snapshot.Processes = append(w.Snapshot.Processes, slowest.next().Snapshot.Processes...)
		w.Snapshot.Groups = []tracer.CommGroup{group}
		told = append(told, d.Observe(w)...)
	}
	var got []string
	for _, a := range told {
		got = append(got, fmt.Sprintf("%d %s %s %v", a.PID, a.State, a.Cause(), strings.Contains(a.Text(), "rank 1 (pid 15) waits least")))
	}
	want := []string{"12 open communication true", "12 ended communication true", "12 open communication false", "15 open communication false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A slower GPU makes waits after collectives longer, which is not a separate cause.
func TestBarrierOfOwnWork(t *testing.T) {
	m := newMachine(13)
	m.barrier = 1e-6
	d := NewDetector()
	m.run(d, 20)
	m.clock, m.capped = 0.6, 1
	var told []Anomaly
	for range 2 {
		m.process.Comms[0].BarrierWait.Sum += 4
		told = append(told, d.Observe(m.next())...)
	}
	if len(told) != 1 || told[0].Cause() != PowerCap || told[0].Explanations[0].Share < 0.95 {
		t.Errorf("got %+v", told)
	}
}

// If CUDA did not report the UUID, the driver's only device of the process is used.
func TestFind(t *testing.T) {
	w := Window{Devices: []DeviceFacts{
		{UUID: "a", Processes: []DeviceProcess{{PID: 1}, {PID: 2}}}, {UUID: "b", Processes: []DeviceProcess{{PID: 2}}},
	}}
	f := func(pid uint32, uuid string, devices int, want string) {
		t.Helper()
		got := ""
		if d := find(&w, pid, &tracer.Device{UUID: uuid}, devices); d != nil {
			got = d.UUID
		}
		if got != want {
			t.Errorf("pid %d on %q is on %q, want %q", pid, uuid, got, want)
		}
	}
	f(1, "b", 1, "b") // it has not launched there yet
	f(1, "", 1, "a")
	f(1, "", 2, "") // which of the two
	f(2, "", 1, "")
	f(3, "", 1, "")
	f(1, "c", 1, "")
}

// Evaluation is not compared with training, and a slow phase is seen despite windows of the
// other phase in between.
func TestPhases(t *testing.T) {
	m := newMachine(12)
	d := NewDetector()
	train, evaluate := m.mix, map[string]float64{"gemm": 0.2, "argmax": 0.8}
	var told []Anomaly
	for i := range 100 {
		m.mix, m.gpu = train, 80e-6
		if i%10 >= 6 {
			m.mix, m.gpu = evaluate, 300e-6
		}
		m.queued = 0
		if i >= 60 && i%10 < 6 {
			m.queued = 0.4
		}
		told = append(told, d.Observe(m.next())...)
	}
	if len(told) != 1 || told[0].State != Open || told[0].Cause() != HostDelay {
		t.Fatalf("got %+v", told)
	}
	if !told[0].Since.Equal(noon.Add(60 * window)) {
		t.Errorf("it began at %s", told[0].Since)
	}
}

// Names in JSON are a public interface.
func TestJSON(t *testing.T) {
	a := Anomaly{
		State: Open, Time: noon.Add(window), Since: noon, PID: 12, Process: "python3", Op: Step, Baseline: 1, Observed: 2, Lost: 5e9, Over: 1e10,
		Explanations: []Explanation{{Cause: PowerCap, Share: 0.5, Seconds: 2.5, Fact: "f"}}, Unexplained: 0.5,
	}
	got, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"state":"open","time":"2026-11-15T12:00:10Z","since":"2026-11-15T12:00:00Z","pid":12,"process":"python3","op":"step","baseline":1,"observed":2,"lost":5000000000,"over":10000000000,` +
		`"explanations":[{"cause":"power_cap","share":0.5,"seconds":2.5,"fact":"f"}],"unexplained":0.5}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var back Anomaly
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, back); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
