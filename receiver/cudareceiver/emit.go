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
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// emitter converts the ledger to metrics.
type emitter struct {
	cfg     *Config
	mb      *metadata.MetricsBuilder
	began   time.Time // start of this receiver
	shown   series.Memory
	dropped uint64 // points beyond MaxSeries so far
	records uint64 // log records beyond MaxRecords so far
	refused uint64 // processes beyond the detector's capacity
	blind   bool   // the last reading failed

	ts   pcommon.Timestamp
	room int
	// spread has the recorded histograms by metric, in order.
	spread map[string][]*ledger.Distribution
	calls  exemplars
}

func newEmitter(cfg *Config, set receiver.Settings, began time.Time) *emitter {
	return &emitter{
		cfg: cfg, mb: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set), began: began,
	}
}

// emit returns the metrics of a reading. s is nil without a tracer.
func (e *emitter) emit(l *ledger.Ledger, s *tracer.Snapshot, t *node.Tick) pmetric.Metrics {
	e.ts, e.room, e.spread = pcommon.NewTimestampFromTime(t.Time), e.cfg.MaxSeries, map[string][]*ledger.Distribution{}
	e.calls.see(l, s)
	e.calls.publish(s)
	for _, sub := range l.Subjects {
		e.subject(l, sub, t.Time)
	}
	e.self(l, s)
	md := e.mb.Emit(metadata.WithResource(ticks.Resource(e.mb.NewResourceBuilder(), t)))
	e.histograms(md)
	e.finish(md, l, s)
	e.shown.End(md, e.ts)
	return md
}

// self records the tracer's own state. No limit applies to it.
func (e *emitter) self(l *ledger.Ledger, s *tracer.Snapshot) {
	up := int64(0)
	if s != nil {
		e.tracer(s)
	}
	if s != nil && !e.blind {
		up = 1
	}
	e.mb.RecordGpumeterTracerUpDataPoint(e.ts, up)
	e.mb.RecordGpumeterTracerSeriesDroppedDataPoint(e.ts, int64(e.dropped+l.Folded))
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

// losses returns all reasons, including those without losses: an explicit 0 is informative.
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
		{"unmeasured", l.Spared},
	}
}

// fits reports whether there is room for another point.
func (e *emitter) fits() bool {
	if e.room == 0 {
		e.dropped++
		return false
	}
	e.room--
	return true
}

// subject records the metrics of one subject.
func (e *emitter) subject(l *ledger.Ledger, s *ledger.Subject, now time.Time) {
	e.times(s)
	if s.Live && s.Memory != nil {
		e.memory(s)
	}
	for _, cause := range slices.Sorted(maps.Keys(s.Anomalies)) {
		e.count(s.Anomalies[cause], s, cause, e.mb.RecordGpumeterAnomalyCountDataPoint)
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Copies)) {
		e.count(s.Copies[kind], s, kind, e.mb.RecordGpuCudaCopyIoDataPoint)
	}
	e.operations(s)
	e.kernels(s)
	e.communicators(l, s, now)
	e.training(s)
}

// Signatures of recording functions by the number of attributes besides the identity. The identity is
// added later: until then the key of the subject stands for it.
type (
	plainly = func(ts pcommon.Timestamp, v float64, index int64, model, uuid, vendor string)
	one     = func(ts pcommon.Timestamp, v float64, index int64, model, uuid, vendor, attr string)
	counted = func(ts pcommon.Timestamp, v int64, index int64, model, uuid, vendor, attr string)
)

func (e *emitter) count(n uint64, s *ledger.Subject, attr string, record counted) {
	if e.fits() {
		record(e.ts, int64(n), 0, "", s.Key, "", attr)
	}
}

func (e *emitter) times(s *ledger.Subject) {
	value := func(v float64, record plainly) {
		if e.fits() {
			record(e.ts, v, 0, "", s.Key, "")
		}
	}
	if s.ID.UUID != "" || s.Busy+s.Wait+s.Bubble > 0 {
		value(s.Busy, e.mb.RecordGpuCudaBusyTimeDataPoint)
		value(s.Wait, e.mb.RecordGpuCudaSyncWaitDataPoint)
		value(s.Bubble, e.mb.RecordGpuCudaHostBubbleDataPoint)
	}
	if s.Host == nil {
		return
	}
	split := func(all, inside float64, record one) {
		for _, part := range []struct {
			scope string
			v     float64
		}{{"call", inside}, {"between", max(0, all-inside)}} {
			if e.fits() {
				record(e.ts, part.v, 0, "", s.Key, "", part.scope)
			}
		}
	}
	split(s.Host.Queue, s.Host.QueueInCall, e.mb.RecordGpuCudaHostRunQueueTimeDataPoint)
	split(s.Host.Blocked, s.Host.BlockedInCall, e.mb.RecordGpuCudaHostBlockedTimeDataPoint)
}

