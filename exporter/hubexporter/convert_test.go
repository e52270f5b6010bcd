package hubexporter

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// now is when the tests are.
var now = time.Date(2026, 3, 7, 13, 14, 15, 161_000_000, time.UTC)

func at(ago time.Duration) pcommon.Timestamp { return pcommon.NewTimestampFromTime(now.Add(-ago)) }

func openStore(t testing.TB) *hub.Store {
	t.Helper()
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// lines returns all samples of a store, a series a line: name{labels} seconds ago:value.
func lines(t *testing.T, s *hub.Store) []string {
	t.Helper()
	series, err := s.Raw(t.Context(), `{__name__!=""}`, now.Add(-48*time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, x := range series {
		var pairs []string
		for _, k := range slices.Sorted(maps.Keys(x.Labels)) {
			if k != "__name__" {
				pairs = append(pairs, k+"="+x.Labels[k])
			}
		}
		line := x.Labels["__name__"] + "{" + strings.Join(pairs, ",") + "}"
		for _, p := range x.Points {
			line += fmt.Sprintf(" %g:%g", now.Sub(p.Time).Seconds(), p.Value)
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

// node returns metrics of one resource, and where to add some.
func node(attrs map[string]any) (pmetric.Metrics, pmetric.MetricSlice) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	if err := rm.Resource().Attributes().FromRaw(attrs); err != nil {
		panic(err)
	}
	return md, rm.ScopeMetrics().AppendEmpty().Metrics()
}

func add(to pmetric.MetricSlice, name, unit string) pmetric.Metric {
	m := to.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	return m
}

func cumulative(m pmetric.Metric) pmetric.Sum {
	s := m.SetEmptySum()
	s.SetIsMonotonic(true)
	s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	return s
}

// Catches names, labels or values other than those that Prometheus gives the same OTLP.
func TestConvert(t *testing.T) {
	md, ms := node(map[string]any{
		"host.name": "node-a", "service.name": "gpumeter", "service.namespace": "infra", "service.instance.id": "node-a", "os.type": "linux",
	})
	g := add(ms, "gpu.utilization", "1").SetEmptyGauge().DataPoints().AppendEmpty()
	g.SetTimestamp(at(10 * time.Second))
	g.SetDoubleValue(0.5)
	g.Attributes().PutStr("gpu.uuid", "GPU-1")
	g.Attributes().PutStr("a.b", "1") // become the same label
	g.Attributes().PutStr("a_b", "2")
	g.Attributes().PutStr("host.name", "the point wins")
	g.Attributes().PutStr("empty", "")

	c := cumulative(add(ms, "gpu.energy", "J")).DataPoints().AppendEmpty()
	c.SetStartTimestamp(at(time.Minute))
	c.SetTimestamp(at(10 * time.Second))
	c.SetIntValue(7)

	n := add(ms, "queue.length", "{item}").SetEmptySum()
	n.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	p := n.DataPoints().AppendEmpty()
	p.SetStartTimestamp(at(time.Minute))
	p.SetTimestamp(at(10 * time.Second))
	p.SetIntValue(-3)

	hm := add(ms, "op.duration", "s").SetEmptyHistogram()
	hm.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	h := hm.DataPoints().AppendEmpty()
	h.SetTimestamp(at(10 * time.Second))
	h.SetCount(6)
	h.SetSum(1.5)
	h.ExplicitBounds().FromRaw([]float64{0.001, 10})
	h.BucketCounts().FromRaw([]uint64{1, 2, 3})

	sp := add(ms, "rpc", "s").SetEmptySummary().DataPoints().AppendEmpty()
	sp.SetTimestamp(at(10 * time.Second))
	sp.SetCount(2)
	sp.SetSum(3)
	q := sp.QuantileValues().AppendEmpty()
	q.SetQuantile(0.5)
	q.SetValue(1.25)

	s := openStore(t)
	r, err := NewWriter(s, nil).Metrics(t.Context(), md)
	if err != nil || r.Refused != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	const own = "host_name=node-a,instance=node-a,job=infra/gpumeter"
	want := []string{
		"gpu_energy_joules_total{" + own + "} 60:0 10:7",
		"gpu_utilization_ratio{a_b=1;2,gpu_uuid=GPU-1,host_name=the point wins,instance=node-a,job=infra/gpumeter} 10:0.5",
		"op_duration_seconds_bucket{" + own + ",le=+Inf} 10:6",
		"op_duration_seconds_bucket{" + own + ",le=0.001} 10:1",
		"op_duration_seconds_bucket{" + own + ",le=10} 10:3",
		"op_duration_seconds_count{" + own + "} 10:6",
		"op_duration_seconds_sum{" + own + "} 10:1.5",
		"queue_length{" + own + "} 10:-3",
		"rpc_seconds_count{" + own + "} 10:2",
		"rpc_seconds_sum{" + own + "} 10:3",
		"rpc_seconds{" + own + ",quantile=0.5} 10:1.25",
		"target_info{host_name=node-a,instance=node-a,job=infra/gpumeter,os_type=linux} 10:1",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, lines(t, s)); diff != "" {
		t.Error(diff)
	}
	if f := s.Families("gpu_energy_joules_total"); f["gpu_energy_joules_total"] != (hub.Family{Type: "counter", Unit: "joules"}) {
		t.Errorf("%+v", f)
	}
}

// Catches a bad point that takes its neighbours with it, and refusals without a count.
func TestConvertRefuses(t *testing.T) {
	s := openStore(t)
	md, ms := node(nil)
	good := add(ms, "good", "").SetEmptyGauge().DataPoints()
	p := good.AppendEmpty()
	p.SetTimestamp(at(time.Second))
	p.SetDoubleValue(1)
	p.Attributes().PutStr("", "x")
	good.AppendEmpty().SetTimestamp(at(time.Second)) // no value

	d := add(ms, "delta", "").SetEmptySum()
	d.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
	d.DataPoints().AppendEmpty()
	d.DataPoints().AppendEmpty()
	add(ms, "unspecified", "").SetEmptySum().DataPoints().AppendEmpty()
	add(ms, "nothing", "")
	add(ms, "", "").SetEmptyGauge().DataPoints().AppendEmpty()
	h := add(ms, "short", "").SetEmptyHistogram()
	h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	hp := h.DataPoints().AppendEmpty()
	hp.SetTimestamp(at(time.Second))
	hp.ExplicitBounds().FromRaw([]float64{1, 2})
	hp.BucketCounts().FromRaw([]uint64{1})
	old := add(ms, "old", "").SetEmptyGauge().DataPoints().AppendEmpty()
	old.SetTimestamp(1)
	old.SetDoubleValue(1)

	r, err := NewWriter(s, nil).Metrics(t.Context(), md)
	if err != nil {
		t.Fatal(err)
	}
	if r.Accepted != 1 || r.Refused != 8 || r.Why == "" {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff([]string{"good{} 1:1"}, lines(t, s)); diff != "" {
		t.Error(diff)
	}
	for why, want := range map[hub.Reason]uint64{hub.Delta: 2, hub.Invalid: 5, hub.TooOld: 1, hub.BadLabel: 1} {
		if got := s.Refusals().Count(why); got != want {
			t.Errorf("reason %d: %d, want %d", why, got, want)
		}
	}
}

// Catches a series that goes on after its end was sent.
func TestConvertEnd(t *testing.T) {
	s := openStore(t)
	w := NewWriter(s, nil)
	for _, ended := range []bool{false, true} {
		md, ms := node(nil)
		p := add(ms, "g", "").SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetTimestamp(at(20 * time.Second))
		p.SetDoubleValue(1)
		if ended {
			p.SetTimestamp(at(10 * time.Second))
			p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		}
		if r, err := w.Metrics(t.Context(), md); err != nil || r.Refused != 0 {
			t.Fatalf("%+v %v", r, err)
		}
	}
	got, err := s.Instant(t.Context(), "g", now)
	if err != nil || len(got) != 0 {
		t.Errorf("%v %v", got, err)
	}
}

// Catches hostile times that make a request take for ever.
func TestConvertWideTimes(t *testing.T) {
	s := openStore(t)
	md, ms := node(map[string]any{"service.name": "x", "os.type": "linux"})
	points := add(ms, "g", "").SetEmptyGauge().DataPoints()
	for _, ts := range []pcommon.Timestamp{0, 1, at(time.Second), math.MaxInt64, math.MaxUint64} {
		p := points.AppendEmpty()
		p.SetTimestamp(ts)
		p.SetDoubleValue(1)
	}
	if _, err := NewWriter(s, nil).Metrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
}

// FuzzMetrics looks for a body that stops the hub. What is taken must be there to read.
func FuzzMetrics(f *testing.F) {
	md, ms := node(map[string]any{"host.name": "a", "service.name": "b"})
	p := cumulative(add(ms, "gpu.energy", "J")).DataPoints().AppendEmpty()
	p.SetStartTimestamp(at(time.Minute))
	p.SetTimestamp(at(time.Second))
	p.SetDoubleValue(1)
	e := add(ms, "e", "s").SetEmptyExponentialHistogram()
	e.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	x := e.DataPoints().AppendEmpty()
	x.SetTimestamp(at(time.Second))
	x.SetCount(3)
	x.SetScale(9)
	x.Positive().BucketCounts().FromRaw([]uint64{1, 2})
	body, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f})
	s := openStore(f)
	w := NewWriter(s, nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		if checkProto(body) != nil {
			return
		}
		md, err := (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(body)
		if err != nil {
			return
		}
		_, _ = w.Metrics(t.Context(), md)
		if _, err := s.Instant(t.Context(), `count({__name__!=""})`, now); err != nil {
			t.Error(err)
		}
	})
}

func stampNow() pcommon.Timestamp { return pcommon.NewTimestampFromTime(time.Now()) }
