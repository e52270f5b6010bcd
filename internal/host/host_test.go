package host

import (
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/optional"
)

var near = cmpopts.EquateApprox(0, 1e-9)

// tree writes files below a new folder and returns a Reader of it.
func tree(t *testing.T, files map[string]string) Reader {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Reader{Proc: filepath.Join(dir, "proc"), Cgroup: filepath.Join(dir, "cgroup")}
}

const (
	statA = "cpu  1000 50 300 8000 100 10 20 5 3 0\ncpu0 1000 50 300 8000 100 10 20 5 3 0\nintr 12 0 1\n"
	statB = "cpu  1400 50 500 8350 90 20 30 5 3 0\ncpu0 1 2 3 4\n"
)

// A mode that is counted twice or left out, and iowait that goes back.
func TestCPU(t *testing.T) {
	a, err := tree(t, map[string]string{"proc/stat": statA}).CPU()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(CPU{User: 10, Nice: 0.5, System: 3, Idle: 80, IOWait: 1, Interrupt: 0.3, Steal: 0.05}, a, near); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	b, err := ParseStat([]byte(statB))
	if err != nil {
		t.Fatal(err)
	}
	want := []Share{
		{"user", 400. / 970},
		{"nice", 0},
		{"system", 200. / 970},
		{"interrupt", 20. / 970},
		{"steal", 0},
		{"iowait", 0},
		{"idle", 350. / 970},
	}
	if diff := cmp.Diff(want, b.Utilization(a), near); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := a.Utilization(a); got != nil {
		t.Errorf("without time there is %v", got)
	}
	if got := a.Utilization(b); got == nil { // only iowait rose
		t.Error("counters that go backwards give nothing at all")
	}
}

func TestCPUTorn(t *testing.T) {
	f := func(file, want string) {
		t.Helper()
		if _, err := ParseStat([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q", file, err, want)
		}
	}
	f("", "first line")
	f("cpu0 1 2 3 4\n", "first line")
	f("cpu 1 2 3\n", "first line")
	f("cpu 1 2 x 4 5\n", `"x" is no whole number`)
	f("cpu 1 -2 3 4 5\n", `"-2" is no whole number`)
	if got, err := ParseStat([]byte("cpu 100 0 0 100")); err != nil || got != (CPU{User: 1, Idle: 1}) {
		t.Errorf("an old kernel gives %v, %v", got, err)
	}
	r := Reader{Proc: t.TempDir()}
	if _, err := r.CPU(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file gives %v", err)
	}
	if _, err := r.Memory(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file gives %v", err)
	}
}

// Used memory that counts caches, and states that are more than all of it.
func TestMemory(t *testing.T) {
	m, err := tree(t, map[string]string{"proc/meminfo": "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  700 kB\nHugePages_Total:  0\n"}).Memory()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Memory{Total: 1000 << 10, Available: 700 << 10, Free: 100 << 10}, m); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]Share{{"used", 0.3}, {"free", 0.1}, {"cached", 0.6}}, m.Utilization(), near); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	reserved := Memory{Total: 1000, Available: 100, Free: 150}
	if diff := cmp.Diff([]Share{{"used", 0.9}, {"free", 0.1}, {"cached", 0}}, reserved.Utilization(), near); diff != "" {
		t.Errorf("less available than free (-want +got):\n%s", diff)
	}
	f := func(file, want string) {
		t.Helper()
		if _, err := ParseMeminfo([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q", file, err, want)
		}
	}
	f("", "it lacks")
	f("MemTotal: 0 kB\nMemFree: 0 kB\nMemAvailable: 0 kB\n", "it lacks")
	f("MemTotal: 1000\n", "MemTotal is no number of kB")
	f("MemTotal: x kB\n", `MemTotal: "x"`)
}

// processStat is of a process whose name was chosen to break parsers.
const processStat = "77 (a) R (b 1 2) S 1 77 77 0 -1 4194560 1234 0 56 0 250 150 0 0 20 0 9 0 4242 1000000 500 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 700 0 0 0 0 0\n"

const snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm MaxConn OutSegs RetransSegs\nTcp: 1 -1 3410788 2549\nUdp: x\nUdp: 1\n"

func process(extra map[string]string) map[string]string {
	files := map[string]string{
		"proc/77/stat":                   processStat,
		"proc/77/io":                     "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n",
		"proc/77/schedstat":              "727731000 1500000000 5\n",
		"proc/77/net/snmp":               snmp,
		"proc/sys/kernel/task_delayacct": "1\n",
		"proc/pressure/cpu":              "some avg10=4.76 avg60=2.26 avg300=2.99 total=9000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/pressure/io":               "some avg10=0.00 avg60=0.00 avg300=0.00 total=8000000\nfull total=1\n",
	}
	maps.Copy(files, extra)
	return files
}