func (e *emitter) memory(s *ledger.Subject) {
	m := s.Memory
	count := func(v uint64, record func(pcommon.Timestamp, int64, int64, string, string, string)) {
		if e.fits() {
			record(e.ts, int64(v), 0, "", s.Key, "")
		}
	}
	value := func(v float64, record plainly) {
		if e.fits() {
			record(e.ts, v, 0, "", s.Key, "")
		}
	}
	count(m.Reserved, e.mb.RecordGpuCudaMemoryReservedDataPoint)
	count(m.Peak, e.mb.RecordGpuCudaMemoryPeakDataPoint)
	value(m.Growth, e.mb.RecordGpuCudaMemoryGrowthDataPoint)
	leak := uint64(0)
	if m.Leak {
		leak = 1
	}
	count(leak, e.mb.RecordGpuCudaMemoryLeakDataPoint)
	if m.Reserved > 0 {
		value(m.Age.Seconds(), e.mb.RecordGpuCudaMemoryAgeDataPoint)
	}
	if m.Framework {
		count(m.Allocated, e.mb.RecordGpuCudaMemoryAllocatedDataPoint)
		if m.Held > 0 {
			value(max(0, 1-float64(m.Allocated)/float64(m.Held)), e.mb.RecordGpuCudaMemoryFragmentationDataPoint)
		}
	}
}

func (e *emitter) operations(s *ledger.Subject) {
	for _, k := range slices.SortedFunc(maps.Keys(s.Ops), byName) {
		d := &s.Ops[k].Time
		if e.cfg.Metrics.GpuCudaOperationCount.Enabled && e.fits() {
			e.mb.RecordGpuCudaOperationCountDataPoint(e.ts, int64(d.Count), 0, "", s.Key, "", string(k.Class), k.Op)
		}
		if e.cfg.Metrics.GpuCudaOperationTime.Enabled && e.fits() {
			e.mb.RecordGpuCudaOperationTimeDataPoint(e.ts, d.Sum, 0, "", s.Key, "", string(k.Class), k.Op)
		}
	}
	if e.cfg.Metrics.GpuCudaOperationDuration.Enabled {
		e.durations(s)
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.Errors), func(a, b ledger.ErrorKey) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Code, b.Code))
	}) {
		if e.fits() {
			e.mb.RecordGpuCudaOperationErrorsDataPoint(e.ts, int64(s.Errors[k]), 0, "", s.Key, "", int64(k.Code), k.Op)
		}
	}
}

// durations records call durations. By default there is one histogram per class whose durations are
// informative: a histogram costs as many series as eight counters, and a process has a dozen functions
// that it calls only at startup.
func (e *emitter) durations(s *ledger.Subject) {
	list := map[ledger.OpKey]*ledger.Distribution{}
	for k, op := range s.Ops {
		if e.cfg.PerOperation {
			list[k] = &op.Time
			continue
		}
		switch k.Class {
		case tracer.Launch, tracer.Graph, tracer.Copy, tracer.Sync, tracer.Coll:
		default:
			continue
		}
		of := ledger.OpKey{Class: k.Class}
		if list[of] == nil {
			list[of] = &ledger.Distribution{}
		}
		list[of].Merge(&op.Time)
	}
	for _, k := range slices.SortedFunc(maps.Keys(list), byName) {
		if e.fits() {
			e.distribution(metadata.MetricsInfo.GpuCudaOperationDuration.Name, list[k])
			e.mb.RecordGpuCudaOperationDurationDataPoint(e.ts, list[k].Sum, 0, "", s.Key, "", string(k.Class), k.Op)
		}
	}
}

func byName(a, b ledger.OpKey) int {
	return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Class, b.Class))
}

func (e *emitter) kernels(s *ledger.Subject) {
	for _, name := range slices.Sorted(maps.Keys(s.Kernels)) {
		k := s.Kernels[name]
		if e.cfg.Metrics.GpuCudaKernelLaunches.Enabled {
			e.count(k.Launches, s, name, e.mb.RecordGpuCudaKernelLaunchesDataPoint)
		}
		if e.cfg.Metrics.GpuCudaKernelLaunchTime.Enabled && e.fits() {
			e.mb.RecordGpuCudaKernelLaunchTimeDataPoint(e.ts, k.Time, 0, "", s.Key, "", name)
		}
		if !s.Live || name == ledger.Other || k.Grid == 0 || k.Block == 0 {
			continue
		}
		if e.cfg.Metrics.GpuCudaKernelGridSize.Enabled {
			e.count(uint64(k.Grid), s, name, e.mb.RecordGpuCudaKernelGridSizeDataPoint)
		}
		if e.cfg.Metrics.GpuCudaKernelBlockSize.Enabled {
			e.count(uint64(k.Block), s, name, e.mb.RecordGpuCudaKernelBlockSizeDataPoint)
		}
	}
}

