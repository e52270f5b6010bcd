package anomaly

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// Goals: at most one false alarm a week per process, and 19 in 20 faults found within two minutes.
const (
	perWeek = 1
	recall  = 0.95
	soon    = 2 * time.Minute
)

// Shapes into which faults are injected: those in which a loss can be told from a change of the
// work. Late input needs a loop that repeats the same work.
var (
	loops = []string{
		"steady training", "training, warm-up", "training, gradient accumulation", "training, pauses for checkpoints",
		"training, evaluation with nearly the same kernels", "training, data-parallel",
	}
	parallel  = []string{"training, data-parallel"}
	repeating = append([]string{"training, lengths by shard", "training, packed documents", "pipeline with several streams", "LLM decoding with graphs"}, loops...)
)

// injected are the faults by cause. Each costs a quarter of the time or more, except that of a
// lower clock for work that waits for memory.
var injected = []struct {
	cause  Cause
	shapes []string
	begin  func(w *world) fault
}{
	{PowerCap, repeating, func(w *world) fault { return fault{clock: w.between(0.5, 0.7)} }},
	{Throttling, repeating, func(w *world) fault { return fault{clock: w.between(0.5, 0.7), heat: true} }},
	{Neighbour, repeating, func(w *world) fault { return fault{neighbour: w.between(0.3, 0.6)} }},
	{HostDelay, repeating, func(w *world) fault { return fault{queued: w.between(0.25, 0.6), patchy: 0.5} }},
	{Copy, repeating, func(w *world) fault {
		return fault{copies: w.between(0.25, 0.6), storm: w.rand.IntN(2) == 0, patchy: 0.3}
	}},
	{LateInput, loops, func(w *world) fault {
		return fault{late: w.between(0.25, 0.6), patchy: w.between(0.1, 1), nth: 1 + w.rand.IntN(8)}
	}},
	{Communication, parallel, func(w *world) fault { return fault{ranks: w.between(0.25, 0.6), patchy: 0.5} }},
}

func shapeOf(name string) shape {
	return shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == name })]
}

// alarms returns the anomalies that open in a shape without a fault.
func alarms(s shape, seed uint64, length float64, hide func(*Window)) []Anomaly {
	var opened []Anomaly
	w := newWorld(seed, s.begin)
	w.hide = hide
	for _, a := range w.run(NewDetector(), length) {
		if a.State == Open {
			opened = append(opened, a)
		}
	}
	return opened
}

// found reports whether a fault that lasts for five minutes is reported soon, with its cause, and
// what was reported instead.
func found(s shape, seed uint64, cause Cause, begin func(*world) fault) (bool, string) {
	w, d := newWorld(seed, s.begin), NewDetector()
	w.fault = begin(w)
	w.fault.from = w.between(1800, 3600)
	w.fault.to = w.fault.from + 300
	told := ""
	for _, a := range w.run(d, w.fault.to) {
		after := a.Time.Sub(noon.Add(dur(w.fault.from)))
		if a.State != Open || after < 0 {
			continue
		}
		if a.Cause() == cause && after <= soon {
			return true, ""
		}
		told += fmt.Sprintf("; %.0f s after its begin: %s", after.Seconds(), a.Text())
	}
	return false, told
}

