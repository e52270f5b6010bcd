//go:build linux

package demo

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/node"
)

// course is how a simulated training goes.
type course struct {
	step        time.Duration // one step, with its waits
	data, ranks float64       // part of it that waits for data, and for other ranks
	mfu         float64
	bytes       float64       // of a checkpoint, per device
	dies        time.Duration // since its start, 0: never; then it restarts
	down        time.Duration
}

// courses are the trainings of the fleet by the name of their workload: an even one that had to restart, a large
// one that waits for the slow GPU of its node, and one whose loader is too slow.
var courses = map[string]course{
	"llama-sft":          {step: 920 * time.Millisecond, data: 0.05, ranks: 0.03, mfu: 0.41, bytes: 24e9, dies: 9*time.Hour + 17*time.Minute, down: 11 * time.Minute},
	"mixtral-pretrain":   {step: 2600 * time.Millisecond, data: 0.02, ranks: 0.05, mfu: 0.44, bytes: 70e9},
	"mixtral-pretrain-2": {step: 2900 * time.Millisecond, data: 0.02, ranks: 0.14, mfu: 0.38, bytes: 70e9},
	"protein-fold":       {step: 350 * time.Millisecond, data: 0.27, ranks: 0.02, mfu: 0.22, bytes: 4e9},
	"reward-model":       {step: 610 * time.Millisecond, data: 0.04, ranks: 0.03, mfu: 0.36, bytes: 15e9},
}

// How a training spends its time.
const (
	trainStarts     = 90 * time.Second // imports and compiles, after its data are there
	trainRuns       = 29*time.Minute + 20*time.Second
	trainSaves      = 40 * time.Second
	trainEvaluates  = 3 * time.Minute
	trainEvaluation = 4 // checkpoints for each evaluation
)

// done is what a training did since it has its devices.
type done struct {
	time                   map[string]float64 // seconds by activity, of each device
	steps, saves, restarts float64
	redone, down           float64 // seconds
}

// after returns what a training did in a time. loads is how long it had its devices before it began.
func (c *course) after(up, loads time.Duration) done {
	d := done{time: map[string]float64{}}
	left, now := up, time.Duration(0)
	spend := func(activity string, most time.Duration) time.Duration {
		t := max(0, min(most, left))
		if c.dies > 0 && now < c.dies {
			t = min(t, c.dies-now)
		}
		left, now = left-t, now+t
		if t > 0 && activity != "" {
			d.time[activity] += t.Seconds()
		}
		return t
	}
	running := time.Duration(0) // since the last checkpoint
	run := func() {
		t := spend("", trainRuns)
		running += t
		d.steps += float64(t / c.step)
		d.time["data_wait"] += t.Seconds() * c.data
		d.time["collective_wait"] += t.Seconds() * c.ranks
		d.time["step"] += t.Seconds() * (1 - c.data - c.ranks)
	}
	spend("idle", loads)
	spend("startup", trainStarts)
	for cycle := 1; left > 0; cycle++ {
		if run(); left > 0 && (c.dies == 0 || now != c.dies) {
			if spend("checkpoint", trainSaves) == trainSaves {
				d.saves, running = d.saves+1, 0
			}
			if cycle%trainEvaluation == 0 {
				spend("other", trainEvaluates)
			}
		}
		if c.dies > 0 && now == c.dies && left > 0 {
			now++ // dead once
			down := spend("restart", c.down)
			if down < c.down {
				break
			}
			d.restarts++
			d.down += down.Seconds()
			d.redone += running.Seconds() * (1 - c.data - c.ranks)
			running, cycle = 0, 0
		}
	}
	return d
}

// trainer adds what the trainings of a node show to its telemetry, as the tracer of an agent would.
type trainer struct {
	start time.Time // of the node
	stays map[string]sim.Stay
	first map[string]*done // by workload, as of the first tick that has it
	since map[string]time.Time
	to    Sink
}

func newTrainer(m *Machine, start time.Time, to Sink) *trainer {
	t := &trainer{start: start, stays: map[string]sim.Stay{}, first: map[string]*done{}, since: map[string]time.Time{}, to: to}
	for _, g := range m.Groups {
		for _, s := range g.Stays {
			name := s.Pod.Owner
			if name == "" {
				name = s.Job.Name
			}
			if _, ok := courses[name]; ok {
				t.stays[name+s.Job.ID] = s
			}
		}
	}
	return t
}

