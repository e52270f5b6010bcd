//go:build linux

package tpu

import (
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// Messages, field by field.

type bytesOf = []byte

func text(id protowire.Number, s string) bytesOf {
	return protowire.AppendString(protowire.AppendTag(nil, id, protowire.BytesType), s)
}

func varint(id protowire.Number, v int64) bytesOf {
	return protowire.AppendVarint(protowire.AppendTag(nil, id, protowire.VarintType), uint64(v))
}

func double(id protowire.Number, v float64) bytesOf {
	return protowire.AppendFixed64(protowire.AppendTag(nil, id, protowire.Fixed64Type), math.Float64bits(v))
}

func message(id protowire.Number, fields ...bytesOf) bytesOf {
	var b []byte
	for _, f := range fields {
		b = append(b, f...)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, id, protowire.BytesType), b)
}

func packed(id protowire.Number, values ...int64) bytesOf {
	var b []byte
	for _, v := range values {
		b = protowire.AppendVarint(b, uint64(v))
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, id, protowire.BytesType), b)
}

func packedDoubles(id protowire.Number, values ...float64) bytesOf {
	var b []byte
	for _, v := range values {
		b = protowire.AppendFixed64(b, math.Float64bits(v))
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, id, protowire.BytesType), b)
}

// answer is a MetricResponse with a name, a description and the metrics.
func answer(name string, metrics ...bytesOf) bytesOf {
	return message(1, append([]bytesOf{text(1, name), text(2, "for people")}, metrics...)...)
}

// metric is a Metric with its attribute, a timestamp and its measure.
func metric(attribute, measure bytesOf) bytesOf {
	return message(3, message(1, text(1, "device-id"), message(2, attribute)), message(2, varint(1, 1763200000)), measure)
}

func byID(id int64) bytesOf { return varint(3, id) }

// byOrdinal is a list of attributes.
func byOrdinal(ordinal bytesOf, core string) bytesOf {
	return message(6, pair("device_ordinal", ordinal), pair("core_type", text(1, core)))
}

func pair(key string, value bytesOf) bytesOf { return message(1, text(1, key), message(2, value)) }

func gaugeInt(v int64) bytesOf       { return message(3, varint(2, v)) }
func gaugeFloat(v float64) bytesOf   { return message(3, double(1, v)) }
func counterInt(v int64) bytesOf     { return message(4, varint(2, v)) }
func dist(fields ...bytesOf) bytesOf { return message(5, fields...) }

// exponential is a Distribution with n finite buckets.
func exponential(count int64, mean float64, n int64, growth, scale float64, counts ...int64) bytesOf {
	return dist(varint(1, count), double(2, mean), message(6, message(2, varint(1, n), double(2, growth), double(3, scale))), packed(7, counts...))
}

func ints(name string, values map[int64]int64) bytesOf {
	var m []bytesOf
	for id, v := range values {
		m = append(m, metric(byID(id), gaugeInt(v)))
	}
	return answer(name, m...)
}

func floats(name string, values map[int64]float64) bytesOf {
	var m []bytesOf
	for id, v := range values {
		m = append(m, metric(byID(id), gaugeFloat(v)))
	}
	return answer(name, m...)
}

// runtimeServer implements the documented service.
type runtimeServer struct {
	mu       sync.Mutex
	answers  map[string]bytesOf // by metric
	more     []string           // listed, without an answer
	noList   bool               // like an old libtpu
	fail     map[string]error
	delay    time.Duration
	calls    map[string]int
	listener net.Listener
	stop     func()
}

func (s *runtimeServer) set(change func(*runtimeServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *runtimeServer) handle(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(stream)
	name := ""
	_ = eachField(request, func(f field) error {
		if f.id == 1 {
			name = string(f.data)
		}
		return nil
	})
	s.mu.Lock()
	s.calls[method+" "+name]++
	delay, reply, err := s.delay, []byte(nil), s.fail[name]
	switch method {
	case "/tpu.monitoring.runtime.RuntimeMetricService/ListSupportedMetrics":
		if s.noList {
			err = status.Error(codes.Unimplemented, "what?")
		}
		for n := range s.answers {
			reply = append(reply, message(1, text(1, n))...)
		}
		for _, n := range s.more {
			reply = append(reply, message(1, text(1, n))...)
		}
	case "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric":
		var ok bool
		if reply, ok = s.answers[name]; !ok && err == nil {
			err = status.Error(codes.InvalidArgument, "unknown metric")
		}
	default:
		err = status.Error(codes.Unimplemented, method)
	}
	s.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(&reply)
}

func (s *runtimeServer) port() int { return s.listener.Addr().(*net.TCPAddr).Port }

// serve starts a server on l, or on a free port.
func serve(t *testing.T, answers map[string]bytesOf) *runtimeServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &runtimeServer{answers: answers, listener: l, calls: map[string]int{}, fail: map[string]error{}}
	s.stop = s.start().Stop
	t.Cleanup(s.stop)
	return s
}

func (s *runtimeServer) start() *grpc.Server {
	g := grpc.NewServer(grpc.UnknownServiceHandler(s.handle), grpc.ForceServerCodec(raw{}))
	go func() { _ = g.Serve(s.listener) }()
	return g
}

// Trees.

// tree is a file system: content by path. "-> x" is a link to x; a path that ends in / is a
// directory.
type tree map[string]string

func (m tree) write(t *testing.T, root string) string {
	t.Helper()
	for name, content := range m {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(content, "-> "); ok {
			_ = os.Remove(path)
			err = os.Symlink(to, path)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o700)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const testMachine = "0123456789abcdef"

// vfioChip adds a chip behind an IOMMU group.
func (m tree) vfioChip(pci, id, group string) tree {
	dir := "sys/bus/pci/devices/" + pci + "/"
	m[dir+"vendor"] = "0x1ae0\n"
	m[dir+"device"] = id + "\n"
	m[dir+"numa_node"] = "-1\n"
	m[dir+"iommu_group"] = "-> ../../../kernel/iommu_groups/" + group
	return m
}

// process adds a process that has files open and listens at a port.
func (m tree) process(pid int, name string, port int, files ...string) tree {
	dir := fmt.Sprintf("proc/%d/", pid)
	m[dir+"comm"] = name + "\n"
	m[dir+"ns/net"] = "-> /proc/self/ns/net"
	m[dir+"fd/0"] = "-> /dev/null"
	for i, f := range files {
		m[dir+"fd/"+strconv.Itoa(10+i)] = "-> " + f
	}
	m[dir+"net/tcp"] = tcpHeader
	if port != 0 {
		m[dir+"environ"] = fmt.Sprintf("HOME=/root\x00SECRET=x\x00TPU_RUNTIME_METRICS_PORTS=%d\x00", port)
		m[dir+"net/tcp"] += listenLine(port, 50000+pid)
		m[dir+"fd/5"] = fmt.Sprintf("-> socket:[%d]", 50000+pid)
	}
	return m
}

const tcpHeader = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func listenLine(port, inode int) string {
	return fmt.Sprintf("   0: 0100007F:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 %d 1 0000000000000000 100 0 0 10 0\n", port, inode)
}

// clock is a manually advanced clock.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}