// each runs f for all numbers below n, on all CPUs.
func each(n int, f func(int)) {
	var all sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

// TestTableAlarms counts false alarms by shape: none may be reported more than once a week. It
// logs the table of docs/tracing.md. In its short form an hour of each shape must be quiet.
func TestTableAlarms(t *testing.T) {
	seeds, length := 10, hours(10)
	if testing.Short() {
		seeds, length = 1, hours(1)
	}
	opened := make([][]Anomaly, len(shapes)*seeds)
	each(len(opened), func(i int) {
		s := shapes[i/seeds]
		if processes, length := s.size(seeds, length); i%seeds < processes {
			opened[i] = alarms(s, uint64(i%seeds), length, nil)
		}
	})
	var table strings.Builder
	for k, s := range shapes {
		causes, n := map[Cause]int{}, 0
		for seed := range seeds {
			for i, a := range opened[k*seeds+seed] {
				causes[a.Cause()]++
				if n++; i == 0 {
					t.Logf("%s, seed %d: %s", s.name, seed, a.Text())
				}
			}
		}
		processes, length := s.size(seeds, length)
		days := float64(processes) * length / hours(24)
		fmt.Fprintf(&table, "| %s | %.1f | %.0f %% |\n", s.name, float64(n)/days, 100*ratio(float64(causes[Unexplained]), float64(n)))
		most := perWeek * days / 7
		if s.week {
			most = max(most, float64(processes))
		}
		if float64(n) > most {
			t.Errorf("%s: %d false alarms in %.1f days: %v", s.name, n, days, causes)
		}
	}
	t.Logf("| shape | false alarms a day | of them unexplained |\n|---|---|---|\n%s", table.String())
}

// hidden are facts that some machines do not have.
var hidden = []struct {
	name string
	hide func(*Window)
}{
	{"the driver's time per process", func(w *Window) {
		w.Devices[0].Utilization, w.Devices[0].Processes[0].Utilization = optional.Float{}, optional.Float{}
	}},
	{"scheduler events", func(w *Window) { w.Snapshot.Processes[0].Host.Known = false }},
	{"/proc", func(w *Window) { w.Hosts = nil }},
	{"the driver", func(w *Window) { w.Devices = nil }},
}

// TestTableFewerFacts counts false alarms where facts are missing: there may not be any, except
// those in the limits of docs/anomalies.md.
func TestTableFewerFacts(t *testing.T) {
	if testing.Short() {
		t.Skip("the long form of TestTableAlarms")
	}
	length := hours(4)
	opened := make([][]Anomaly, len(shapes)*len(hidden))
	each(len(opened), func(i int) {
		opened[i] = alarms(shapes[i/len(hidden)], 1, length, hidden[i%len(hidden)].hide)
	})
	for i, list := range opened {
		for _, a := range list {
			s, without := shapes[i/len(hidden)], hidden[i%len(hidden)].name
			known := s.week && a.Cause() == LateInput && len(list) == 1 || strings.Contains(s.name, "data-parallel, ") && a.Cause() == Communication
			if t.Logf("%s without %s: %s", s.name, without, a.Text()); !known {
				t.Errorf("%s without %s: %s", s.name, without, a.Cause())
			}
		}
	}
}

// TestTableRecall counts how many faults are found soon, by cause. It logs the table of
// docs/tracing.md.
func TestTableRecall(t *testing.T) {
	tries := 20
	if testing.Short() {
		tries = 1
	}
	var table strings.Builder
	for _, in := range injected {
		ok, told := make([]bool, len(in.shapes)*tries), make([]string, len(in.shapes)*tries)
		each(len(ok), func(i int) {
			ok[i], told[i] = found(shapeOf(in.shapes[i/tries]), uint64(100+i%tries), in.cause, in.begin)
		})
		all := 0
		lowest, where := tries+1, ""
		for k, name := range in.shapes {
			n := 0
			for i := range tries {
				if ok[k*tries+i] {
					n++
				} else {
					t.Logf("%s in %s, seed %d: not found%s", in.cause, name, i, told[k*tries+i])
				}
			}
			if all += n; n < lowest {
				lowest, where = n, name
			}
		}
		got := float64(all) / float64(len(ok))
		fmt.Fprintf(&table, "| `%s` | %d | %.1f %% | %s: %d of %d |\n", in.cause, len(ok), 100*got, where, lowest, tries)
		if got < recall {
			t.Errorf("%s: %d of %d are found within %v", in.cause, all, len(ok), soon)
		}
	}
	t.Logf("| cause | faults | found within two minutes | least, by shape |\n|---|---|---|---|\n%s", table.String())
}
