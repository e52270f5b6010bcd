package discover

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches an engine whose server is the parent of the process on the device, as vLLM's is: one that is not
// found, or is found without its device, owner, age or page.
func TestFind(t *testing.T) {
	w := newWorld(t,
		run{pid: 100, parent: 1, session: 100, start: 5000, open: []uint64{11}},
		run{pid: 101, parent: 100, session: 100, start: 5100})
	s := w.serve(11, vllm())
	f := w.finder()
	if got := w.round(f, tick(0)); got != nil {
		t.Fatalf("without a process on a device there is %v", show(got))
	}
	got := w.round(f, tick(30, 101))
	want := []shown{{ID: "process/python3:" + port(s), Path: "/metrics", Port: port(s), Devices: []string{"GPU-0"}, Started: booted.Add(50 * time.Second).Format(time.RFC3339)}}
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if want := []netip.AddrPort{s.Listener.Addr().(*net.TCPAddr).AddrPort()}; !slices.Equal(want, got[0].Addresses) {
		t.Errorf("it is at %v, want %v", got[0].Addresses, want)
	}
	f.Owner = owned("pod/1/c", 100)
	want[0].ID, want[0].Owner = "pod/1/c:"+port(s), "pod/1/c"
	got = f.Find(t.Context(), tick(31, 101))
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Fatalf("with an owner (-want +got):\n%s", diff)
	}
	page, err := got[0].Target.Page(t.Context())
	if err != nil || string(page) != vllmPage {
		t.Errorf("the page is %q, %v", page, err)
	}
	// An owner that is not known for a moment is still the owner.
	f.Owner = owned("pod/1/c")
	if diff := cmp.Diff(want, show(f.Find(t.Context(), tick(32, 101)))); diff != "" {
		t.Errorf("with a silent source (-want +got):\n%s", diff)
	}
	// A driver that does not answer for a moment does not end an engine, only its processes do.
	want[0].Devices = nil
	if diff := cmp.Diff(want, show(w.round(f, tick(62)))); diff != "" {
		t.Errorf("with a silent driver (-want +got):\n%s", diff)
	}
	w.processes[0].open = nil
	w.listens = nil
	if got := w.round(f, tick(92)); got != nil {
		t.Errorf("with a socket that is closed: %v", show(got))
	}
	w.processes[0].open = []uint64{11}
	w.listen(s.Listener.Addr().String(), 11, 0)
	if got := w.round(f, tick(122, 101)); len(got) != 1 {
		t.Errorf("with a socket that is open again: %v", show(got))
	}
	w.processes = nil
	if got := w.round(f, tick(152)); got != nil {
		t.Errorf("of processes that ended: %v", show(got))
	}
	if diff := cmp.Diff(Status{}, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
}

