package cudareceiver

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

var began = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// at returns the time of the test after seconds.
func at(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }

// spread returns a histogram in the kernel's format.
func spread(durations ...time.Duration) tracer.Histogram {
	h := tracer.Histogram{Offset: tracer.TimeOffset, Buckets: make([]uint64, tracer.TimeBuckets)}
	for _, d := range durations {
		h.Count++
		h.Sum += d.Seconds()
		h.Buckets[tracer.TimeBucket(uint64(d))]++
	}
	return h
}

// sized is spread for sizes in bytes.
func sized(list ...uint64) tracer.Histogram {
	h := tracer.Histogram{Offset: tracer.SizeOffset, Buckets: make([]uint64, tracer.SizeBuckets)}
	for _, n := range list {
		h.Count++
		h.Sum += float64(n)
		h.Buckets[tracer.SizeBucket(n)]++
	}
	return h
}

func times(n int, d time.Duration) []time.Duration { return slices.Repeat([]time.Duration{d}, n) }

// whoIs is a fake of the workloads that the gpu extension knows.
type whoIs map[uint32]workload.Workload

func (w whoIs) Process(pid uint32) (workload.Workload, bool) {
	x, ok := w[pid]
	return x, ok
}

var (
	llm = workload.Workload{ID: "pod/u1/train", Kind: "deployment", Name: "llm", Team: "search", Attributes: map[string]string{
		"k8s.namespace.name": "ml", "k8s.pod.name": "llm-0",
	}}
	job = workload.Workload{ID: "slurm/7", Kind: "slurm_job", Name: "train", Attributes: map[string]string{"slurm.job.id": "7"}}
)

func uuid(i int) string { return fmt.Sprintf("GPU-%d", i) }

// machine returns a tick of n devices with the PIDs that the driver lists on each.
func machine(n int, pids ...[]uint32) *node.Tick {
	t := &node.Tick{Time: began, Host: "host1", Started: began}
	for i := range n {
		r := node.Reading{Up: true, Sample: device.Sample{ID: device.ID{Vendor: "nvidia", UUID: uuid(i), Index: i, Model: "H200"}}}
		if i < len(pids) {
			for _, pid := range pids[i] {
				r.Processes = append(r.Processes, device.Process{PID: pid})
			}
		}
		t.Readings = append(t.Readings, r)
	}
	return t
}

// bench is a ledger and an emitter under test.
type bench struct {
	*ledger.Ledger
	*emitter
	t    *testing.T
	tick *node.Tick
}

func newBench(t *testing.T, tick *node.Tick, who ledger.Owners, set func(*Config)) *bench {
	cfg := createDefaultConfig().(*Config)
	if set != nil {
		set(cfg)
	}
	b := &bench{ledger.New(cfg.ledger()), newEmitter(cfg, receivertest.NewNopSettings(metadata.Type), began), t, tick}
	b.Owners = who
	return b
}

// read observes a reading and returns its points, see render.
func (b *bench) read(seconds int, processes ...tracer.Process) []string {
	return b.readAll(tracer.Snapshot{Time: at(seconds), Started: began, Processes: processes})
}

func (b *bench) readAll(s tracer.Snapshot) []string {
	b.t.Helper()
	tick := *b.tick
	tick.Time = s.Time
	b.Observe(&s, ledger.NewPlaces(&tick))
	return render(b.emit(b.Ledger, &s, &tick))
}

// render returns one sorted line per point: name, attributes, value, start time.
func render(md pmetric.Metrics) []string {
	var list []string
	for m := range series.Metrics(md) {
		line := func(attrs pcommon.Map, value string, start pcommon.Timestamp, flags pmetric.DataPointFlags) {
			pairs := map[string]string{}
			for k, v := range attrs.All() {
				pairs[k] = v.AsString()
			}
			words := make([]string, 0, len(pairs))
			for _, k := range slices.Sorted(maps.Keys(pairs)) {
				words = append(words, k+"="+pairs[k])
			}
			since := ""
			if start != 0 {
				since = " since " + start.AsTime().Sub(began).String()
			}
			if flags.NoRecordedValue() {
				value = "ended"
			}
			list = append(list, fmt.Sprintf("%s{%s} %s%s", m.Name(), strings.Join(words, ","), value, since))
		}
		switch m.Type() {
		case pmetric.MetricTypeGauge, pmetric.MetricTypeSum:
			var points pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeGauge {
				points = m.Gauge().DataPoints()
			} else {
				points = m.Sum().DataPoints()
			}
			for _, p := range points.All() {
				v := fmt.Sprint(p.IntValue())
				if p.ValueType() == pmetric.NumberDataPointValueTypeDouble {
					v = fmt.Sprint(math.Round(p.DoubleValue()*1e9) / 1e9)
				}
				line(p.Attributes(), v, p.StartTimestamp(), p.Flags())
			}
		case pmetric.MetricTypeHistogram:
			for _, p := range m.Histogram().DataPoints().All() {
				line(p.Attributes(), fmt.Sprintf("n=%d sum=%.9g %v", p.Count(), p.Sum(), p.BucketCounts().AsRaw()), p.StartTimestamp(), p.Flags())
			}
		case pmetric.MetricTypeExponentialHistogram:
			for _, p := range m.ExponentialHistogram().DataPoints().All() {
				line(p.Attributes(), fmt.Sprintf("n=%d sum=%.9g scale=%d offset=%d %v", p.Count(), p.Sum(), p.Scale(), p.Positive().Offset(), p.Positive().BucketCounts().AsRaw()), p.StartTimestamp(), p.Flags())
			}
		}
	}
	slices.Sort(list)
	return list
}

// only returns the lines of a metric.
func only(lines []string, metrics ...string) []string {
	var list []string
	for _, l := range lines {
		if slices.ContainsFunc(metrics, func(m string) bool { return strings.HasPrefix(l, m+"{") }) {
			list = append(list, l)
		}
	}
	return list
}
