package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/internal/workload/kubelet/kubelettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for calls that a test expects to succeed.
const patience = 30 * time.Second

func start(t *testing.T, socket string) *kubelettest.Server {
	t.Helper()
	s, err := kubelettest.Start(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func socketPath(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "kubelet.sock") }

// compare compares the Client's snapshot with the expected one, except for the time.
func compare(t *testing.T, c *Client, want Snapshot) {
	t.Helper()
	got, ok, _ := c.Last()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Snapshot{}, "Time"), cmpopts.EquateErrors()); diff != "" || !ok {
		t.Errorf("snapshot %v (-want +got):\n%s", ok, diff)
	}
}

func fails(t *testing.T, c *Client, want error) {
	t.Helper()
	err := c.Refresh(t.Context())
	if !errors.Is(err, want) {
		t.Errorf("Refresh gives %v, want %v", err, want)
	}
	if _, _, last := c.Last(); !errors.Is(last, want) {
		t.Errorf("Last gives %v, want %v", last, want)
	}
}

var (
	onePod     = []*podresources.PodResources{kubelettest.Pod("ml", "train-0", kubelettest.Container("main", kubelettest.Devices("nvidia.com/gpu", "GPU-b", "GPU-a")...))}
	oneOffered = kubelettest.Devices("nvidia.com/gpu", "GPU-c", "GPU-a", "GPU-b")
	one        = Snapshot{
		Allocations: []Allocation{{Namespace: "ml", Pod: "train-0", Container: "main", Resource: "nvidia.com/gpu", DeviceIDs: []string{"GPU-a", "GPU-b"}}},
		Offered:     map[string][]string{"nvidia.com/gpu": {"GPU-a", "GPU-b", "GPU-c"}},
	}
)

func TestRefresh(t *testing.T) {
	socket := socketPath(t)
	c := New(socket, Timeout(patience))
	if s, ok, err := c.Last(); ok || !errors.Is(err, ErrNotAsked) {
		t.Errorf("before the first query: %v, %v, %v", s, ok, err)
	}
	s := start(t, socket)
	s.Set(onePod, oneOffered)
	fails(t, c, nil)
	compare(t, c, one)
	if got, _, _ := c.Last(); time.Since(got.Time) > patience {
		t.Errorf("snapshot has time %v", got.Time)
	}
}

// No pod with a device is an answer, not an outage.
func TestRefreshEmpty(t *testing.T) {
	socket := socketPath(t)
	start(t, socket)
	c := New(socket, Timeout(patience))
	fails(t, c, nil)
	compare(t, c, Snapshot{Offered: map[string][]string{}})
}

// Catches a limit under which a loaded kubelet, which answers in some seconds, is never used.
func TestSlowKubelet(t *testing.T) {
	socket := socketPath(t)
	s := start(t, socket)
	fails(t, New(socket), nil)
	if got := s.Patience(); got < 5*time.Second || got > timeout {
		t.Errorf("the client waits for %v", got)
	}
}

func TestNoSocket(t *testing.T) {
	c := New(filepath.Join(t.TempDir(), "none/kubelet.sock"))
	fails(t, c, fs.ErrNotExist)
	if _, ok, _ := c.Last(); ok {
		t.Error("there is a snapshot")
	}
}

// A socket that may not be used must not be reported as missing.
func TestPermission(t *testing.T) {
	socket := socketPath(t)
	start(t, socket)
	if err := os.Chmod(filepath.Dir(socket), 0o000); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(filepath.Dir(socket), 0o700)
	done := make(chan struct{})
	go func() { // on a thread that is discarded
		defer close(done)
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			_ = syscall.Setfsuid(65534) // root may do everything
		}
		fails(t, New(socket), fs.ErrPermission)
	}()
	<-done
}

func TestKilledAndRestarted(t *testing.T) {
	socket := socketPath(t)
	s := start(t, socket)
	s.Set(onePod, oneOffered)
	c := New(socket, Timeout(patience))
	fails(t, c, nil)
	s.Kill()
	fails(t, c, syscall.ECONNREFUSED)
	compare(t, c, one) // the last answer
	s = start(t, socket)
	fails(t, c, nil)
	compare(t, c, Snapshot{Offered: map[string][]string{}})
	s.Set(onePod, oneOffered)
	fails(t, c, nil)
	compare(t, c, one)
}

func TestHang(t *testing.T) {
	socket := socketPath(t)
	s := start(t, socket)
	s.Hang(true)
	c := New(socket, Timeout(50*time.Millisecond))
	fails(t, c, context.DeadlineExceeded)
	s.Hang(false)
	c.timeout = patience
	fails(t, c, nil)
}

// The kernel accepts connections for a stopped process until the queue is full.
func TestStopped(t *testing.T) {
	socket := socketPath(t)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := New(socket, Timeout(50*time.Millisecond))
	fails(t, c, context.DeadlineExceeded)

	var queue []net.Conn
	for len(queue) < 1<<17 {
		conn, err := net.DialTimeout("unix", socket, time.Second)
		if err != nil {
			break
		}
		queue = append(queue, conn)
	}
	fails(t, c, context.DeadlineExceeded)
	for _, conn := range queue {
		conn.Close()
	}
}

func TestError(t *testing.T) {
	socket := socketPath(t)
	s := start(t, socket)
	s.Set(onePod, oneOffered)
	c := New(socket, Timeout(patience))
	fails(t, c, nil)
	s.Fail(status.Error(codes.ResourceExhausted, "rejected by rate limit"), nil)
	if err := c.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "rate limit") {
		t.Errorf("got %v", err)
	}
	compare(t, c, one)
}