// Catches a server without a visible process on a device that is not found although its workload holds one,
// and a neighbor's that is.
func TestHolder(t *testing.T) {
	w := newWorld(t,
		run{pid: 100, parent: 1, session: 100, open: []uint64{11}},
		run{pid: 200, parent: 1, session: 200, open: []uint64{12}})
	s := w.serve(11, vllm())
	neighbor := vllm()
	w.serve(12, neighbor)
	f := w.finder()
	f.Owner = owned("pod/1/c", 100)
	at := tick(0)
	at.Readings[0].Holders = []node.Holder{{Workload: workload.Workload{ID: "pod/1/c"}}, {Workload: workload.Workload{ID: workload.Unallocated}}}
	want := []shown{{ID: "pod/1/c:" + port(s), Path: "/metrics", Port: port(s), Owner: "pod/1/c", Devices: []string{"GPU-0"}, Started: booted.Format(time.RFC3339)}}
	if diff := cmp.Diff(want, show(w.round(f, at))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if asked := neighbor.paths(); asked != nil {
		t.Errorf("a process without a device was asked for %v", asked)
	}
	if diff := cmp.Diff(Status{Processes: 1, Sockets: 1, Asked: 1, Engines: 1}, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
}

// Catches a page of a pid that another process has now, in a dial and in a scan.
func TestReusedPID(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, start: 5, open: []uint64{11}})
	server := vllm()
	s := w.serve(11, server)
	f := w.finder()
	got := w.round(f, tick(0, 100))
	if len(got) != 1 {
		t.Fatalf("found %v", show(got))
	}
	asked := len(server.paths())
	s.CloseClientConnections()
	w.processes[0].start, w.processes[0].parent = 6, 7
	w.write()
	await.True(t, "the end of connections from before", func() bool {
		_, err := got[0].Target.Page(t.Context())
		return errors.Is(err, errGone)
	})
	if n := len(server.paths()); n != asked {
		t.Errorf("another process was asked %d times", n-asked)
	}
	if got := f.Find(t.Context(), tick(1, 100)); got != nil {
		t.Errorf("after a dial that failed there is %v", show(got))
	}
	// The new process is asked anew. It is an engine, too.
	want := []string{"process/python3:" + port(s)}
	if diff := cmp.Diff(want, ids(w.round(f, tick(30, 100)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := len(server.paths()); n == asked {
		t.Error("the new process was not asked")
	}
}

// Catches an engine per worker, and one that belongs to the wrong of several processes with the same socket.
func TestSharedSocket(t *testing.T) {
	w := newWorld(t,
		run{pid: 90, parent: 100, session: 100, start: 7, open: []uint64{11}}, // pids wrap around
		run{pid: 100, parent: 1, session: 100, start: 5, open: []uint64{11}},
		run{pid: 101, parent: 100, session: 100, start: 6, open: []uint64{11}})
	server := vllm()
	w.serve(11, server)
	f := w.finder()
	for i := range 5 {
		got := w.round(f, tick(30*i, 101))
		if len(got) != 1 || !got[0].Started.Equal(booted.Add(50*time.Millisecond)) {
			t.Fatalf("found %v", show(got))
		}
	}
	if diff := cmp.Diff([]string{"/v1/models", "/metrics"}, server.paths()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// Catches one engine that counts twice: TGI and Triton have their page on several ports. Engines of several
// processes count each, with different IDs.
func TestSamePage(t *testing.T) {
	w := newWorld(t,
		run{pid: 100, parent: 1, session: 100, start: 5, open: []uint64{11, 12}},
		run{pid: 200, parent: 1, session: 200, start: 6, open: []uint64{13}})
	a, b := w.serve(11, vllm()), w.serve(12, vllm())
	c := w.serve(13, vllm())
	f := w.finder()
	f.Owner = owned("pod/1/c", 100, 200)
	lowest := port(a)
	if port(b) < port(a) {
		lowest = port(b)
	}
	want := []string{"pod/1/c:" + lowest, "pod/1/c:" + port(c)}
	found := w.round(f, tick(0, 100, 200))
	if diff := cmp.Diff(want, ids(found)); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	at := []netip.AddrPort{a.Listener.Addr().(*net.TCPAddr).AddrPort(), b.Listener.Addr().(*net.TCPAddr).AddrPort()}
	slices.SortFunc(at, netip.AddrPort.Compare)
	if !slices.Equal(at, found[0].Addresses) { // it may be listed with either
		t.Errorf("it is at %v, want %v", found[0].Addresses, at)
	}
}

// Catches data-parallel ranks of which only the first counts: each has a page of its own on a port of their
// process. A page that is the same, or was the same at the scan before, counts once.
func TestRanks(t *testing.T) {
	const page = "vllm:generation_tokens_total{model_name=\"m\"} %d\nvllm:request_success_total{finished_reason=\"stop\",model_name=\"m\"} %d\n"
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11, 12}})
	servers := map[string]*pages{}
	for _, inode := range []uint64{11, 12} {
		server := vllm()
		servers[port(w.serve(inode, server))] = server
	}
	ports := slices.Sorted(maps.Keys(servers)) // five digits each
	both := []string{"process/python3:" + ports[0], "process/python3:" + ports[1]}
	f := w.finder()
	at := -30
	check := func(what string, want []string, tokens, requests [2]int) {
		t.Helper()
		for i, p := range ports {
			servers[p].set("/metrics", fmt.Sprintf(page, tokens[i], requests[i]))
		}
		at += 30
		got := ids(w.again(f, tick(at, 100)))
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	w.write()
	check("idle", both[:1], [2]int{0, 0}, [2]int{0, 0})
	check("the second is behind", both[:1], [2]int{20, 0}, [2]int{2, 0})
	check("the second is where the first was", both[:1], [2]int{30, 20}, [2]int{3, 2})
	check("both begin anew", both[:1], [2]int{5, 5}, [2]int{1, 1})
	check("the second has less than the first had", both, [2]int{40, 4}, [2]int{4, 2})
	check("equal", both, [2]int{40, 40}, [2]int{4, 4})
	for _, e := range f.Find(t.Context(), tick(at, 100)) {
		if len(e.Addresses) != 1 || strconv.Itoa(int(e.Addresses[0].Port())) != e.Target.URL.Port() {
			t.Errorf("the rank at %v has the addresses %v", e.Target.URL, e.Addresses)
		}
	}
}

// Catches one engine that counts twice because its counters grow while its ports are compared.
func TestGrowing(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11, 12}})
	var n atomic.Int32
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, "vllm:generation_tokens_total %d\n", n.Add(1))
	})
	w.serve(11, server)
	w.serve(12, server)
	w.write()
	f := w.finder()
	for i := range 5 {
		if got := w.again(f, tick(30*i, 100)); len(got) != 1 {
			t.Fatalf("found %v", show(got))
		}
	}
}

