//go:build linux

package tpu

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
)

// childVariable makes the test binary act as a workload with its own network namespace.
const childVariable = "GPUMETER_TEST_TPU_WORKLOAD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := workload(); err != nil {
			fmt.Println("cannot:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// workload serves the metrics of four chips at the default port until its input ends.
func workload() error {
	if err := loopbackUp(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", os.Getenv(childVariable))
	if err != nil {
		return err
	}
	s := &runtimeServer{answers: everything(), listener: l, calls: map[string]int{}, fail: map[string]error{}}
	s.start()
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// startWorkload starts a workload, or skips the test if that is not permitted.
func startWorkload(t *testing.T, address string) (pid int) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+address)
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
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
	t.Cleanup(func() {
		in.Close()
		_ = child.Wait()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("the workload printed %q", line)
	}
	return child.Process.Pid
}

// containerTree is a machine with a real process and fake chips.
func containerTree(t *testing.T, pid int) tree {
	t.Helper()
	m := v6e().process(42, "python3", 0, v6eFiles...)
	own := fmt.Sprintf("/proc/%d/", pid)
	m["proc/42/ns/net"] = "-> " + own + "ns/net"
	m["proc/42/net/tcp"] = "-> " + own + "net/tcp"
	m["proc/42/net/tcp6"] = "-> " + own + "net/tcp6"
	fds, err := os.ReadDir(own + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(own + "fd/" + fd.Name())
		if err == nil && strings.HasPrefix(to, "socket:") {
			m["proc/42/fd/9"+fd.Name()] = "-> " + to
		}
	}
	return m
}

// The service of a pod is reachable only at the pod's loopback interface. The process was
// given no port and listens at the default one, where nothing listens on the host.
func TestOtherNetwork(t *testing.T) {
	for _, address := range []string{"127.0.0.1:8431", "[::1]:8431"} {
		t.Run(address, func(t *testing.T) {
			pid := startWorkload(t, address)
			if _, err := net.DialTimeout("tcp", address, time.Second); err == nil {
				t.Skip("something listens at the usual port here")
			}
			root := containerTree(t, pid).write(t, t.TempDir())
			r := open(t, Options{Root: root})
			samples, err := settled(t, devices(t, r), busy)
			if err != nil || len(samples) != 4 || samples[1].Utilization.Compute != of(0.1425) || samples[0].Memory.Used != of(18*gib) {
				t.Errorf("%v, %v", samples, err)
			}
			if !r.machine.holders[0].service.owned {
				t.Error("the owner of the port was guessed")
			}
			sameNetwork(t)
			checks := Diagnose(t.Context(), Options{Root: root, Exporter: NoExporter})
			last := checks[len(checks)-1]
			if last.State != device.CheckOK || !strings.Contains(last.Detail, "process 42 (python3), 4 chips: 9 metrics at port 8431") {
				t.Errorf("%+v", checks)
			}
		})
	}
}

// sameNetwork fails if a thread of this process is in another network namespace: code that
// runs on it later would be cut off or, worse, listen in another container.
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
		if net, err := os.Readlink(f); err == nil && net != own {
			t.Errorf("%s is in %s", f, net)
		}
	}
}

// A thread that cannot leave the other namespace must end, and its socket with it.
func TestThreadThatCannotReturn(t *testing.T) {
	pid := startWorkload(t, "127.0.0.1:8431")
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	var thread int
	times := 0
	setns := func(fd, kind int) error {
		thread = unix.Gettid()
		if times++; times == 2 {
			return unix.EPERM
		}
		return unix.Setns(fd, kind)
	}
	fd, err := socketIn(int(space.Fd()), unix.AF_INET, setns)
	if fd != -1 || err == nil || !strings.Contains(err.Error(), "cannot leave its network") {
		t.Fatalf("socket %d, %v", fd, err)
	}
	task := "/proc/self/task/" + strconv.Itoa(thread)
	await.True(t, "the end of the thread", func() bool {
		_, err := os.Stat(task)
		return err != nil
	})
	sameNetwork(t)
}

// The first thread of the process cannot be terminated, so it never leaves.
func TestFirstThreadStays(t *testing.T) {
	for range 100 {
		onThread(func() bool {
			if unix.Gettid() == unix.Getpid() {
				t.Error("runs on the first thread")
			}
			return true
		})
	}
}

// Without the capability there is a clear error, and the thread is unchanged.
func TestNotPermitted(t *testing.T) {
	own, err := os.Open(ownNet)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	fd, err := socketIn(int(own.Fd()), unix.AF_INET, func(int, int) error { return unix.EPERM })
	if fd != -1 || !errors.Is(err, errNotPermitted) {
		t.Errorf("socket %d, %v", fd, err)
	}
	// The same with the kernel's own answer, on a thread without capabilities that ends
	// here.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		var none [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capset(&header, &none[0]); err != nil {
			done <- err
			return
		}
		_, back, err := socketOnThread(int(own.Fd()), unix.AF_INET, unix.Setns)
		if !back {
			err = errors.New("the thread is not back")
		}
		done <- err
	}()
	if err := <-done; !errors.Is(err, errNotPermitted) {
		t.Errorf("error %v", err)
	}
}

// The namespace file of a process that exited and whose PID was reused.
func TestNamespaceReplaced(t *testing.T) {
	pid := startWorkload(t, "127.0.0.1:8431")
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	other, err := os.Stat("/etc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialIn(t.Context(), path, other, 8431); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("error %v", err)
	}
	found, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialIn(t.Context(), path, found, 1); err == nil || err.Error() != "port 1: connection refused" {
		t.Errorf("error %v", err)
	}
	if conn, err := dialIn(t.Context(), path, found, 8431); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
}
