package cudareceiver

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// emitter turns the ledger into metrics.
type emitter struct {
	cfg     *Config
	mb      *metadata.MetricsBuilder
	began   time.Time // this receiver
	shown   series.Memory
	dropped uint64 // points over MaxSeries so far
	records uint64 // log records over MaxRecords so far
	refused uint64 // processes over what the detector looks at
	blind   bool   // the last reading failed

	ts   pcommon.Timestamp
	room int
	// spread are the histograms that were recorded, in their order, by metric.
	spread map[string][]*distribution
}

func newEmitter(cfg *Config, set receiver.Settings, began time.Time) *emitter {
	return &emitter{
		cfg: cfg, mb: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set), began: began,
	}
}

// emit returns the metrics of a reading. s is nil while there is no tracer.
func (e *emitter) emit(l *ledger, s *tracer.Snapshot, t *node.Tick) pmetric.Metrics {
	e.ts, e.room, e.spread = pcommon.NewTimestampFromTime(t.Time), e.cfg.MaxSeries, map[string][]*distribution{}
	for _, sub := range l.subjects {
		e.subject(l, sub, t.Time)
	}
	e.self(l, s)
	md := e.mb.Emit(metadata.WithResource(ticks.Resource(e.mb.NewResourceBuilder(), t)))
	e.histograms(md)
	e.finish(md, l, s)
	e.shown.End(md, e.ts)
	return md
}

// self records the tracer's own state. No cap cuts it.
func (e *emitter) self(l *ledger, s *tracer.Snapshot) {
	up := int64(0)
	if s != nil {
		e.tracer(s)
	}
	if s != nil && !e.blind {
		up = 1
	}
	e.mb.RecordGpumeterTracerUpDataPoint(e.ts, up)
	e.mb.RecordGpumeterTracerSeriesDroppedDataPoint(e.ts, int64(e.dropped+l.folded))
}

func (e *emitter) tracer(s *tracer.Snapshot) {
	live := int64(0)
	for i := range s.Processes {
		if !s.Processes[i].Ended {
			live++
		}
	}
	e.mb.RecordGpumeterTracerProcessesDataPoint(e.ts, live)
	for _, loss := range append(losses(&s.Losses), loss{"anomaly", e.refused}, loss{"log_record", e.records}) {
		e.mb.RecordGpumeterTracerLossesDataPoint(e.ts, int64(loss.count), loss.reason)
	}
	untraced := map[string]int64{}
	for _, u := range s.Untraced {
		untraced[u.Reason]++
	}
	for _, reason := range slices.Sorted(maps.Keys(untraced)) {
		e.mb.RecordGpumeterTracerUntracedDataPoint(e.ts, untraced[reason], reason)
	}
	type probe struct{ cost, kind, mode string }
	probes := map[probe]int64{}
	for _, lib := range s.Libraries {
		probes[probe{"fast", lib.Kind, lib.Mode}] += int64(lib.Probes - lib.Slow)
		if lib.Slow > 0 {
			probes[probe{"slow", lib.Kind, lib.Mode}] += int64(lib.Slow)
		}
		if lib.Skipped > 0 {
			probes[probe{"skipped", lib.Kind, lib.Mode}] += int64(lib.Skipped)
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(probes), func(a, b probe) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.mode, b.mode), cmp.Compare(a.cost, b.cost))
	}) {
		e.mb.RecordGpumeterTracerProbesDataPoint(e.ts, probes[p], p.cost, p.kind, p.mode)
	}
}

type loss struct {
	reason string
	count  uint64
}

// losses returns all reasons, also those for which nothing was lost: 0 is good to know.
func losses(l *tracer.Losses) []loss {
	full := uint64(0)
	for _, n := range l.MapFull {
		full += n
	}
	return []loss{
		{"event", l.Events},
		{"event_limited", l.Limited},
		{"map_full", full},
		{"missed", l.Missed},
		{"nested", l.Nested},
		{"no_return", l.NoReturn},
		{"unnamed", l.Unnamed},
		{"unreadable", l.Faults},
	}
}

// fits reports whether there is room for one more point.
func (e *emitter) fits() bool {
	if e.room == 0 {
		e.dropped++
		return false
	}
	e.room--
	return true
}

// subject records what is known of one.
func (e *emitter) subject(l *ledger, s *subject, now time.Time) {
	e.times(s)
	if s.live && s.memory != nil {
		e.memory(s)
	}
	for _, cause := range slices.Sorted(maps.Keys(s.anomalies)) {
		e.count(s.anomalies[cause], s, cause, e.mb.RecordGpumeterAnomalyCountDataPoint)
	}
	for _, kind := range slices.Sorted(maps.Keys(s.copies)) {
		e.count(s.copies[kind], s, kind, e.mb.RecordGpuCudaCopyIoDataPoint)
	}
	e.operations(s)
	e.kernels(s)
	e.communicators(l, s, now)
}