// Catches two engines with one ID: containers of the same program have the same ports, each in its network.
func TestID(t *testing.T) {
	w := workload.Workload{ID: "pod/1/c"}
	at := func(address string, namespace, inode uint64) *engine {
		l := newWorld(t)
		l.listen(address, inode, namespace)
		return &engine{key: key{inode: inode}, name: "python3", endpoint: &endpoint{namespace: namespace, address: l.listens[0].address}}
	}
	var got []string
	taken := map[string]bool{}
	for _, e := range []*engine{at("0.0.0.0:8000", 1, 1), at("0.0.0.0:8000", 2, 2), at("127.0.0.1:8000", 2, 3), at("127.0.0.1:8000", 2, 4)} {
		id := e.id(e.base(nil), taken)
		taken[id] = true
		got = append(got, id)
	}
	got = append(got, at("0.0.0.0:8000", 1, 1).base(&w))
	want := []string{
		"process/python3:8000", "process/python3:8000@2", "process/python3:8000@2@127.0.0.1", "process/python3:8000@2@127.0.0.1@4",
		"pod/1/c:8000",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches an engine that takes the ID of another that has ended, and with it its series: it is in another network, and
// both have the same port. A new engine in the place of the old one has the ID of that one.
func TestIDStays(t *testing.T) {
	f := &Finder{}
	at := func(namespace, inode uint64) *engine {
		return &engine{key: key{inode: inode}, name: "python3", endpoint: &endpoint{namespace: namespace, address: netip.MustParseAddrPort("0.0.0.0:8000")}}
	}
	a, b, c := at(1, 1), at(2, 2), at(1, 3)
	var got [][]string
	for _, list := range [][]*engine{{a, b}, {b}, {b, c}} {
		f.engines = list
		got = append(got, ids(f.present(tick(0))))
	}
	want := [][]string{{"process/python3:8000", "process/python3:8000@2"}, {"process/python3:8000@2"}, {"process/python3:8000@2", "process/python3:8000"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f.Owner = owned("pod/1/c", 0) // it changes once the owner is known
	if diff := cmp.Diff([]string{"pod/1/c:8000", "pod/1/c:8000@1"}, ids(f.present(tick(30)))); diff != "" {
		t.Errorf("with an owner (-want +got):\n%s", diff)
	}
}

// Catches a tick that an endpoint delays, one that keeps others from being found, and a Finder that cannot
// be closed meanwhile.
func TestHanging(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11, 12}})
	var waiting atomic.Int32
	w.serve(11, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		waiting.Add(1)
		<-r.Context().Done()
	}))
	s := w.serve(12, vllm())
	f := w.finder() // its timeout is longer than the test
	w.write()
	want := []string{"process/python3:" + port(s)}
	await.True(t, "the other engine", func() bool {
		return cmp.Equal(want, ids(f.Find(t.Context(), tick(0, 100)))) && waiting.Load() > 0
	})
	scan := f.done
	if got := ids(f.Find(t.Context(), tick(300, 100))); !cmp.Equal(want, got) || f.done != scan {
		t.Errorf("while a scan runs there is %v, and another scan: %v", got, f.done != scan)
	}
	f.Close()
	if got := ids(f.Find(t.Context(), tick(600, 100))); !cmp.Equal(want, got) {
		t.Errorf("after Close there is %v", got)
	}
	if diff := cmp.Diff(Status{Processes: 1, Sockets: 2, Asked: 1, Engines: 1}, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
}

