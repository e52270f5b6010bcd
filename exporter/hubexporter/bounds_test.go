package hubexporter

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	rpc "google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
)

// Catches gRPC that reads a message before authenticating its sender, waits forever for a
// message, or holds a turn meanwhile.
func TestGRPCBeforeTheMessage(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	tokens, err := access.ParseTokens([]byte("write write-0123456789\n"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := NewOTLP(NewWriter(s, nil), s.Refusals())
	o.pace.Grace = 5 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- o.Serve(ctx, l, nil, tokens) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	// silent starts a request and sends nothing.
	silent := func(token string) codes.Code {
		t.Helper()
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token))
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/opentelemetry.proto.collector.logs.v1.LogsService/Export", grpc.ForceCodec(rawCodec{}))
		if err != nil {
			return rpc.Code(err)
		}
		var answer rawMessage
		return rpc.Code(stream.RecvMsg(&answer))
	}
	if code := silent("wrong"); code != codes.Unauthenticated {
		t.Errorf("code %s for an unauthorized sender", code)
	}
	for range 2 * maxRequests {
		if code := silent("write-0123456789"); code != codes.Unavailable {
			t.Fatalf("code %s for a silent sender", code)
		}
	}
	if got := s.Refusals().Count(hub.BodyTimeout); got != 2*maxRequests {
		t.Errorf("%d refusals counted", got)
	}
	_ = conn.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Catches headers of megabytes that gRPC keeps in memory for a sender without a token.
func TestGRPCHeaderBomb(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- NewOTLP(NewWriter(s, nil), s.Refusals()).Serve(ctx, l, nil, nil) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	send := func(head string) codes.Code {
		_, err := pmetricotlp.NewGRPCClient(conn).Export(metadata.AppendToOutgoingContext(t.Context(), "x", head), pmetricotlp.NewExportRequestFromMetrics(gauge("g", time.Second)))
		return rpc.Code(err)
	}
	if code := send(strings.Repeat("x", 1<<20)); code == codes.OK {
		t.Error("headers of 1 MiB are taken")
	}
	if code := send(strings.Repeat("x", 1<<10)); code != codes.OK {
		t.Errorf("headers of 1 KiB: %s", code)
	}
	_ = conn.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Catches a small logs request that expands to a large one: every record repeats the
// resource's attributes.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	logs := func(records int, attrs map[string]string) plogotlp.ExportRequest {
		ld := plog.NewLogs()
		rl := ld.ResourceLogs().AppendEmpty()
		for k, v := range attrs {
			rl.Resource().Attributes().PutStr(k, v)
		}
		list := rl.ScopeLogs().AppendEmpty().LogRecords()
		list.EnsureCapacity(records)
		for i := range records {
			r := list.AppendEmpty()
			r.SetTimestamp(at(time.Duration(i) * time.Microsecond))
			r.SetEventName("e")
		}
		return plogotlp.NewExportRequestFromLogs(ld)
	}
	many := map[string]string{}
	for i := range 1000 {
		many[fmt.Sprint("key", i)] = strings.Repeat("x", 1000)
	}
	for name, c := range map[string]struct {
		records, atLeast, atMost int // kept
		attrs                    map[string]string
		cut                      bool
	}{
		"plain":                {100, 100, 100, map[string]string{"host.name": "a"}, false},
		"too many":             {maxRecords + 7, maxRecords, maxRecords, map[string]string{"host.name": "a"}, false},
		"a long attribute":     {maxRecords, 5000, 10_000, map[string]string{"long": strings.Repeat("x", 8<<20)}, true},
		"many attributes":      {2000, 100, 1000, many, true},
		"a long name":          {100, 100, 100, map[string]string{strings.Repeat("x", 1<<20): "v"}, true},
		"none, and the limit":  {maxRecords, maxRecords, maxRecords, nil, false},
		"one of 4 KiB, a few ": {1000, 1000, 1000, map[string]string{"long": strings.Repeat("x", 4096)}, false},
	} {
		s := openStore(t)
		o := NewOTLP(NewWriter(s, nil), s.Refusals())
		answer, err := o.logs(t.Context(), logs(c.records, c.attrs))
		if err != nil {
			t.Fatal(err)
		}
		refused := int(answer.PartialSuccess().RejectedLogRecords())
		if kept := c.records - refused; kept < c.atLeast || kept > c.atMost {
			t.Errorf("%s: %d of %d are kept, want %d to %d", name, kept, c.records, c.atLeast, c.atMost)
		}
		if (refused > 0) != (answer.PartialSuccess().ErrorMessage() != "") || s.Refusals().Count(hub.Invalid) != uint64(refused) {
			t.Errorf("%s: %d are refused, %q, %d are counted", name, refused, answer.PartialSuccess().ErrorMessage(), s.Refusals().Count(hub.Invalid))
		}
		if got := s.Refusals().Count(hub.BadLabel) > 0; got != c.cut {
			t.Errorf("%s: cut attributes are counted: %t, want %t", name, got, c.cut)
		}
	}
}

