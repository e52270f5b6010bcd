//go:build bench

package spans

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpumeter/gpumeter/bench/usage"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

var (
	binary = flag.String("gpumeter", "", "path of the agent's binary; built if empty")
	length = flag.Duration("length", 30*time.Second, "how long to measure each mode")
	rate   = flag.Int("rate", 50_000, "spans a second")
	batch  = flag.Int("batch", 512, "spans a request; the default is that of the SDKs")
)

// senders send at a time.
const senders = 8

// request returns spans of requests that ended now, each with a child.
func request(n uint64) ptraceotlp.ExportRequest {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	r := rs.Resource().Attributes()
	for key, v := range map[string]string{"service.name": "api", "service.version": "1.2.3", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.language": "go"} {
		r.PutStr(key, v)
	}
	r.PutInt("process.pid", int64(os.Getpid()))
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	spans.EnsureCapacity(*batch)
	now := time.Now()
	for i := range *batch {
		span := spans.AppendEmpty()
		id := n*uint64(*batch) + uint64(i)
		trace := pcommon.TraceID{byte(id >> 1), byte(id >> 9), byte(id >> 17), byte(id >> 25), byte(id >> 33), 1}
		span.SetTraceID(trace)
		span.SetSpanID(pcommon.SpanID{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24), byte(id >> 32), 1})
		span.SetName("POST /generate")
		start := now.Add(-50*time.Millisecond - time.Duration(*batch-i)*20*time.Microsecond)
		took := 50 * time.Millisecond
		if i%2 == 1 {
			p := id - 1
			span.SetParentSpanID(pcommon.SpanID{byte(p), byte(p >> 8), byte(p >> 16), byte(p >> 24), byte(p >> 32), 1})
			span.SetName("generate")
			start, took = start.Add(time.Millisecond), took-2*time.Millisecond
		}
		span.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
		span.SetEndTimestamp(pcommon.NewTimestampFromTime(start.Add(took)))
		a := span.Attributes()
		a.EnsureCapacity(8)
		a.PutStr("http.request.method", "POST")
		a.PutStr("url.path", "/generate")
		a.PutStr("url.scheme", "http")
		a.PutStr("server.address", "localhost")
		a.PutInt("server.port", 8000)
		a.PutInt("http.response.status_code", 200)
		a.PutStr("user_agent.original", "python-requests/2.32")
		a.PutStr("network.protocol.version", "1.1")
	}
	return ptraceotlp.NewExportRequestFromTraces(td)
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestSpans(t *testing.T) {
	agent := *binary
	if agent == "" {
		agent = filepath.Join(t.TempDir(), "gpumeter")
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", agent, "github.com/gpumeter/gpumeter/cmd/gpumeter")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("cannot build the agent: %v\n%s", err, out)
		}
	}
	driver := nvmltest.New(t, fmt.Sprintf("gpus 1\ngpu 0 util 70 0\nprocess 0 %d compute 1073741824 70\n", os.Getpid()))
	fmt.Printf("%s, %d CPUs, %s, agent on one core, each for %s\n\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOARCH, *length)
	fmt.Println("| spans get | spans a second | CPU, % of a core | us a span | to without | RSS after a third, MiB | at the end |")
	fmt.Println("|---|---|---|---|---|---|---|")
	without := 0.0
	for _, mode := range []string{"off", "gpumeter"} {
		m := measure(t, agent, driver.Library, mode)
		if without == 0 {
			without = m.each
		}
		fmt.Printf("| %s | %.0f | %.1f | %.2f | %.2f x | %.1f | %.1f |\n", mode, m.rate, 100*m.cores, m.each, m.each/without, m.early, m.late)
	}
}

type measured struct{ rate, cores, each, early, late float64 }

func measure(t *testing.T, agent, library, mode string) measured {
	t.Helper()
	var enriched, bytesTaken atomic.Int64
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bytesTaken.Add(int64(len(body)))
		if bytes.Contains(body, []byte("gpu.span.energy")) {
			enriched.Add(1)
		}
	}))
	defer sink.Close()
	env := append(os.Environ(), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+sink.URL+"/v1/traces", "OTEL_EXPORTER_OTLP_COMPRESSION=none", "GOMAXPROCS=1")
	args := []string{
		"agent", "--otlp-receiver", "--otlp-spans", mode, "--nvidia-library", library, "--interval", "1s", "--listen", "127.0.0.1:0",
		"--state-dir", "", "--no-cloud", "--no-inference",
	}
	print := exec.CommandContext(t.Context(), agent, append(args, "--print-config")...)
	print.Env = env
	config, err := print.Output()
	if err != nil {
		t.Fatal(err)
	}
	address := free(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := strings.NewReplacer("localhost:4317", address, "localhost:4318", free(t)).Replace(string(config))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), agent, "agent", "--config", file, "--socket", "", "--no-standby", "--log-level", "error")
	cmd.Env, cmd.Stderr = env, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := ptraceotlp.NewGRPCClient(conn)
	var n atomic.Uint64
	send := func() error {
		_, err := client.Export(context.Background(), request(n.Add(1)))
		return err
	}
	for begun := time.Now(); ; { // until the agent answers and has had some ticks
		err := send()
		if err == nil && time.Since(begun) > 8*time.Second {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	enriched.Store(0)
	// What the agent does besides is not the cost of spans.
	idle := cores(t, cmd.Process.Pid, 5*time.Second)
	before, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	var m measured
	var sent, failed atomic.Int64
	var done sync.WaitGroup
	start := time.Now()
	for range senders {
		done.Go(func() {
			for time.Since(start) < *length {
				if due := int64(time.Since(start).Seconds() * float64(*rate)); sent.Add(int64(*batch)) > due+int64(*batch*senders) {
					sent.Add(-int64(*batch))
					time.Sleep(time.Millisecond)
					continue
				}
				if err := send(); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	time.Sleep(*length / 3)
	m.early = rss(t, cmd.Process.Pid)
	done.Wait()
	seconds := time.Since(start).Seconds()
	if n := failed.Load(); n > 0 {
		t.Errorf("%s: %d requests failed", mode, n)
	}
	after, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	m.late = rss(t, cmd.Process.Pid)
	cpu := (after - before).Seconds() - idle*seconds
	spans := float64(sent.Load())
	m.rate, m.cores, m.each = spans/seconds, cpu/seconds, cpu/spans*1e6
	if got := enriched.Load(); (got > 0) != (mode != "off") {
		t.Errorf("%s: %d requests were enriched", mode, got)
	}
	return m
}

// cores returns how much CPU a process uses.
func cores(t *testing.T, pid int, length time.Duration) float64 {
	t.Helper()
	before, err := usage.CPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(length)
	after, err := usage.CPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	return (after - before).Seconds() / length.Seconds()
}

func rss(t *testing.T, pid int) float64 {
	t.Helper()
	total, _, err := usage.Memory(pid)
	if err != nil {
		t.Fatal(err)
	}
	return total
}
