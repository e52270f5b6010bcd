package discover

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// TestMain also acts as a program with its own network namespace: see netns_test.go.
func TestMain(m *testing.M) {
	if address := os.Getenv(childVariable); address != "" {
		if err := engineProcess(address); err != nil {
			fmt.Println("cannot:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// run is a process of a world.
type run struct {
	pid, parent, session int
	start                uint64
	terminal             int
	group, command       string
	namespace            uint64 // 0: ours
	open                 []uint64
}

// world is a fake procfs.
type world struct {
	t         *testing.T
	root      string
	processes []run
	listens   []held
	own       uint64
	pages     map[string]string // files below a process, for all
}

func newWorld(t *testing.T, processes ...run) *world {
	t.Helper()
	link, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	own, ok := parseNamespace(link)
	if !ok {
		t.Fatal(link)
	}
	w := &world{t: t, root: t.TempDir(), processes: processes, own: own, pages: map[string]string{}}
	w.file("stat", "cpu 1 2 3\nbtime 1790000000\n")
	return w
}

func (w *world) file(name, text string) {
	w.t.Helper()
	name = filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) link(name, to string) {
	w.t.Helper()
	name = filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink(to, name); err != nil {
		w.t.Fatal(err)
	}
}

// listen adds a listening socket to a network namespace, ours if 0.
func (w *world) listen(address string, inode, namespace uint64) {
	a := netip.MustParseAddrPort(address)
	w.listens = append(w.listens, held{listener: listener{a, inode}, namespace: namespace})
}

// serve serves pages from a listening socket of processes.
func (w *world) serve(inode uint64, h http.Handler) *httptest.Server {
	w.t.Helper()
	s := httptest.NewServer(h)
	w.t.Cleanup(s.Close)
	w.listen(s.Listener.Addr().String(), inode, 0)
	return s
}

// hexAddress writes an address as /proc/net/tcp does.
func hexAddress(a netip.AddrPort) string {
	b := a.Addr().AsSlice()
	for word := range slices.Chunk(b, 4) {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	return fmt.Sprintf("%s:%04X", strings.ToUpper(hex.EncodeToString(b)), a.Port())
}

func (r *run) stat() string {
	return fmt.Sprintf("%d (a) b(%d) S %d %d %d %d -1 0%s %d 0 0\n", r.pid, r.pid, r.parent, r.pid, r.session, r.terminal, strings.Repeat(" 0", 12), r.start)
}

// write writes the world down.
func (w *world) write() {
	w.t.Helper()
	old, err := filepath.Glob(filepath.Join(w.root, "[0-9]*"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			w.t.Fatal(err)
		}
	}
	const title = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for _, r := range w.processes {
		dir := strconv.Itoa(r.pid) + "/"
		tcp := map[bool]*strings.Builder{false: {}, true: {}}
		for _, b := range tcp {
			b.WriteString(title)
		}
		for i, l := range w.listens {
			if l.namespace == r.namespace {
				fmt.Fprintf(tcp[l.address.Addr().Is6()], "%4d: %s 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 %d 1\n", i, hexAddress(l.address), l.inode)
			}
		}
		namespace := r.namespace
		if namespace == 0 {
			namespace = w.own
		}
		w.file(dir+"stat", r.stat())
		w.file(dir+"cgroup", "0::"+r.group+"\n")
		w.file(dir+"cmdline", strings.ReplaceAll(r.command, " ", "\x00"))
		w.file(dir+"net/tcp", tcp[false].String())
		w.file(dir+"net/tcp6", tcp[true].String())
		for name, text := range w.pages {
			w.file(dir+name, text)
		}
		w.link(dir+"ns/net", fmt.Sprintf("net:[%d]", namespace))
		w.link(dir+"exe", "/usr/bin/python3")
		w.link(dir+"fd/0", "/dev/null")
		for i, inode := range r.open {
			w.link(fmt.Sprintf("%sfd/%d", dir, i+3), fmt.Sprintf("socket:[%d]", inode))
		}
	}
}

// finder returns a Finder for the world.
func (w *world) finder() *Finder {
	f := &Finder{Proc: w.root, Ephemeral: true, Timeout: time.Minute} // the endpoints are local, the machine may be slow
	w.t.Cleanup(f.Close)
	return f
}

// wait waits for the scan that runs.
func (f *Finder) wait() {
	f.mu.Lock()
	done := f.done
	f.mu.Unlock()
	if done != nil {
		<-done
	}
}

// booted is when the machine was, and dawn the first tick.
var booted, dawn = time.Unix(1790000000, 0).UTC(), time.Unix(1790001000, 0).UTC()

// tick is a tick some seconds after dawn, with one device and the processes on it.
func tick(seconds int, pids ...uint32) *node.Tick {
	r := node.Reading{Sample: device.Sample{ID: device.ID{Vendor: "nvidia", UUID: "GPU-0"}}, Up: true}
	for _, pid := range pids {
		r.Processes = append(r.Processes, device.Process{PID: pid})
	}
	return &node.Tick{Time: dawn.Add(time.Duration(seconds) * time.Second), Readings: []node.Reading{r}}
}

// shown is what a test compares of an engine.
type shown struct {
	ID, Path, Format string
	Port             string
	Owner            string
	Devices          []string
	Started          string
}

func show(list []Engine) []shown {
	var out []shown
	for _, e := range list {
		s := shown{ID: e.ID, Path: e.Target.URL.Path, Format: string(e.Target.Format), Port: e.Target.URL.Port(), Started: e.Started.Format(time.RFC3339)}
		if e.Workload != nil {
			s.Owner = e.Workload.ID
		}
		for _, d := range e.Devices {
			s.Devices = append(s.Devices, d.UUID)
		}
		out = append(out, s)
	}
	return out
}

// ids returns the IDs of engines.
func ids(list []Engine) []string {
	var out []string
	for _, e := range list {
		out = append(out, e.ID)
	}
	return out
}

// round writes the world, and returns what is found after a scan of it.
func (w *world) round(f *Finder, t *node.Tick) []Engine {
	w.t.Helper()
	w.write()
	return w.again(f, t)
}

// again returns what is found after a scan of the world as it was written.
func (w *world) again(f *Finder, t *node.Tick) []Engine {
	f.Find(w.t.Context(), t)
	f.wait()
	return f.Find(w.t.Context(), t)
}

// pages is a server that remembers what it was asked.
type pages struct {
	mu    sync.Mutex
	at    map[string]string
	asked []string
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, r.URL.Path)
	text, ok := p.at[r.URL.Path]
	switch {
	case !ok:
		http.NotFound(w, r)
		return
	case text == "500":
		w.WriteHeader(http.StatusInternalServerError)
		return
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		w.Header().Set("Content-Type", "application/json")
	default:
		w.Header().Set("Content-Type", "text/plain")
	}
	fmt.Fprint(w, text)
}

func (p *pages) set(path, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[path] = text
}

func (p *pages) paths() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

const vllmPage = "vllm:num_requests_running{model_name=\"m\"} 1\n"

// vllm is a server with the page of an engine.
func vllm() *pages {
	return &pages{at: map[string]string{"/metrics": vllmPage, "/v1/models": `{"data":[{"id":"m","owned_by":"vllm"}]}`}}
}

func port(s *httptest.Server) string {
	return strconv.Itoa(s.Listener.Addr().(*net.TCPAddr).Port)
}

// owned returns an Owner with the same workload for some processes.
func owned(id string, pids ...uint32) func(uint32) (workload.Workload, bool) {
	return func(pid uint32) (workload.Workload, bool) {
		return workload.Workload{ID: id, Kind: "deployment", Name: "chat"}, slices.Contains(pids, pid)
	}
}
