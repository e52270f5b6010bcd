package inferencereceiver

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
)

const scope = "github.com/gpumeter/gpumeter/receiver/inferencereceiver"

// emitter converts the readings of one target to metrics.
type emitter struct {
	version string
	id      string
	address string
	port    int64

	growth inference.Growth
	shown  series.Memory
	owner  []workload.Attribute // of the last reading

	// What the last reading said of the engine, which its devices are labeled with.
	provider, model string
}

func newEmitter(id string, u *url.URL, version string) *emitter {
	e := &emitter{version: version, id: id, address: u.Hostname()}
	e.port, _ = strconv.ParseInt(portOf(u), 10, 32) // 0: url.Parse has seen to it that it is a number
	return e
}

// batch has the metrics of a reading by name.
type batch struct {
	to      pmetric.MetricSlice
	ts      pcommon.Timestamp
	owner   []workload.Attribute
	metrics map[string]pmetric.Metric
}

// begin returns an empty batch of the machine of a tick.
func (e *emitter) begin(t *node.Tick, owner *workload.Workload) (pmetric.Metrics, *batch) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	attrs := rm.Resource().Attributes()
	attrs.PutStr("service.name", "gpumeter")
	if t.Host != "" {
		attrs.PutStr("host.name", t.Host)
	}
	if t.Simulated {
		attrs.PutBool("gpumeter.simulated", true)
	}
	for key, value := range t.Resource {
		attrs.PutStr(key, value)
	}
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(scope)
	sm.Scope().SetVersion(e.version)
	sm.Scope().Attributes().PutStr(inference.AttrEngine, e.id) // each engine is a batch of its own
	b := &batch{to: sm.Metrics(), ts: pcommon.NewTimestampFromTime(t.Time), metrics: map[string]pmetric.Metric{}}
	if owner != nil {
		b.owner = owner.Identity()
	}
	return md, b
}

// emit returns the metrics of a reading, nil if it failed. Series that the last reading had and this one
// lacks get a last point without a value. joined is what is known about the engine, nil: nothing. An error says
// that the reading does not follow the last: it counts as failed.
func (e *emitter) emit(t *node.Tick, joined *discover.Engine, r *inference.Reading, took time.Duration) (pmetric.Metrics, error) {
	var about discover.Engine
	if joined != nil {
		about = *joined
	}
	md, out := e.begin(t, about.Workload)
	if !slices.Equal(e.owner, out.owner) {
		e.owner = out.owner
		e.growth.Relabel()
	}
	up := 0.0
	var err error
	if r != nil {
		err = e.growth.Follow(r, t.Time, about.Started)
	}
	if r != nil && err == nil {
		up = 1
		e.provider, e.model = sole(r)
		for i := range r.Points {
			e.put(out, &r.Points[i])
		}
		e.gauge(out, inference.Unmapped, float64(r.Unmapped))
		e.gauge(out, inference.Rejected, float64(r.Rejected))
	}
	for _, id := range about.Devices {
		e.device(out, id)
	}
	e.gauge(out, inference.Up, up)
	e.gauge(out, inference.ReadTime, took.Seconds())
	e.shown.End(md, out.ts)
	return md, err
}

// end returns a last point without a value for each series of the last reading.
func (e *emitter) end(t *node.Tick) pmetric.Metrics {
	md, out := e.begin(t, nil)
	e.shown.End(md, out.ts)
	return md
}

// sole returns the provider and the model of a reading, if it has only one.
func sole(r *inference.Reading) (provider, model string) {
	if len(r.Providers) > 0 {
		provider = r.Providers[0]
	}
	for i := range r.Points {
		m := r.Points[i].Get(inference.AttrModel)
		if model != "" && m != "" && m != model {
			return provider, ""
		}
		if m != "" {
			model = m
		}
	}
	return provider, model
}

// metric returns the metric with a name, which is added if it is not there yet.
func (b *batch) metric(def *inference.Metric) pmetric.Metric {
	m, ok := b.metrics[def.Name]
	if ok {
		return m
	}
	m = b.to.AppendEmpty()
	m.SetName(def.Name)
	m.SetUnit(def.Unit)
	m.SetDescription(def.Description)
	switch def.Kind {
	case inference.Histogram:
		m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	case inference.Gauge:
		m.SetEmptyGauge()
	default:
		s := m.SetEmptySum()
		s.SetIsMonotonic(def.Kind == inference.Counter)
		s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	}
	b.metrics[def.Name] = m
	return m
}

// put adds a point and returns its attributes.
func (e *emitter) put(b *batch, p *inference.Point) pcommon.Map {
	m := b.metric(p.Metric)
	var point series.Point
	switch p.Metric.Kind {
	case inference.Histogram:
		x := m.Histogram().DataPoints().AppendEmpty()
		x.ExplicitBounds().FromRaw(p.Bounds)
		x.BucketCounts().FromRaw(p.Counts)
		x.SetCount(p.Count)
		if !math.IsNaN(p.Sum) {
			x.SetSum(p.Sum)
		}
		point = x
	case inference.Gauge:
		x := m.Gauge().DataPoints().AppendEmpty()
		x.SetDoubleValue(p.Value)
		point = x
	default:
		x := m.Sum().DataPoints().AppendEmpty()
		x.SetDoubleValue(p.Value)
		point = x
	}
	point.SetTimestamp(b.ts)
	series.Start(m, point, p.Since)
	attrs := point.Attributes()
	attrs.EnsureCapacity(3 + len(b.owner) + len(p.Attrs))
	attrs.PutStr(inference.AttrEngine, e.id)
	attrs.PutStr("server.address", e.address)
	attrs.PutInt("server.port", e.port)
	for _, a := range b.owner {
		attrs.PutStr(a.Key, a.Value)
	}
	for _, a := range p.Attrs {
		attrs.PutStr(a.Name, a.Value)
	}
	return attrs
}

func (e *emitter) gauge(b *batch, m *inference.Metric, v float64) pcommon.Map {
	return e.put(b, &inference.Point{Metric: m, Value: v})
}

// device joins the engine with a device, which is named as in the metrics of the device itself.
func (e *emitter) device(b *batch, id device.ID) {
	attrs := e.gauge(b, inference.OnDevice, 1)
	for _, a := range []inference.Attr{{Name: inference.AttrProvider, Value: e.provider}, {Name: inference.AttrModel, Value: e.model}} {
		if a.Value != "" {
			attrs.PutStr(a.Name, a.Value)
		}
	}
	attrs.PutStr("gpu.uuid", id.Physical())
	attrs.PutInt("gpu.index", int64(id.Index))
	attrs.PutStr("gpu.model", id.Model)
	attrs.PutStr("gpu.vendor", id.Vendor)
	if id.Parent != "" {
		attrs.PutStr("gpu.partition.id", id.UUID)
		attrs.PutStr("gpu.partition.profile", id.Profile)
	}
}
