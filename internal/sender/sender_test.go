package sender

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// machine is a fake /proc and the workloads of its processes and containers.
type machine struct {
	t          *testing.T
	dir        string
	processes  map[uint32]workload.Workload
	containers map[string]workload.Workload
}

func newMachine(t *testing.T) *machine {
	return &machine{t, t.TempDir(), map[uint32]workload.Workload{}, map[string]workload.Workload{}}
}

func (m *machine) Process(pid uint32) (workload.Workload, bool) {
	w, ok := m.processes[pid]
	return w, ok
}

func (m *machine) Container(id string) (workload.Workload, bool) {
	w, ok := m.containers[id]
	return w, ok
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// run starts a process whose IDs are inner, from the host's namespace on, in a container of a pod.
func (m *machine) run(id string, inner ...uint32) workload.Workload {
	m.t.Helper()
	pod, container, _ := strings.Cut(id, "/")
	w := workload.Workload{ID: "pod/" + id, Kind: "deployment", Name: pod, Attributes: map[string]string{
		"k8s.pod.uid": "uid-" + pod, "k8s.pod.name": pod, "k8s.namespace.name": "ns", "k8s.container.name": container,
	}}
	if pod == "job" {
		w = workload.Workload{ID: "slurm/7", Kind: "slurm_job", Name: "train", Attributes: map[string]string{"slurm.job.id": "7"}}
	}
	m.processes[inner[0]] = w
	m.containers["c-"+id] = w
	m.write(fmt.Sprintf("%d/status", inner[0]), "Name:\tpython\nNSpid:\t"+strings.ReplaceAll(strings.Trim(fmt.Sprint(inner), "[]"), " ", "\t")+"\n")
	m.write(fmt.Sprintf("%d/stat", inner[0]), fmt.Sprintf("%d (py) thon) S 1 1 1 0 -1 4194304 1 1 1 1 1 1 1 1 20 0 1 0 %d 1 1\n", inner[0], 100+inner[0]))
	return w
}

func tick(pids []uint32, holders ...workload.Workload) *node.Tick {
	r := node.Reading{Up: true, Sample: device.Sample{ID: device.ID{UUID: "GPU-0"}}}
	for _, pid := range pids {
		r.Processes = append(r.Processes, device.Process{PID: pid})
	}
	for _, w := range holders {
		r.Holders = append(r.Holders, node.Holder{Workload: w})
	}
	return &node.Tick{Host: "n1", Resource: map[string]string{"k8s.node.name": "node1"}, Readings: []node.Reading{r}}
}

// Catches a process whose pod was not known yet when it was seen first, and whose ID in the pod then meant nothing.
func TestPodIsKnownLater(t *testing.T) {
	m := newMachine(t)
	w := m.run("a/main", 101, 1)
	delete(m.processes, 101)
	f := New(m, m.dir, t.TempDir())
	f.See(tick([]uint32{101}))
	m.processes[101] = w
	f.See(tick([]uint32{101}, w))
	want := Sender{Workloads: []string{"pod/a/main"}, PID: 101}
	if diff := cmp.Diff(want, f.Find(Claims{PodUID: "uid-a", PID: 1}, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a process that left its device for a while and then counts as gone, so that another with the same ID in its
// namespace is taken for it.
func TestProcessReturns(t *testing.T) {
	m := newMachine(t)
	a := m.run("a/main", 101, 1)
	f := New(m, m.dir, t.TempDir())
	f.See(tick([]uint32{101}, a))
	f.See(tick(nil, a))
	m.run("a/main", 102, 1)
	f.See(tick([]uint32{102}, a))
	claims := Claims{PodUID: "uid-a", PID: 1}
	if got := f.Find(claims, nil); got.PID != 102 {
		t.Errorf("while the first is gone: %+v", got)
	}
	f.See(tick([]uint32{101, 102}, a))
	if got := f.Find(claims, nil); got.PID != 0 { // both are there: nobody can tell which
		t.Errorf("both: %+v", got)
	}
}

// Catches spans that get the devices of somebody else, and spans whose process could have been found.
func TestFind(t *testing.T) {
	m := newMachine(t)
	a, b, job := m.run("a/main", 101, 1), m.run("b/main", 102, 1), m.run("job/x", 103)
	m.run("web/main", 104, 1) // has no device
	side := m.run("a/side", 105, 9)
	f := New(m, m.dir, t.TempDir())
	f.See(tick([]uint32{101, 102, 103}, a, b, job))
	delete(m.containers, "c-b/main") // it is gone
	find := func(name string, c Claims, want Sender) {
		t.Helper()
		if diff := cmp.Diff(want, f.Find(c, nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	one := func(id string, pid uint32) Sender { return Sender{Workloads: []string{id}, PID: pid} }
	find("nothing", Claims{}, Sender{})
	find("a container", Claims{Container: "c-a/main"}, one("pod/a/main", 0))
	find("a process of a container", Claims{Container: "c-a/main", PID: 1}, one("pod/a/main", 101))
	find("another process of a container", Claims{Container: "c-a/main", PID: 7}, one("pod/a/main", 0))
	find("a container without a device", Claims{Container: "c-web/main", PID: 1}, one("pod/web/main", 0))
	find("an unknown container", Claims{Container: "x", PID: 1}, Sender{})
	find("a container of a pod that is gone", Claims{Container: "c-b/main", PodUID: "uid-b", PID: 1}, one("pod/b/main", 102))
	find("a pod", Claims{PodUID: "uid-b", Pod: "b", Namespace: "other"}, one("pod/b/main", 0))
	find("a pod by name", Claims{Pod: "b", Namespace: "ns", PID: 1}, one("pod/b/main", 102))
	find("a pod of another namespace", Claims{Pod: "b", Namespace: "other"}, Sender{})
	find("a container of a pod without a device", Claims{PodUID: "uid-a", ContainerName: "side"}, Sender{})
	find("a job", Claims{SlurmJob: "7", PID: 103}, one("slurm/7", 103))
	find("another job", Claims{SlurmJob: "77"}, Sender{})
	find("a process of nobody knows which namespace", Claims{PID: 1}, Sender{})
	find("a process of another host", Claims{PID: 103, Host: "n2"}, Sender{})
	find("a process of this host", Claims{PID: 103, Host: "n1"}, one("slurm/7", 103))
	find("a process of two containers with the host's network", Claims{PID: 1, Host: "node1"}, Sender{})
	find("a process ID of the host that is another's in its namespace", Claims{PID: 104, Host: "n1"}, Sender{})
	find("a process that does not exist", Claims{PID: 4711, Host: "n1"}, Sender{})
	f.See(tick([]uint32{101, 102, 103}, a, b, job, side))
	find("both containers of a pod", Claims{PodUID: "uid-a"}, Sender{Workloads: []string{"pod/a/main", "pod/a/side"}})
	f.See(tick([]uint32{101, 103}, a, b, job))
	find("a process that has ended", Claims{PodUID: "uid-b", PID: 1}, one("pod/b/main", 102))
	now := time.Now()
	f.now = func() time.Time { return now.Add(rememberAlong + time.Minute) }
	f.See(tick(nil))
	find("a pod that is long gone", Claims{PodUID: "uid-b"}, Sender{})
}

// The sender of a request over loopback is this test, whatever it says of its process ID, unless it forwards
// what another process has sent.
func TestPeer(t *testing.T) {
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skipf("no table of sockets: %v", err)
	}
	m := newMachine(t)
	self := uint32(os.Getpid())
	m.processes[self] = workload.Workload{ID: "process/test", Kind: "process", Name: "test"}
	inner := innerOf("/proc", self)
	f := New(m, "/proc", "/proc/self")
	f.See(tick([]uint32{self}, m.processes[self]))
	got := make(chan Sender, 1)
	claims := Claims{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got <- f.Find(claims, Peer(WithPeer(r.Context(), r.RemoteAddr)))
	}))
	defer server.Close()
	want := Sender{Workloads: []string{"process/test"}, PID: self}
	ask := func(name string, c Claims, want Sender) {
		t.Helper()
		claims = c
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if diff := cmp.Diff(want, <-got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	ask("by the connection", Claims{}, want)
	ask("by the connection and the process", Claims{PID: inner[len(inner)-1], Host: "a-container"}, want)
	ask("again", Claims{}, want)
	ask("a forwarder", Claims{PID: 4_000_000}, Sender{})
	if s := f.Find(Claims{}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4317}); s.Known() {
		t.Errorf("a sender elsewhere is %v", s)
	}
	for i := range 20 { // each is a new connection
		f.Find(Claims{}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1 + i})
	}
	if n := f.Skipped(); n != 0 {
		t.Errorf("of applications that start together %d were not found", n)
	}
	now := time.Now()
	f.now = func() time.Time { return now }
	for i := range 100 {
		f.Find(Claims{}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 100 + i})
	}
	if f.Skipped() < 60 {
		t.Errorf("connections are looked for without limit: %d of 100 were skipped", f.Skipped())
	}
}

func TestParseSockets(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:10DD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7001 1 0 100 0 0 10 0
   1: 0100007F:10DD 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 7002 1 0 20 4 30 10 -1
   2: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:10DD 01 00000000:00000000 00:00000000 00000000  1000        0 7003 1 0
   3: torn
`
	got := parseSockets(strings.NewReader(table))
	server, client := netip.MustParseAddrPort("127.0.0.1:4317"), netip.MustParseAddrPort("127.0.0.1:50000")
	want := []connection{{server, client, 7002}, {client, server, 7003}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(connection{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("   1: 0100007F:10DD 0100007F:C350 01 0:0 0:0 0 0 0 7002 1\n", "NSpid:\t7\t1\n", "7 (a) b) S 1")
	f.Fuzz(func(t *testing.T, table, status, stat string) {
		for _, c := range parseSockets(strings.NewReader(table)) {
			if !c.local.IsValid() || !c.remote.IsValid() {
				t.Errorf("an address was invented: %v", c)
			}
		}
		for _, pid := range parseInner(status) {
			if !strings.Contains(status, fmt.Sprint(pid)) && pid != 0 {
				t.Errorf("process %d was invented", pid)
			}
		}
		if start, ok := parseStart(stat); ok && start != 0 && !strings.Contains(stat, fmt.Sprint(start)) && !strings.Contains(stat, "+") && !strings.Contains(stat, "0") {
			t.Errorf("start %d was invented", start)
		}
	})
}
