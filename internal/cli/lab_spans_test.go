//go:build linux

package cli_test

import (
	"bytes"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/gpumeter/gpumeter/internal/await"
)

func (l *lab) takeTraces(body []byte) error {
	req := ptraceotlp.NewExportRequest()
	if err := req.UnmarshalProto(body); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, rs := range req.Traces().ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				attrs := span.Attributes().AsRaw()
				var events []string
				for _, e := range span.Events().All() {
					events = append(events, e.Name())
				}
				attrs["events"] = strings.Join(events, " ")
				l.spans[span.Name()] = attrs
			}
		}
	}
	return nil
}

// traces makes the agent take traces.
func (l *lab) traces() {
	l.t.Helper()
	taken, err := net.Listen("tcp", loopback()+":0")
	if err != nil {
		l.t.Fatal(err)
	}
	l.otlp, l.spans = taken.Addr().String(), map[string]map[string]any{}
	taken.Close()
}

// labSpan is a span from one time to another, below another one in the list or -1.
type labSpan struct {
	name     string
	from, to time.Time
	parent   int
}

// send sends the spans of a process and returns their attributes as they left the agent.
func (l *lab) send(resource map[string]any, list ...labSpan) []map[string]any {
	l.t.Helper()
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	if err := rs.Resource().Attributes().FromRaw(resource); err != nil {
		l.t.Fatal(err)
	}
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for i, s := range list {
		span := spans.AppendEmpty()
		span.SetName(s.name)
		span.SetTraceID([16]byte{1})
		span.SetSpanID([8]byte{byte(i + 1)})
		span.SetStartTimestamp(pcommon.NewTimestampFromTime(s.from))
		span.SetEndTimestamp(pcommon.NewTimestampFromTime(s.to))
		if s.parent >= 0 {
			span.SetParentSpanID([8]byte{byte(s.parent + 1)})
		}
	}
	body, err := ptraceotlp.NewExportRequestFromTraces(td).MarshalProto()
	if err != nil {
		l.t.Fatal(err)
	}
	await.NoError(l.t, func() error {
		resp, err := http.Post("http://"+l.otlp+"/v1/traces", "application/x-protobuf", bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the agent answers %s", resp.Status)
		}
		return nil
	})
	var got []map[string]any
	for _, s := range list {
		await.True(l.t, "the span "+s.name, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.spans[s.name] != nil
		})
		l.mu.Lock()
		got = append(got, l.spans[s.name])
		l.mu.Unlock()
	}
	return got
}

// counted returns the time of the first tick that has the energy of a GPU as it is now.
func (l *lab) counted(gpu int) time.Time {
	for _, b := range l.ticks() {
		if v, ok := b.sum("gpu.energy", "gpu.index", int64(gpu)); ok && v == l.gpus[gpu].energy {
			return b.time
		}
	}
	l.t.Fatal("the energy was never read")
	return time.Time{}
}

// mean returns the mean of a metric of a GPU between two ticks, by time.
func (l *lab) mean(metric string, gpu int, from, to time.Time) float64 {
	sum, value, last := 0.0, math.NaN(), from
	for _, b := range l.ticks() {
		if b.time.After(to) || b.time.Before(from) {
			continue
		}
		if b.time.After(from) {
			sum += value * b.time.Sub(last).Seconds()
		}
		value, _ = b.sum(metric, "gpu.index", int64(gpu))
		last = b.time
	}
	return (sum + value*to.Sub(last).Seconds()) / to.Sub(from).Seconds()
}