// one and two record points that have so many attributes beside the identity, which is
// added later: until then the key of the subject stands for it.
type (
	plainly = func(ts pcommon.Timestamp, v float64, index int64, model, uuid, vendor string)
	one     = func(ts pcommon.Timestamp, v float64, index int64, model, uuid, vendor, attr string)
	counted = func(ts pcommon.Timestamp, v int64, index int64, model, uuid, vendor, attr string)
)

func (e *emitter) count(n uint64, s *subject, attr string, record counted) {
	if e.fits() {
		record(e.ts, int64(n), 0, "", s.key, "", attr)
	}
}

func (e *emitter) times(s *subject) {
	value := func(v float64, record plainly) {
		if e.fits() {
			record(e.ts, v, 0, "", s.key, "")
		}
	}
	if s.id.UUID != "" || s.busy+s.wait+s.bubble > 0 {
		value(s.busy, e.mb.RecordGpuCudaBusyTimeDataPoint)
		value(s.wait, e.mb.RecordGpuCudaSyncWaitDataPoint)
		value(s.bubble, e.mb.RecordGpuCudaHostBubbleDataPoint)
	}
	if s.host == nil {
		return
	}
	split := func(all, inside float64, record one) {
		for _, part := range []struct {
			scope string
			v     float64
		}{{"call", inside}, {"between", max(0, all-inside)}} {
			if e.fits() {
				record(e.ts, part.v, 0, "", s.key, "", part.scope)
			}
		}
	}
	split(s.host.queue, s.host.queueInCall, e.mb.RecordGpuCudaHostRunQueueTimeDataPoint)
	split(s.host.blocked, s.host.blockedInCall, e.mb.RecordGpuCudaHostBlockedTimeDataPoint)
}

func (e *emitter) memory(s *subject) {
	m := s.memory
	count := func(v uint64, record func(pcommon.Timestamp, int64, int64, string, string, string)) {
		if e.fits() {
			record(e.ts, int64(v), 0, "", s.key, "")
		}
	}
	value := func(v float64, record plainly) {
		if e.fits() {
			record(e.ts, v, 0, "", s.key, "")
		}
	}
	count(m.reserved, e.mb.RecordGpuCudaMemoryReservedDataPoint)
	count(m.peak, e.mb.RecordGpuCudaMemoryPeakDataPoint)
	value(m.growth, e.mb.RecordGpuCudaMemoryGrowthDataPoint)
	leak := uint64(0)
	if m.leak {
		leak = 1
	}
	count(leak, e.mb.RecordGpuCudaMemoryLeakDataPoint)
	if m.reserved > 0 {
		value(m.age.Seconds(), e.mb.RecordGpuCudaMemoryAgeDataPoint)
	}
	if m.framework {
		count(m.allocated, e.mb.RecordGpuCudaMemoryAllocatedDataPoint)
		if m.held > 0 {
			value(max(0, 1-float64(m.allocated)/float64(m.held)), e.mb.RecordGpuCudaMemoryFragmentationDataPoint)
		}
	}
}

func (e *emitter) operations(s *subject) {
	for _, k := range slices.SortedFunc(maps.Keys(s.ops), byName) {
		d := &s.ops[k].time
		if e.cfg.Metrics.GpuCudaOperationCount.Enabled && e.fits() {
			e.mb.RecordGpuCudaOperationCountDataPoint(e.ts, int64(d.count), 0, "", s.key, "", string(k.class), k.op)
		}
		if e.cfg.Metrics.GpuCudaOperationTime.Enabled && e.fits() {
			e.mb.RecordGpuCudaOperationTimeDataPoint(e.ts, d.sum, 0, "", s.key, "", string(k.class), k.op)
		}
	}
	if e.cfg.Metrics.GpuCudaOperationDuration.Enabled {
		e.durations(s)
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.errors), func(a, b errorKey) int {
		return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.code, b.code))
	}) {
		if e.fits() {
			e.mb.RecordGpuCudaOperationErrorsDataPoint(e.ts, int64(s.errors[k]), 0, "", s.key, "", int64(k.code), k.op)
		}
	}
}

// durations records how long calls took. By default it is one histogram of each class whose
// times tell something: one costs as many series as eight counters, and a process has a
// dozen functions that it calls to begin with and hardly again.
func (e *emitter) durations(s *subject) {
	list := map[opKey]*distribution{}
	for k, op := range s.ops {
		if e.cfg.PerOperation {
			list[k] = &op.time
			continue
		}
		switch k.class {
		case tracer.Launch, tracer.Graph, tracer.Copy, tracer.Sync, tracer.Coll:
		default:
			continue
		}
		of := opKey{class: k.class}
		if list[of] == nil {
			list[of] = &distribution{}
		}
		list[of].merge(&op.time)
	}
	for _, k := range slices.SortedFunc(maps.Keys(list), byName) {
		if e.fits() {
			e.distribution(metadata.MetricsInfo.GpuCudaOperationDuration.Name, list[k])
			e.mb.RecordGpuCudaOperationDurationDataPoint(e.ts, list[k].sum, 0, "", s.key, "", string(k.class), k.op)
		}
	}
}

func byName(a, b opKey) int { return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.class, b.class)) }

