//go:build linux

package tpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A process that exits is gone at the next read of any tier, and its values with it.
func TestProcessEnds(t *testing.T) {
	s := serve(t, everything())
	root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	r := open(t, Options{Root: root})
	list := devices(t, r)
	if _, err := settled(t, list, busy); err != nil {
		t.Fatal(err)
	}
	var polling []*poller[report]
	for _, p := range r.services {
		polling = append(polling, p)
	}
	if err := os.RemoveAll(filepath.Join(root, "proc/42")); err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, list, device.Fast)
	if diff := cmp.Diff([]device.Sample{sample(0), sample(1), sample(2), sample(3)}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if len(r.services) != 0 {
		t.Errorf("%d connections remain", len(r.services))
	}
	for _, p := range polling {
		<-p.done // the service is no longer polled
	}
	// Another process reuses its PID.
	v6e().process(42, "python3", s.port(), v6eFiles...).write(t, root)
	r.look(t.Context(), 0)
	if len(r.services) != 1 {
		t.Fatalf("%d connections", len(r.services))
	}
	for _, fd := range []string{"10", "11", "12", "13"} {
		if err := os.Remove(filepath.Join(root, "proc/42/fd", fd)); err != nil {
			t.Fatal(err)
		}
		tree{"proc/42/fd/" + fd: "-> /dev/null"}.write(t, root)
	}
	if got, err := readAll(t, list, device.Fast); got[0].Processes != nil || err != nil {
		t.Errorf("%v, %v", got[0].Processes, err)
	}
}

// Two processes in one network namespace, each with two chips and its own port: values must
// not be mixed up.
func TestProcessesShareANetwork(t *testing.T) {
	answers := func(duty float64) map[string]bytesOf {
		return map[string]bytesOf{metricDuty: floats("", map[int64]float64{0: duty, 1: duty + 1}), metricUsed: ints("", map[int64]int64{0: 5, 1: 6})}
	}
	a, b := serve(t, answers(10)), serve(t, answers(20))
	m := v6e().process(7, "python3", a.port(), v6eFiles[:2]...).process(9, "python3", b.port(), v6eFiles[2:]...).process(11, "python3", 0, v6eFiles[2])
	for _, pid := range []int{7, 9, 11} {
		m[fmt.Sprintf("proc/%d/environ", pid)] = fmt.Sprintf("TPU_RUNTIME_METRICS_PORTS=%d,%d", b.port(), a.port())
		m[fmt.Sprintf("proc/%d/net/tcp", pid)] = tcpHeader + listenLine(a.port(), 50007) + listenLine(b.port(), 50009)
	}
	samples, err := settled(t, devices(t, open(t, Options{Root: m.write(t, t.TempDir())})), busy)
	var got []string
	for _, s := range samples {
		line := fmt.Sprint(s.Utilization.Compute)
		for _, p := range s.Processes {
			line += fmt.Sprint(" ", p.PID, p.MemoryUsed)
		}
		got = append(got, line)
	}
	want := []string{
		fmt.Sprint(of(0.1), " 7 ", of(5)), fmt.Sprint(of(0.11), " 7 ", of(6)),
		fmt.Sprint(of(0.2), " 9 ", of(5), " 11 ", device.Value{}), fmt.Sprint(of(0.21), " 9 ", of(6)),
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// Which process serves the metrics if it is ambiguous: a process that listens itself comes
// before one that does not; of those that do not, the first; none if nothing listens or
// several could.
func TestWhoListens(t *testing.T) {
	f := func(name string, change func(m tree), want ...string) {
		t.Helper()
		m := v6e().process(7, "a", 0, v6eFiles[0]).process(9, "b", 0, v6eFiles[1])
		change(m)
		root := m.write(t, t.TempDir())
		found, err := find(root, testMachine)
		if err != nil {
			t.Fatal(err)
		}
		chips := make([]*chip, len(found))
		for i, s := range found {
			chips[i] = &chip{sighting: s}
		}
		var got []string
		for _, h := range findHolders(root, chips).holders {
			s := strings.ReplaceAll(fmt.Sprint(h.pid, " ", h.problem), root, "ROOT")
			if h.service != nil {
				s = fmt.Sprint(h.pid, " ", h.service.key.port, " ", h.service.owned)
			}
			got = append(got, s)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	const nobody = "the process runs no metric service"
	tables := func(m tree, content string) {
		m["proc/7/net/tcp"], m["proc/9/net/tcp"] = content, content
	}
	f("nobody", func(tree) {}, "7 "+nobody, "9 "+nobody)
	f("somebody else", func(m tree) { tables(m, listenLine(8431, 5)) }, "7 8431 false", "9 "+nobody)
	f("the second", func(m tree) {
		tables(m, listenLine(8431, 5))
		m["proc/9/fd/77"] = "-> socket:[5]"
	}, "7 "+nobody, "9 8431 true")
	f("only with IPv6", func(m tree) {
		m["proc/9/net/tcp6"] = listenLine(8431, 5)
		m["proc/9/fd/77"] = "-> socket:[5]"
	}, "7 "+nobody, "9 8431 true")
	f("several ports, none its own", func(m tree) {
		tables(m, listenLine(1000, 5)+listenLine(1001, 6))
		m["proc/7/environ"], m["proc/9/environ"] = "TPU_RUNTIME_METRICS_PORTS=1000,1001", "TPU_RUNTIME_METRICS_PORTS=1000,1001"
		m["proc/9/fd/77"] = "-> socket:[6]"
	}, "7 "+nobody, "9 1001 true")
	f("no tables", func(m tree) {
		delete(m, "proc/7/net/tcp")
		delete(m, "proc/9/net/tcp")
		m["proc/9/ns/net"] = "-> /etc" // another namespace
	}, "7 8431 false", "9 8431 false")
	f("no network", func(m tree) {
		tables(m, listenLine(8431, 5))
		delete(m, "proc/7/ns/net")
	}, "7 cannot stat its network namespace: stat ROOT/proc/7/ns/net: no such file or directory", "9 8431 false")
}
