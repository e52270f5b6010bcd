package gpuspanprocessor

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
)

// request is what an SDK sends: 512 spans of requests, each with a child.
func request(from float64) []byte {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	for key, v := range map[string]string{"container.id": "a", "service.name": "api", "service.version": "1.2.3", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.language": "python", "host.name": "n1"} {
		rs.Resource().Attributes().PutStr(key, v)
	}
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for i := range 512 {
		span := spans.AppendEmpty()
		id := i/2 + 1
		span.SetTraceID([16]byte{byte(id), byte(id >> 8), 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7})
		span.SetSpanID([8]byte{byte(i), byte(i >> 8), 1, 1, 1, 1, 1, 1})
		start := from + float64(i/2)*0.02
		span.SetName("POST /generate")
		if i%2 == 1 {
			span.SetParentSpanID([8]byte{byte(i - 1), byte((i - 1) >> 8), 1, 1, 1, 1, 1, 1})
			start += 0.01
			span.SetName("generate")
		}
		span.SetStartTimestamp(at(start))
		span.SetEndTimestamp(at(start + 0.05))
		a := span.Attributes()
		a.PutStr("http.request.method", "POST")
		a.PutStr("url.path", "/generate")
		a.PutStr("url.scheme", "http")
		a.PutStr("server.address", "localhost")
		a.PutInt("server.port", 8000)
		a.PutInt("http.response.status_code", 200)
		a.PutStr("user_agent.original", "python-requests/2.32")
		a.PutStr("network.protocol.version", "1.1")
	}
	body, err := ptraceotlp.NewExportRequestFromTraces(td).MarshalProto()
	if err != nil {
		panic(err)
	}
	return body
}

// The cost of a span between the receiver and the exporter: decoded, enriched or not, and encoded.
func BenchmarkSpans(b *testing.B) {
	body := request(11)
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("enriched=%t", with), func(b *testing.B) {
			t := newBench(b, nil)
			for i := range 600 {
				t.tick(float64(i)/10, gpu{util: 0.7, temp: 60, watts: 400, shares: map[string]float64{"a": 1}, joules: map[string]float64{"a": float64(i) * 40}})
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu(b)
			for b.Loop() {
				req := ptraceotlp.NewExportRequest()
				if err := req.UnmarshalProto(body); err != nil {
					b.Fatal(err)
				}
				td := req.Traces()
				if with {
					if err := t.traces.ConsumeTraces(b.Context(), td); err != nil {
						b.Fatal(err)
					}
					t.sunk.traces.Reset()
				}
				if _, err := ptraceotlp.NewExportRequestFromTraces(td).MarshalProto(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N)/512, "cpu-ns/span")
		})
	}
}

// cpu returns the CPU time of this process: elapsed time says little on a machine with other work.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