func (e *emitter) kernels(s *subject) {
	for _, name := range slices.Sorted(maps.Keys(s.kernels)) {
		k := s.kernels[name]
		if e.cfg.Metrics.GpuCudaKernelLaunches.Enabled {
			e.count(k.launches, s, name, e.mb.RecordGpuCudaKernelLaunchesDataPoint)
		}
		if e.cfg.Metrics.GpuCudaKernelLaunchTime.Enabled && e.fits() {
			e.mb.RecordGpuCudaKernelLaunchTimeDataPoint(e.ts, k.time, 0, "", s.key, "", name)
		}
		if !s.live || name == other || k.grid == 0 || k.block == 0 {
			continue
		}
		if e.cfg.Metrics.GpuCudaKernelGridSize.Enabled {
			e.count(uint64(k.grid), s, name, e.mb.RecordGpuCudaKernelGridSizeDataPoint)
		}
		if e.cfg.Metrics.GpuCudaKernelBlockSize.Enabled {
			e.count(uint64(k.block), s, name, e.mb.RecordGpuCudaKernelBlockSizeDataPoint)
		}
	}
}

func (e *emitter) communicators(l *ledger, s *subject, now time.Time) {
	for _, k := range slices.SortedFunc(maps.Keys(s.comms), func(a, b commKey) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.rank, b.rank), cmp.Compare(a.size, b.size))
	}) {
		c := s.comms[k]
		size, rank := int64(k.size), int64(k.rank)
		if e.fits() {
			e.mb.RecordNcclCollectiveSequenceDataPoint(e.ts, int64(c.sequence), 0, "", s.key, "", k.id, size, rank)
		}
		if c.barrier.count > 0 && e.cfg.Metrics.NcclCollectiveBarrierWait.Enabled && e.fits() {
			e.distribution(metadata.MetricsInfo.NcclCollectiveBarrierWait.Name, &c.barrier)
			e.mb.RecordNcclCollectiveBarrierWaitDataPoint(e.ts, c.barrier.sum, 0, "", s.key, "", k.id, size, rank)
		}
		if c.live && !c.last.IsZero() && e.fits() {
			e.mb.RecordNcclCollectiveLastAgeDataPoint(e.ts, max(0, now.Sub(c.last).Seconds()), 0, "", s.key, "", k.id, size, rank)
		}
		if c.live && c.grouped && e.fits() {
			behind := int64(0)
			if c.behind {
				behind = 1
			}
			e.mb.RecordNcclRankStragglerDataPoint(e.ts, behind, 0, "", s.key, "", k.id, size, rank)
		}
		for _, op := range slices.Sorted(maps.Keys(c.bus)) {
			if c.live && e.fits() {
				e.mb.RecordNcclCollectiveBusBandwidthDataPoint(e.ts, c.bus[op], 0, "", s.key, "", k.id, size, op, rank)
			}
		}
		e.collectives(l, s, k, c, now)
	}
}

func (e *emitter) collectives(l *ledger, s *subject, of commKey, c *comm, now time.Time) {
	size, rank := int64(of.size), int64(of.rank)
	for _, k := range slices.SortedFunc(maps.Keys(c.ops), func(a, b collKey) int {
		return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.datatype, b.datatype), cmp.Compare(a.reduce, b.reduce), cmp.Compare(a.peer, b.peer))
	}) {
		op := c.ops[k]
		peer := int64(k.peer)
		if e.cfg.Metrics.NcclCollectiveDuration.Enabled && e.fits() {
			e.distribution(metadata.MetricsInfo.NcclCollectiveDuration.Name, &op.time)
			e.mb.RecordNcclCollectiveDurationDataPoint(e.ts, op.time.sum, 0, "", s.key, "", of.id, k.datatype, peer, size, k.op, rank, k.reduce)
		}
		if e.cfg.Metrics.NcclCollectiveMessageSize.Enabled && e.fits() {
			e.distribution(metadata.MetricsInfo.NcclCollectiveMessageSize.Name, &op.size)
			e.mb.RecordNcclCollectiveMessageSizeDataPoint(e.ts, op.size.sum, 0, "", s.key, "", of.id, k.datatype, peer, size, k.op, rank, k.reduce)
		}
		if e.fits() {
			e.mb.RecordNcclCollectiveBytesDataPoint(e.ts, int64(op.bytes), 0, "", s.key, "", of.id, k.datatype, peer, size, k.op, rank, k.reduce)
		}
		if op.errors > 0 && e.fits() {
			e.mb.RecordNcclCollectiveErrorsDataPoint(e.ts, int64(op.errors), 0, "", s.key, "", of.id, k.datatype, peer, size, k.op, rank, k.reduce)
		}
		if span := now.Sub(l.began(s)).Seconds(); c.live && span > 0 && e.fits() {
			e.mb.RecordNcclCollectiveBandwidthDataPoint(e.ts, float64(op.fresh)/span, 0, "", s.key, "", of.id, k.datatype, peer, size, k.op, rank, k.reduce)
		}
	}
}

// distribution notes the histogram of the point that is recorded next.
func (e *emitter) distribution(metric string, d *distribution) {
	e.spread[metric] = append(e.spread[metric], d)
}
