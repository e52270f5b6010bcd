package hubexporter

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

const boundToken = "node-0123456789abcdef"

// stolen returns what a thief of the token of node n1 sends: points of n1, of others and of
// nobody. The seconds ago tell two requests apart.
func stolen(ago time.Duration) (md pmetric.Metrics, ld plog.Logs) {
	md, ld = pmetric.NewMetrics(), plog.NewLogs()
	for _, r := range []struct {
		resource, point map[string]any
	}{
		{map[string]any{"host.name": "n1", "service.name": "gpumeter"}, map[string]any{"which": "own"}},
		{map[string]any{"host.name": "n1", "k8s.node.name": "n1"}, map[string]any{"which": "own, twice named"}},
		{map[string]any{"host.name": "n2", "service.name": "gpumeter"}, map[string]any{"which": "another's"}},
		{map[string]any{"host.name": "n1", "k8s.node.name": "n2"}, map[string]any{"which": "another's by its other name"}},
		{map[string]any{"host.name": "n1"}, map[string]any{"which": "another's by the point", "host.name": "n2"}},
		{map[string]any{"host.name": "n1"}, map[string]any{"which": "two names that become one label", "host_name": "n2"}},
		{map[string]any{"service.name": "gpumeter"}, map[string]any{"which": "nobody's"}},
	} {
		rm := md.ResourceMetrics().AppendEmpty()
		_ = rm.Resource().Attributes().FromRaw(r.resource)
		p := add(rm.ScopeMetrics().AppendEmpty().Metrics(), "g", "").SetEmptyGauge().DataPoints().AppendEmpty()
		_ = p.Attributes().FromRaw(r.point)
		p.SetTimestamp(at(ago))
		p.SetDoubleValue(1)

		rl := ld.ResourceLogs().AppendEmpty()
		_ = rl.Resource().Attributes().FromRaw(r.resource)
		rec := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
		_ = rec.Attributes().FromRaw(r.point)
		rec.SetTimestamp(at(ago))
		rec.SetEventName("gpu.finding")
	}
	return md, ld
}

// Catches a stolen token of a node that writes series or events of another one over HTTP or
// gRPC, and refusals that are neither counted nor told to the sender.
func TestBoundToken(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	tokens, err := access.ParseTokens([]byte("write " + boundToken + " node=n1\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := NewOTLP(NewWriter(s, nil), s.Refusals())
	server := httptest.NewServer(hub.NewHandler(s, s, hub.HandlerOptions{Tokens: tokens, OTLP: o.Handler(), Refusals: s.Refusals()}))
	defer server.Close()
	post := func(path string, body []byte) []byte {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", protobuf)
		r.Header.Set("Authorization", "Bearer "+boundToken)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatal(answer.Status, string(text), err)
		}
		return text
	}
	const records, points = 4, 5 // an event's host_name is not its host.name
	told := func(how string, got int64, why string, want int64) {
		t.Helper()
		if got != want || !strings.Contains(why, "another machine than the token, which is for node=n1") {
			t.Errorf("%s: %d refused, want %d: %s", how, got, want, why)
		}
	}
	md, ld := stolen(2 * time.Second)
	metrics, logs := pmetricotlp.NewExportResponse(), plogotlp.NewExportResponse()
	if err := metrics.UnmarshalProto(post("/v1/metrics", proto(t, md))); err != nil {
		t.Fatal(err)
	}
	body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	if err := logs.UnmarshalProto(post("/v1/logs", body)); err != nil {
		t.Fatal(err)
	}
	told("metrics over HTTP", metrics.PartialSuccess().RejectedDataPoints(), metrics.PartialSuccess().ErrorMessage(), points)
	told("logs over HTTP", logs.PartialSuccess().RejectedLogRecords(), logs.PartialSuccess().ErrorMessage(), records)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- o.Serve(serving, l, nil, tokens) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+boundToken)
	md, ld = stolen(time.Second)
	if metrics, err = pmetricotlp.NewGRPCClient(conn).Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md)); err != nil {
		t.Fatal(err)
	}
	if logs, err = plogotlp.NewGRPCClient(conn).Export(ctx, plogotlp.NewExportRequestFromLogs(ld)); err != nil {
		t.Fatal(err)
	}
	told("metrics over gRPC", metrics.PartialSuccess().RejectedDataPoints(), metrics.PartialSuccess().ErrorMessage(), points)
	told("logs over gRPC", logs.PartialSuccess().RejectedLogRecords(), logs.PartialSuccess().ErrorMessage(), records)
	conn.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	want := []string{
		`g{host_name=n1,job=gpumeter,which=own} 2:1 1:1`,
		`g{host_name=n1,k8s_node_name=n1,which=own, twice named} 2:1 1:1`,
		`target_info{host_name=n1,job=gpumeter} 2:1 1:1`,
	}
	if diff := cmp.Diff(want, lines(t, s)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	list, err := s.Events(t.Context(), events.Query{From: now.Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, e := range list {
		kept = append(kept, e.Attributes["which"])
	}
	one := []string{"own", "own, twice named", "two names that become one label"}
	if diff := cmp.Diff(append(one, one...), kept); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	// target_info of n2 is refused too, and is not a data point.
	if got := s.Refusals().Count(hub.Foreign); got != 2*(points+1+records) {
		t.Errorf("%d refusals are counted", got)
	}
}