// Version 2: the pod above the container is the one that is throttled, and pressure is of
// the container.
func TestProcessUnified(t *testing.T) {
	r := tree(t, process(map[string]string{
		"proc/77/cgroup":                     "0::/pod/container\n",
		"cgroup/pod/cpu.stat":                "usage_usec 5\nnr_periods 100\nnr_throttled 40\nthrottled_usec 2500000\n",
		"cgroup/pod/container/cpu.stat":      "usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
		"cgroup/pod/container/cpu.pressure":  "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n",
		"cgroup/pod/container/io.pressure":   "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n",
		"cgroup/cpu.stat":                    "usage_usec 5\n",
		"cgroup/pod/container/cgroup.events": "populated 1\n",
	}))
	got, err := r.Process(77)
	if err != nil {
		t.Fatal(err)
	}
	want := Facts{
		Start: 4242, CPU: optional.Of(4), MinorFaults: optional.Of(1234), MajorFaults: optional.Of(56), BlockIO: optional.Of(7), RunQueue: optional.Of(1.5),
		ReadBytes: optional.Of(4096), WrittenBytes: optional.Of(8192), SentSegments: optional.Of(3410788), Retransmits: optional.Of(2549),
		Throttled: optional.Of(2.5), ThrottledPeriods: optional.Of(40), CPUPressure: optional.Of(3), IOPressure: optional.Of(2), PressureOf: "cgroup",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Version 1 beside version 2: throttling is of the one, pressure of the machine, because
// the process is in the root of the other.
func TestProcessHybrid(t *testing.T) {
	r := tree(t, process(map[string]string{
		"proc/77/cgroup":          "3:cpuset:/\n2:cpu,cpuacct:/job\n1:memory:/x\n0::/\n",
		"cgroup/cpu/job/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000\n",
		"cgroup/cpu/cpu.stat":     "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
		"cgroup/unified/cpu.stat": "usage_usec 5\n",
		"proc/pressure/memory":    "some avg10=0.00 total=0\n",
	}))
	got, err := r.Process(77)
	if err != nil {
		t.Fatal(err)
	}
	want := Facts{
		Start: 4242, CPU: optional.Of(4), MinorFaults: optional.Of(1234), MajorFaults: optional.Of(56), BlockIO: optional.Of(7), RunQueue: optional.Of(1.5),
		ReadBytes: optional.Of(4096), WrittenBytes: optional.Of(8192), SentSegments: optional.Of(3410788), Retransmits: optional.Of(2549),
		Throttled: optional.Of(1.5), ThrottledPeriods: optional.Of(4), CPUPressure: optional.Of(9), IOPressure: optional.Of(8), MemoryPressure: optional.Of(0), PressureOf: "machine",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What is missing is absent, not 0: another user's io, a kernel without schedstat, delay
// accounting that is off, no pressure.
func TestProcessAbsent(t *testing.T) {
	r := tree(t, map[string]string{
		"proc/77/stat": processStat, "proc/77/schedstat": "0 0 0\n", "proc/sys/kernel/task_delayacct": "0\n", "proc/77/cgroup": "0::/../../other\n",
	})
	got, err := r.Process(77)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Facts{Start: 4242, CPU: optional.Of(4), MinorFaults: optional.Of(1234), MajorFaults: optional.Of(56)}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := r.Process(78); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that is not there gives %v", err)
	}
}

// One torn file costs its own facts and is named.
func TestProcessTorn(t *testing.T) {
	r := tree(t, process(map[string]string{"proc/77/schedstat": "1 2", "proc/77/net/snmp": "Tcp: A B\nTcp: 1\n", "proc/pressure/io": "nothing"}))
	got, err := r.Process(77)
	for _, part := range []string{"77/schedstat: it has fewer than 3", "77/net/snmp: TCP has 2 names and 1 values"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v, want %q in it", err, part)
		}
	}
	if got.ReadBytes != optional.Of(4096) || got.RunQueue.OK() || got.Retransmits.OK() {
		t.Errorf("got %+v", got)
	}
}

// This machine is one, too.
func TestProcessReal(t *testing.T) {
	r := Reader{Proc: "/proc", Cgroup: "/sys/fs/cgroup"}
	f, err := r.Process(uint32(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if f.Start == 0 || f.MinorFaults.Default(0) == 0 {
		t.Errorf("got %+v", f)
	}
	if _, err := r.CPU(); err != nil {
		t.Error(err)
	}
	if _, err := r.Memory(); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", statA, statB, processStat, snmp, "MemTotal: 1 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n", "read_bytes: 1\n", "1 2 3\n",
		"nr_throttled 1\nthrottled_usec 2\n", "some avg10=0.00 total=5\n", "0::/a/b\n2:cpu,cpuacct:/x\n", "cpu 18446744073709551615 1 1 1\n", ")", "Tcp:\nTcp:\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		if c, err := ParseStat(file); err == nil {
			sum := 0.0
			for _, s := range c.Utilization(CPU{}) {
				sum += s.Ratio
			}
			if sum != 0 && math.Abs(sum-1) > 1e-6 {
				t.Errorf("the modes are %v together", sum)
			}
		}
		if m, err := ParseMeminfo(file); err == nil {
			for _, s := range m.Utilization() {
				if s.Ratio < 0 || s.Ratio > 1 {
					t.Errorf("%s is %v", s.Name, s.Ratio)
				}
			}
		}
		for _, g := range []string{ParseGroups(file).Unified, ParseGroups(file).CPU} {
			if g != "" && (!strings.HasPrefix(g, "/") || strings.Contains(g, "/../")) {
				t.Errorf("group %q leads out", g)
			}
		}
		_, _ = ParseProcessStat(file)
		_, _, _ = ParseIO(file)
		_, _ = ParseSchedstat(file)
		_, _, _ = ParseSNMP(file)
		_, _, _ = ParseCPUStat(file)
		_, _ = ParsePressure(file)
	})
}