// Catches a request to a socket on which NCCL waits for its like, and an engine that is spared although its
// command line has the port.
func TestEphemeralPort(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, command: "python3 train.py --port 1", open: []uint64{11}})
	server := vllm()
	s := w.serve(11, server)
	w.file("sys/net/ipv4/ip_local_port_range", "1024\t65535\n")
	f := w.finder()
	f.Ephemeral = false
	if got := w.round(f, tick(0, 100)); got != nil || server.paths() != nil {
		t.Errorf("found %v, asked for %v", show(got), server.paths())
	}
	if diff := cmp.Diff(Status{Processes: 1, Sockets: 1, Spared: 1}, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
	w.processes[0].command, w.processes[0].start = "vllm serve --port="+port(s), 1
	if diff := cmp.Diff([]string{"process/python3:" + port(s)}, ids(w.round(f, tick(30, 100)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches an agent that finds itself in the control group of an engine.
func TestSelf(t *testing.T) {
	const group = "/system.slice/job.service"
	w := newWorld(t,
		run{pid: 100, parent: 1, session: 100, group: group},
		run{pid: 200, parent: 1, session: 200, group: group, open: []uint64{11}})
	server := vllm()
	w.serve(11, server)
	w.link("self", "200")
	if got := w.round(w.finder(), tick(0, 100)); got != nil || server.paths() != nil {
		t.Errorf("found %v, asked for %v", show(got), server.paths())
	}
}

// Catches a /proc that cannot be listed and looks like a machine without engines.
func TestNoProc(t *testing.T) {
	w := newWorld(t)
	f := w.finder()
	f.Proc += "/none"
	f.Find(t.Context(), tick(0, 100))
	f.wait()
	if err := f.Status().Err; err == nil || !strings.HasPrefix(err.Error(), "cannot list processes: ") {
		t.Errorf("error %v", err)
	}
}

// Catches Ollama, which has no metrics page, being lost or read as one.
func TestOllama(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11}})
	server := &pages{at: map[string]string{"/": "Ollama is running", "/api/ps": `{"models":[{"name":"llama3:8b","size_vram":7}]}`, "/v1/models": `{"data":[{"id":"llama3:8b","owned_by":"library"}]}`}}
	s := w.serve(11, server)
	got := w.round(w.finder(), tick(0, 100))
	want := []shown{{ID: "process/python3:" + port(s), Path: "/api/ps", Format: string(inference.Ollama), Port: port(s), Devices: []string{"GPU-0"}, Started: booted.Format(time.RFC3339)}}
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	page, err := got[0].Target.Page(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := inference.ReadOllama(page); err != nil || len(r.Points) != 2 {
		t.Errorf("read %+v, %v", r, err)
	}
}