// Catches a small metrics request whose labels or buckets exhaust memory, and a count of
// refusals that does not count points.
func TestMetricsAreBounded(t *testing.T) {
	t.Parallel()
	long := map[string]any{}
	for _, key := range DefaultResourceLabels() {
		long[key] = strings.Repeat("x", maxLabelValue)
	}
	labels := func() pmetric.Metrics { // 32 KiB each
		md, ms := node(long)
		points := add(ms, "g", "").SetEmptyGauge().DataPoints()
		for i := range 1000 {
			p := points.AppendEmpty()
			p.SetTimestamp(at(time.Duration(i) * time.Millisecond))
			p.SetDoubleValue(1)
		}
		return md
	}
	histogram := func(bounds int, attrs map[string]any, ago time.Duration) pmetric.Metrics {
		md, ms := node(attrs)
		h := add(ms, "h", "").SetEmptyHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for range 10 {
			p := h.DataPoints().AppendEmpty()
			p.SetTimestamp(at(ago))
			for i := range bounds {
				p.ExplicitBounds().Append(float64(i))
				p.BucketCounts().Append(0)
			}
			p.BucketCounts().Append(0)
		}
		return md
	}
	quantiles, ms := node(nil)
	p := add(ms, "s", "").SetEmptySummary().DataPoints().AppendEmpty()
	p.SetTimestamp(at(0))
	for range maxBounds + 1 {
		p.QuantileValues().AppendEmpty()
	}
	// Each resource has a target_info sample every 150 s.
	resources := pmetric.NewMetrics()
	for i := range 300 {
		md, ms := node(map[string]any{"service.name": fmt.Sprint(i), "a": "b"})
		points := add(ms, "g", "").SetEmptyGauge().DataPoints()
		for _, ago := range []time.Duration{0, 23 * time.Hour} {
			p := points.AppendEmpty()
			p.SetTimestamp(at(ago))
			p.SetDoubleValue(1)
		}
		md.ResourceMetrics().MoveAndAppendTo(resources.ResourceMetrics())
	}
	named, ms := node(nil)
	p2 := add(ms, strings.Repeat("x", maxName+1), "").SetEmptyGauge().DataPoints().AppendEmpty()
	p2.SetTimestamp(at(0))
	p2.SetDoubleValue(1)
	for _, c := range []struct {
		name            string
		md              pmetric.Metrics
		atLeast, atMost int // refused
		why             string
	}{
		{"labels", labels(), 700, 800, "memory"},
		{"bounds", histogram(maxBounds+1, nil, 0), 10, 10, "1024 bounds"},
		{"bounds and labels", histogram(maxBounds, long, 0), 10, 10, "memory"},
		{"quantiles", quantiles, 1, 1, "1024 quantiles"},
		{"resources", resources, 200, 400, "memory"},
		{"a name", named, 1, 1, "invalid name"},
		{"too old", histogram(12, nil, 50*time.Hour), 10, 10, "behind the newest"},
	} {
		s := openStore(t)
		w := NewWriter(s, nil)
		w.room = 8 << 20
		o := NewOTLP(w, s.Refusals())
		if _, err := o.metrics(t.Context(), pmetricotlp.NewExportRequestFromMetrics(gauge("new", 0))); err != nil {
			t.Fatal(err)
		}
		answer, err := o.metrics(t.Context(), pmetricotlp.NewExportRequestFromMetrics(c.md))
		if err != nil {
			t.Fatal(c.name, err)
		}
		got := int(answer.PartialSuccess().RejectedDataPoints())
		if got < c.atLeast || got > c.atMost || !strings.Contains(answer.PartialSuccess().ErrorMessage(), c.why) || len(answer.PartialSuccess().ErrorMessage()) > maxMessage {
			t.Errorf("%s: %d points of %d are refused, %.200q, want %d to %d, %q", c.name, got, c.md.DataPointCount(), answer.PartialSuccess().ErrorMessage(), c.atLeast, c.atMost, c.why)
		}
	}
}

// Catches invalid names that stay in memory forever.
func TestLongNamesAreNotRemembered(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	c := newConverter(nil)
	md, ms := node(nil)
	p := add(ms, strings.Repeat("m", 1<<20), "").SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(1)
	p = add(ms, "m", "").SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(1)
	p.Attributes().PutStr(strings.Repeat("a", 1<<20), "v")
	c.convert(md, s, s.Appender(t.Context()), maxSeriesBytes)
	if len(c.labels) != 0 || len(c.metrics) != 1 {
		t.Errorf("%d labels and %d metrics are remembered", len(c.labels), len(c.metrics))
	}
}