// Spans of known times carry what the script says: values at start and end, the mean that the metrics have, and
// the joules of the driver's counter, which those that overlap or enclose each other share. The process is found
// through its PID namespace, a pod that was replaced has only its own time, and its successor the rest.
func TestLabSpans(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2)
	l.traces()
	l.pod("a", 0, 1)
	l.run(101, "a", 0, 90)
	l.run(102, "a", 1, 90)
	for host, inner := range map[int]int{101: 1, 102: 2} {
		path := filepath.Join(l.root, "proc", fmt.Sprint(host), "status")
		if err := os.WriteFile(path, fmt.Appendf(nil, "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t%d\t%d\n", host, inner), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.start()
	var marks []time.Time
	step := func(util int, joules float64) {
		t.Helper()
		l.busy(0, util)
		l.use(0, joules)
		l.use(1, 2*joules)
		l.settle()
		marks = append(marks, l.counted(0))
		l.tick(2)
	}
	step(20, 100)
	step(95, 300)
	step(50, 200)
	t0, t1, t2 := marks[0], marks[1], marks[2]
	pod := map[string]any{"k8s.pod.uid": podUID("a"), "process.pid": int64(1)}
	got := l.send(pod, labSpan{"outer", t0, t2, -1}, labSpan{"inner", t0, t1, 0}, labSpan{"beside", t1, t2, -1})
	outer := got[0]
	uuid := fmt.Sprintf(fakeUUID, 0)
	want := map[string]any{
		"gpu.uuid": uuid, "gpu.span.utilization.start": 0.2, "gpu.span.utilization.end": 0.5, "gpu.span.utilization.max": 0.95,
		"gpu.span.utilization.mean": l.mean("gpu.utilization", 0, t0, t2), "gpu.span.workload.energy": 500., "gpu.span.energy": 100., "gpu.span.energy.basis": "counter",
	}
	for key, v := range want {
		if diff := cmp.Diff(v, outer[key], cmpopts.EquateApprox(1e-6, 1e-3)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	if !strings.Contains(outer["events"].(string), "gpu_high_utilization") {
		t.Errorf("events of a span above 0.9: %q", outer["events"])
	}
	sum := 0.0
	for _, span := range got {
		sum += span["gpu.span.energy"].(float64)
	}
	if math.Abs(sum-500) > 1e-3 {
		t.Errorf("the spans have %v J, the counter counted 500", sum)
	}
	both := l.send(map[string]any{"k8s.pod.uid": podUID("a")}, labSpan{"all", t0, t2, -1})[0]
	if diff := cmp.Diff([]any{uuid, fmt.Sprintf(fakeUUID, 1)}, both["gpu.uuid"]); diff != "" || math.Abs(both["gpu.span.energy"].(float64)-1000) > 1e-3 {
		t.Errorf("the pod has %v J left (-want +got):\n%s", both["gpu.span.energy"], diff)
	}
	second := l.send(map[string]any{"container.id": containerID("a"), "process.pid": int64(2)}, labSpan{"second", t0, t2, -1})[0]
	if second["gpu.uuid"] != fmt.Sprintf(fakeUUID, 1) || second["gpu.span.workload.energy"].(float64) < 999 {
		t.Errorf("process 2 of the container has %v", second)
	}

	l.leave("a")
	l.pod("b", 0)
	l.heard()
	step(40, 50)
	end := marks[len(marks)-1].Add(time.Nanosecond)
	gone := l.send(pod, labSpan{"gone", t1, end, -1})[0]
	if _, there := gone["gpu.span.utilization.end"]; there || gone["gpu.span.utilization.start"] != 0.95 {
		t.Errorf("a span of a pod that was replaced: %v", gone)
	}
	next := l.send(map[string]any{"k8s.pod.name": "b", "k8s.namespace.name": "ns"}, labSpan{"next", t1, end, -1})[0]
	if _, there := next["gpu.span.utilization.start"]; there || next["gpu.span.utilization.end"] != 0.4 {
		t.Errorf("a span of its successor: %v", next)
	}
	yesterday := l.send(pod, labSpan{"yesterday", t0.Add(-24 * time.Hour), t0.Add(-23 * time.Hour), -1}, labSpan{"tomorrow", t0.Add(24 * time.Hour), t0.Add(25 * time.Hour), -1})
	for _, span := range yesterday {
		if len(span) != 1 {
			t.Errorf("a span of another day has %v", span)
		}
	}
}
