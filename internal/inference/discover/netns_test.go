package discover

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/await"
)

// childVariable makes the test binary act as an engine with its own network namespace.
const childVariable = "GPUMETER_TEST_INFERENCE_ENGINE"

// engineProcess serves the page of an engine until its input ends.
func engineProcess(address string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, vllm()) }() // until the process ends
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return nil
}

// startEngine starts an engine in a network namespace of its own, or skips the test if that is not permitted. end
// ends it.
func startEngine(t *testing.T, address string) (pid int, end func()) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+address)
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET} // it ends with its input
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		if errors.Is(err, unix.EPERM) {
			if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), "root") {
				t.Fatalf("GPUMETER_REQUIRE asks for root: %v", err)
			}
			t.Skipf("root: a network namespace needs CAP_SYS_ADMIN: %v", err)
		}
		t.Fatal(err)
	}
	end = func() {
		in.Close()
		_ = child.Wait() // a second time it has ended already
	}
	t.Cleanup(end)
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the engine printed %q", line)
	}
	return child.Process.Pid, end
}

// only returns a world with one real process, so that no other program of this machine is asked.
func only(t *testing.T, pid int) *world {
	t.Helper()
	w := newWorld(t)
	w.link(strconv.Itoa(pid), filepath.Join("/proc", strconv.Itoa(pid)))
	return w
}

// Catches an engine in a pod that is not found because it listens in the network of the pod, a thread that
// stays there, and an engine that ended and is still dialed.
func TestOtherNetwork(t *testing.T) {
	for _, address := range []string{"127.0.0.1:8000", "[::1]:8000", "0.0.0.0:8000", "[::]:8000"} {
		t.Run(address, func(t *testing.T) {
			pid, end := startEngine(t, address)
			w := only(t, pid)
			f := w.finder()
			got := w.again(f, tick(0, uint32(pid)))
			if len(got) != 1 || !strings.HasSuffix(got[0].ID, ":8000") || got[0].Started.IsZero() {
				t.Fatalf("found %v, status %+v", show(got), f.Status())
			}
			for range 3 {
				page, err := got[0].Target.Page(t.Context())
				if err != nil || string(page) != vllmPage {
					t.Fatalf("the page is %q, %v", page, err)
				}
				got[0].Target.Client.CloseIdleConnections()
			}
			sameNetwork(t)
			end()
			await.True(t, "the end of connections from before", func() bool {
				_, err := got[0].Target.Page(t.Context())
				return errors.Is(err, errGone)
			})
			if got := f.Find(t.Context(), tick(1)); got != nil {
				t.Errorf("a process that ended is %v", show(got))
			}
		})
	}
}

// sameNetwork fails if a thread of this process is in another network namespace: code that runs on it later
// would be cut off or, worse, listen in another container.
func sameNetwork(t *testing.T) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
	if len(tasks) == 0 {
		t.Fatal("no threads")
	}
	for _, f := range tasks {
		await.True(t, "the end of a thread in another network", func() bool {
			link, err := os.Readlink(f)
			return err != nil || link == own
		})
	}
}

// Catches an engine in another network that is lost without the capability although it can be reached from
// outside, one on the loopback interface of that network that is asked on ours, and a reason that is not told.
func TestOutside(t *testing.T) {
	address := ownAddress(t)
	server := vllm()
	w := newWorld(t,
		run{pid: 100, parent: 1, session: 100, namespace: 5, open: []uint64{11}},
		run{pid: 200, parent: 1, session: 200, namespace: 5, open: []uint64{12}},
		run{pid: 300, parent: 1, session: 300, namespace: 6, open: []uint64{13}})
	s := listenAt(t, "0.0.0.0:0", server)
	inside := vllm()
	loopback := listenAt(t, "127.0.0.1:0", inside)
	w.listen("0.0.0.0:"+s, 11, 5)
	w.listen("127.0.0.1:"+loopback, 12, 5)
	w.listen(address+":"+loopback, 13, 6) // of the namespace, but nobody listens
	w.pages["net/fib_trie"] = "Local:\n  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- " + address + "\n     /32 host LOCAL\n"
	f := w.finder()
	got := w.round(f, tick(0, 100, 200, 300)) // the links ns/net lead nowhere, so no namespace can be entered
	if diff := cmp.Diff([]string{"process/python3:" + s}, ids(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, e := range got {
		if diff := cmp.Diff([]string{address + ":" + s}, []string{fmt.Sprint(e.Addresses[0])}); diff != "" || len(e.Addresses) != 1 {
			t.Errorf("it is at %v, as seen from here", e.Addresses)
		}
	}
	if asked := inside.paths(); asked != nil {
		t.Errorf("a server in our network was asked for %v", asked)
	}
	if diff := cmp.Diff(Status{Processes: 3, Sockets: 3, Asked: 2, Engines: 1, Undecided: 1, Unreachable: []Unreachable{{noNamespace, 1}}}, f.Status()); diff != "" {
		t.Errorf("the status (-want +got):\n%s", diff)
	}
}

// Catches a thread that lacks the capability and is taken for a reason of another kind.
func TestNotPermitted(t *testing.T) {
	pid, _ := startEngine(t, "127.0.0.1:8000")
	w := only(t, pid)
	f := w.finder()
	f.enter = func(int) error { return unix.EPERM }
	w.again(f, tick(0, uint32(pid)))
	got := f.Status()
	if len(got.Unreachable) != 1 || got.Unreachable[0] != (Unreachable{notPermitted, 1}) || got.Asked != 0 {
		t.Errorf("the status is %+v", got)
	}
	// The kernel's own answer, on a thread without capabilities that ends here.
	space, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	onThread(func() {
		var none [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err = unix.Capset(&header, &none[0]); err == nil {
			err = unreachable(enter(int(space.Fd())))
		}
	})
	var why *unreachableError
	if !errors.As(err, &why) || why.reason != notPermitted {
		t.Errorf("error %v", err)
	}
}

// The first thread of the process cannot be ended, so it never enters another namespace.
func TestFirstThreadStays(t *testing.T) {
	for range 100 {
		onThread(func() {
			if unix.Gettid() == unix.Getpid() {
				t.Error("runs on the first thread")
			}
		})
	}
}

// ownAddress returns an address of this machine that is not loopback.
func ownAddress(t *testing.T) string {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr().String()
		}
	}
	t.Skip("network: this machine has only loopback addresses")
	return ""
}

// listenAt serves pages at an address, and returns the port.
func listenAt(t *testing.T, address string, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // until it is closed
	t.Cleanup(func() { _ = s.Close() })
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