func TestAllocatable(t *testing.T) {
	socket := socketPath(t)
	s := start(t, socket)
	s.Set(onePod, oneOffered)
	c := New(socket, Timeout(patience))

	s.Fail(nil, status.Error(codes.Unimplemented, "unknown method")) // an old kubelet
	fails(t, c, nil)
	compare(t, c, Snapshot{Allocations: one.Allocations})

	s.Fail(nil, nil)
	fails(t, c, nil)
	compare(t, c, one)

	s.Fail(nil, status.Error(codes.Internal, "broken")) // what is known stays, and the rest is new
	s.Set(nil, nil)
	fails(t, c, nil)
	compare(t, c, Snapshot{Offered: one.Offered, OfferedErr: cmpopts.AnyError})
}

func TestGarbage(t *testing.T) {
	f := func(answer string) {
		t.Helper()
		socket := socketPath(t)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = conn.Write([]byte(answer))
			_, _ = conn.Read(make([]byte, 1024))
		}()
		c := New(socket, Timeout(patience))
		if err := c.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "kubelet") {
			t.Errorf("%q gives %v", answer, err)
		}
	}
	f("")
	f("HTTP/1.1 400 Bad Request\r\n\r\n")
	f(strings.Repeat("\x00\xff", 4096))
}

// raw is a codec that lets a server answer with any bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (raw) Name() string                    { return "proto" }

func TestGarbageMessage(t *testing.T) {
	f := func(answer []byte) {
		t.Helper()
		socket := socketPath(t)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			var question []byte
			if err := stream.RecvMsg(&question); err != nil {
				return err
			}
			return stream.SendMsg(&answer)
		}))
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		defer func() { s.Stop(); <-done }()
		c := New(socket, Timeout(patience))
		if err := c.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "kubelet") {
			t.Errorf("%d bytes give %v", len(answer), err)
		}
	}
	f([]byte("garbage"))
	f([]byte("\x0a\x03\x0a\x01\xff"))   // a name that is not UTF-8
	f(make([]byte, maxMessage+(1<<10))) // more than is ever needed
}

// Four thousand devices with long ids exceed gRPC's default limit of 4 MiB.
func TestManyDevices(t *testing.T) {
	socket := socketPath(t)
	s := start(t, socket)
	var pods []*podresources.PodResources
	var want Snapshot
	ids := make([]string, 4000)
	for i := range ids {
		ids[i] = fmt.Sprintf("GPU-%04d-%s", i, strings.Repeat("x", 490))
		pods = append(pods, kubelettest.Pod("ml", fmt.Sprintf("pod-%04d", i), kubelettest.Container("main", kubelettest.Devices("example.com/gpu", ids[i])...)))
		want.Allocations = append(want.Allocations, Allocation{Namespace: "ml", Pod: fmt.Sprintf("pod-%04d", i), Container: "main", Resource: "example.com/gpu", DeviceIDs: ids[i : i+1]})
	}
	want.Offered = map[string][]string{"example.com/gpu": ids}
	for range 3000 { // most pods of a large node have no device
		pods = append(pods, kubelettest.Pod("web", strings.Repeat("n", 250), kubelettest.Container("c"), kubelettest.Container(strings.Repeat("d", 500))))
	}
	s.Set(pods, kubelettest.Devices("example.com/gpu", ids...))
	c := New(socket, Timeout(patience))
	fails(t, c, nil)
	compare(t, c, want)
}

// Readers do not wait for a kubelet that hangs, and Run returns at once.
func TestRunHang(t *testing.T) {
	socket := socketPath(t)
	s := start(t, socket)
	s.Set(onePod, oneOffered)
	c := New(socket, Every(time.Millisecond), Timeout(patience))
	fails(t, c, nil)
	s.Hang(true)
	calls := s.Calls()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	for s.Calls() == calls {
		runtime.Gosched()
	}
	compare(t, c, one)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, _, err := c.Last(); err != nil {
		t.Errorf("the end of the context is reported as the kubelet's error: %v", err)
	}
}

func TestRunAfterRestart(t *testing.T) {
	socket := socketPath(t)
	c := New(socket, Every(time.Millisecond), Timeout(patience))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	for range 2 {
		s := start(t, socket)
		s.Set(onePod, oneOffered)
		for _, _, err := c.Last(); err != nil; _, _, err = c.Last() {
			runtime.Gosched()
		}
		s.Kill()
		for _, _, err := c.Last(); err == nil; _, _, err = c.Last() {
			runtime.Gosched()
		}
	}
	s := start(t, socket)
	s.Set(onePod, oneOffered)
	// The last kill may have come between the two calls of an attempt, and an attempt before Set.
	for last, _, err := c.Last(); err != nil || last.OfferedErr != nil || len(last.Allocations) == 0 || len(last.Offered) == 0; last, _, err = c.Last() {
		runtime.Gosched()
	}
	cancel()
	<-done
	compare(t, c, one)
}

func TestRunBacksOff(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	synctest.Test(t, func(t *testing.T) {
		c := New(socket)
		ctx, cancel := context.WithCancel(t.Context())
		before := c.last.Load() // the first attempt may come at once
		go c.Run(ctx)
		begin := time.Now()
		var got []time.Duration
		for ; time.Since(begin) < 2*time.Minute; time.Sleep(time.Second) {
			synctest.Wait()
			if now := c.last.Load(); now != before {
				got = append(got, time.Since(begin))
				before = now
			}
		}
		cancel()
		want := []time.Duration{0, 10 * time.Second, 30 * time.Second, time.Minute, 90 * time.Second}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
	})
}