func (e *emitter) communicators(l *ledger.Ledger, s *ledger.Subject, now time.Time) {
	for _, k := range slices.SortedFunc(maps.Keys(s.Comms), func(a, b ledger.CommKey) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Size, b.Size))
	}) {
		c := s.Comms[k]
		size, rank := int64(k.Size), int64(k.Rank)
		if e.fits() {
			e.mb.RecordNcclCollectiveSequenceDataPoint(e.ts, int64(c.Sequence), 0, "", s.Key, "", k.ID, size, rank)
		}
		if c.Barrier.Count > 0 && e.cfg.Metrics.NcclCollectiveBarrierWait.Enabled && e.fits() {
			e.distribution(metadata.MetricsInfo.NcclCollectiveBarrierWait.Name, &c.Barrier)
			e.mb.RecordNcclCollectiveBarrierWaitDataPoint(e.ts, c.Barrier.Sum, 0, "", s.Key, "", k.ID, size, rank)
		}
		if c.Live && !c.Last.IsZero() && e.fits() {
			e.mb.RecordNcclCollectiveLastAgeDataPoint(e.ts, max(0, now.Sub(c.Last).Seconds()), 0, "", s.Key, "", k.ID, size, rank)
		}
		if c.Live && c.Grouped && e.fits() {
			behind := int64(0)
			if c.Behind {
				behind = 1
			}
			e.mb.RecordNcclRankStragglerDataPoint(e.ts, behind, 0, "", s.Key, "", k.ID, size, rank)
		}
		for _, op := range slices.Sorted(maps.Keys(c.Bus)) {
			if c.Live && e.fits() {
				e.mb.RecordNcclCollectiveBusBandwidthDataPoint(e.ts, c.Bus[op], 0, "", s.Key, "", k.ID, size, op, rank)
			}
		}
		e.collectives(l, s, k, c, now)
	}
}

func (e *emitter) collectives(l *ledger.Ledger, s *ledger.Subject, of ledger.CommKey, c *ledger.Comm, now time.Time) {
	size, rank := int64(of.Size), int64(of.Rank)
	for _, k := range slices.SortedFunc(maps.Keys(c.Ops), func(a, b ledger.CollKey) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Datatype, b.Datatype), cmp.Compare(a.Reduce, b.Reduce), cmp.Compare(a.Peer, b.Peer))
	}) {
		op := c.Ops[k]
		peer := int64(k.Peer)
		if e.cfg.Metrics.NcclCollectiveDuration.Enabled && e.fits() {
			e.distribution(metadata.MetricsInfo.NcclCollectiveDuration.Name, &op.Time)
			e.mb.RecordNcclCollectiveDurationDataPoint(e.ts, op.Time.Sum, 0, "", s.Key, "", of.ID, k.Datatype, peer, size, k.Op, rank, k.Reduce)
		}
		if e.cfg.Metrics.NcclCollectiveMessageSize.Enabled && e.fits() {
			e.distribution(metadata.MetricsInfo.NcclCollectiveMessageSize.Name, &op.Size)
			e.mb.RecordNcclCollectiveMessageSizeDataPoint(e.ts, op.Size.Sum, 0, "", s.Key, "", of.ID, k.Datatype, peer, size, k.Op, rank, k.Reduce)
		}
		if e.fits() {
			e.mb.RecordNcclCollectiveBytesDataPoint(e.ts, int64(op.Bytes), 0, "", s.Key, "", of.ID, k.Datatype, peer, size, k.Op, rank, k.Reduce)
		}
		if op.Errors > 0 && e.fits() {
			e.mb.RecordNcclCollectiveErrorsDataPoint(e.ts, int64(op.Errors), 0, "", s.Key, "", of.ID, k.Datatype, peer, size, k.Op, rank, k.Reduce)
		}
		if span := now.Sub(l.Began(s)).Seconds(); c.Live && span > 0 && e.fits() {
			e.mb.RecordNcclCollectiveBandwidthDataPoint(e.ts, float64(op.Fresh)/span, 0, "", s.Key, "", of.ID, k.Datatype, peer, size, k.Op, rank, k.Reduce)
		}
	}
}

// distribution queues the histogram of the next recorded point.
func (e *emitter) distribution(metric string, d *ledger.Distribution) {
	e.spread[metric] = append(e.spread[metric], d)
}
