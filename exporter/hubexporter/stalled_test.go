package hubexporter

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	rpc "google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
)

const half = "POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: 100\r\n\r\nhalf"

// Catches senders that stop everybody by never completing their requests.
func TestStalledSenders(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	o := NewOTLP(NewWriter(s, nil), s.Refusals())
	o.pace.Grace = time.Hour // nothing below waits for it
	server := httptest.NewServer(o.Handler())
	t.Cleanup(server.Close)
	for n := range 8 * maxRequests {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, half); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the request is being read", func() bool { return o.room.Used() >= int64(n+1)<<14 })
		if n+1 != maxRequests && n+1 != 8*maxRequests {
			continue
		}
		r, err := http.Post(server.URL+"/v1/metrics", protobuf, bytes.NewReader(proto(t, gauge("good", time.Second))))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("status %d beside %d stalled senders", r.StatusCode, n+1)
		}
	}
}

// Catches gRPC senders that stop everybody by never sending their messages.
func TestStalledGRPC(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := NewOTLP(NewWriter(s, nil), s.Refusals())
	o.pace.Grace = time.Hour // nothing below waits for it
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- o.Serve(ctx, l, nil, nil) }()
	client := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var all []*grpc.ClientConn
	for n := range 8 * maxRequests {
		if n%maxRequests == 0 {
			all = append(all, client())
		}
		stream, err := all[len(all)-1].NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", grpc.ForceCodec(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream // it sends nothing
		if n+1 != maxRequests && n+1 != 8*maxRequests {
			continue
		}
		good := client()
		if _, err := pmetricotlp.NewGRPCClient(good).Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(gauge("good", time.Second)), grpc.UseCompressor("gzip")); err != nil {
			t.Errorf("%v beside %d stalled senders", err, n+1)
		}
		good.Close()
	}
	for _, c := range all {
		c.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	await.True(t, "all room is given back", func() bool { return o.room.Used() == 0 })
}

// Catches a sender whose unfinished requests fill the memory, over either protocol.
func TestWaitingIsBounded(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	o := NewOTLP(NewWriter(s, nil), s.Refusals())
	o.room = peer.NewRoom(1<<20, 1<<20)
	server := httptest.NewServer(o.Handler())
	defer server.Close()
	r, err := http.Post(server.URL+"/v1/metrics", protobuf, bytes.NewReader(make([]byte, 4<<20)))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if n := s.Refusals().Count(hub.PeerLimit); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" || n != 1 {
		t.Errorf("HTTP: %d %v, %d are counted", r.StatusCode, r.Header, n)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- o.Serve(ctx, l, nil, nil) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	long := rawMessage(make([]byte, 4<<20))
	err = conn.Invoke(t.Context(), "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", long, &long, grpc.ForceCodec(rawCodec{}))
	if n := s.Refusals().Count(hub.PeerLimit); rpc.Code(err) != codes.Unavailable || n < 2 {
		t.Errorf("gRPC: %v, %d are counted", err, n)
	}
	for range 20 { // 20 times the room, one after the other
		if _, err := pmetricotlp.NewGRPCClient(conn).Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(gauge("good", time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	conn.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	await.True(t, "all room is given back", func() bool { return o.room.Used() == 0 })
}