// tick sends what the trainings did until then.
func (t *trainer) tick(ctx context.Context, tick *node.Tick) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	attrs := rm.Resource().Attributes()
	attrs.PutStr("host.name", tick.Host)
	attrs.PutStr("service.name", "gpumeter")
	attrs.PutBool("gpumeter.simulated", true)
	for key, value := range tick.Resource {
		attrs.PutStr(key, value)
	}
	b := &batch{metrics: rm.ScopeMetrics().AppendEmpty().Metrics(), byName: map[string]pmetric.Metric{}, at: pcommon.NewTimestampFromTime(tick.Time)}
	leads := map[string]bool{}
	for i := range tick.Readings {
		for j := range tick.Readings[i].Holders {
			if h := &tick.Readings[i].Holders[j]; !h.Ended && h.Allocation > 0 {
				t.device(b, &tick.Readings[i], h, tick.Time, leads)
			}
		}
	}
	if b.metrics.Len() > 0 {
		_ = t.to.metrics.ConsumeMetrics(ctx, md) // a store that refuses says so itself
	}
}

// device adds what a training did on a device. Its first device of a node is that of rank 0.
func (t *trainer) device(b *batch, r *node.Reading, h *node.Holder, now time.Time, leads map[string]bool) {
	c, ok := courses[h.Name]
	key := h.Name + h.Attributes["slurm.job.id"]
	stay, known := t.stays[key]
	began := t.start.Add(stay.From)
	if !ok || !known || now.Before(began) {
		return
	}
	d := c.after(now.Sub(began), stay.Loads)
	if t.first[key] == nil {
		t.first[key], t.since[key] = &d, now
	}
	was := t.first[key]
	b.since = pcommon.NewTimestampFromTime(t.since[key])
	b.put = func(attrs pcommon.Map) {
		for _, a := range h.Identity() {
			attrs.PutStr(a.Key, a.Value)
		}
		attrs.PutStr("gpu.uuid", r.ID.UUID)
		attrs.PutStr("gpu.model", r.ID.Model)
		attrs.PutStr("gpu.vendor", r.ID.Vendor)
		attrs.PutInt("gpu.index", int64(r.ID.Index))
		attrs.PutStr("training.source", "observed")
	}
	for activity, v := range d.time {
		b.sum("training.time", "s", v-was.time[activity], "training.activity", activity)
	}
	b.sum("training.lost.time", "s", d.redone-was.redone, "training.lost.reason", "redone")
	b.sum("training.lost.time", "s", d.down-was.down, "training.lost.reason", "restart")
	b.sum("training.checkpoint.count", "{checkpoint}", d.saves-was.saves)
	b.sum("training.checkpoint.io", "By", (d.saves-was.saves)*c.bytes)
	if u, ok := r.Utilization.Compute.Get(); ok && u > 0 {
		b.gauge("training.mfu", c.mfu*min(1, u/0.9))
	}
	if leads[key] {
		return
	}
	leads[key] = true
	b.sum("training.steps", "{step}", d.steps-was.steps)
	b.sum("training.restarts", "{restart}", d.restarts-was.restarts)
	b.steps("training.step.duration", d.steps-was.steps, c.step.Seconds())
}

// batch collects points.
type batch struct {
	metrics   pmetric.MetricSlice
	byName    map[string]pmetric.Metric
	at, since pcommon.Timestamp
	put       func(pcommon.Map)
}

// metric returns a metric, which is new if make has to give it a kind.
func (b *batch) metric(name, unit string, create func(pmetric.Metric)) pmetric.Metric {
	m, ok := b.byName[name]
	if !ok {
		m = b.metrics.AppendEmpty()
		m.SetName(name)
		m.SetUnit(unit)
		create(m)
		b.byName[name] = m
	}
	return m
}

func (b *batch) sum(name, unit string, v float64, more ...string) {
	m := b.metric(name, unit, func(m pmetric.Metric) {
		m.SetEmptySum().SetIsMonotonic(true)
		m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	})
	p := m.Sum().DataPoints().AppendEmpty()
	p.SetTimestamp(b.at)
	p.SetStartTimestamp(b.since)
	p.SetDoubleValue(max(0, v))
	b.put(p.Attributes())
	for i := 0; i < len(more); i += 2 {
		p.Attributes().PutStr(more[i], more[i+1])
	}
}

func (b *batch) gauge(name string, v float64) {
	p := b.metric(name, "1", func(m pmetric.Metric) { m.SetEmptyGauge() }).Gauge().DataPoints().AppendEmpty()
	p.SetTimestamp(b.at)
	p.SetDoubleValue(v)
	b.put(p.Attributes())
}

// steps adds a histogram of steps that take the same time.
func (b *batch) steps(name string, n, seconds float64) {
	m := b.metric(name, "s", func(m pmetric.Metric) {
		m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	})
	p := m.Histogram().DataPoints().AppendEmpty()
	p.SetTimestamp(b.at)
	p.SetStartTimestamp(b.since)
	p.SetCount(uint64(max(0, n)))
	p.SetSum(max(0, n) * seconds)
	bounds, counts := []float64{0.25, 0.5, 1, 2, 4}, make([]uint64, 6)
	at := 0
	for at < len(bounds) && seconds > bounds[at] {
		at++
	}
	counts[at] = p.Count()
	p.ExplicitBounds().FromRaw(bounds)
	p.BucketCounts().FromRaw(counts)
	b.put(p.Attributes())
}
