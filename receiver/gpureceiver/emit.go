package gpureceiver

import (
	"cmp"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// Emitter turns ticks into metrics.
type Emitter struct {
	cfg     *Config
	mb      *metadata.MetricsBuilder
	plain   []plain
	dropped float64 // points over MaxSeries so far
	last    *node.Tick
	// runtimes are since when those of the last tick count.
	runtimes epochs
	// latencies are those that build recorded.
	latencies []*device.Latency
}

// plain is a metric whose only attributes are the identity of the device.
type plain struct {
	value  func(*device.Sample) device.Value
	record func(ts pcommon.Timestamp, v float64, index int64, model, uuid, vendor string)
}

// NewEmitter returns an Emitter. It is for one goroutine.
func NewEmitter(cfg *Config, set receiver.Settings) *Emitter {
	mb := metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set)
	return &Emitter{cfg: cfg, mb: mb, plain: plainMetrics(mb)}
}

func plainMetrics(mb *metadata.MetricsBuilder) []plain {
	throttled := func(b device.Buckets) func(s *device.Sample) device.Value {
		return func(s *device.Sample) device.Value { return s.Throttled(b) }
	}
	return []plain{
		{func(s *device.Sample) device.Value { return s.Memory.Used }, mb.RecordGpuMemoryUsedDataPoint},
		{func(s *device.Sample) device.Value { return s.Memory.Free }, mb.RecordGpuMemoryFreeDataPoint},
		{func(s *device.Sample) device.Value { return s.Memory.Reserved }, mb.RecordGpuMemoryReservedDataPoint},
		{func(s *device.Sample) device.Value { return s.Memory.Total }, mb.RecordGpuMemoryTotalDataPoint},
		{(*device.Sample).MemoryUtilization, mb.RecordGpuMemoryUtilizationDataPoint},
		{func(s *device.Sample) device.Value { return s.Memory.BAR1Used }, mb.RecordGpuMemoryBar1UsedDataPoint},
		{func(s *device.Sample) device.Value { return s.Memory.BAR1Total }, mb.RecordGpuMemoryBar1TotalDataPoint},
		{func(s *device.Sample) device.Value { return s.Energy }, mb.RecordGpuEnergyDataPoint},
		{func(s *device.Sample) device.Value { return s.Current }, mb.RecordGpuCurrentDataPoint},
		{func(s *device.Sample) device.Value { return s.PerformanceState }, mb.RecordGpuPerformanceStateDataPoint},
		{throttled(device.BucketPower), mb.RecordGpuThrottlePowerActiveDataPoint},
		{throttled(device.BucketThermal), mb.RecordGpuThrottleThermalActiveDataPoint},
		{throttled(device.BucketSW), mb.RecordGpuThrottleSwActiveDataPoint},
		{throttled(device.BucketHW), mb.RecordGpuThrottleHwActiveDataPoint},
		{func(s *device.Sample) device.Value { return s.Profile.EngineActive }, mb.RecordGpuEngineActiveDataPoint},
		{func(s *device.Sample) device.Value { return s.Profile.SMActive }, mb.RecordGpuSmActiveDataPoint},
		{func(s *device.Sample) device.Value { return s.Profile.SMOccupancy }, mb.RecordGpuSmOccupancyDataPoint},
		{func(s *device.Sample) device.Value { return s.Profile.DRAMActive }, mb.RecordGpuDramActiveDataPoint},
		{func(s *device.Sample) device.Value { return s.PCIe.Generation }, mb.RecordGpuPcieLinkGenerationDataPoint},
		{func(s *device.Sample) device.Value { return s.PCIe.GenerationMax }, mb.RecordGpuPcieLinkGenerationMaxDataPoint},
		{func(s *device.Sample) device.Value { return s.PCIe.Width }, mb.RecordGpuPcieLinkWidthDataPoint},
		{func(s *device.Sample) device.Value { return s.PCIe.WidthMax }, mb.RecordGpuPcieLinkWidthMaxDataPoint},
		{func(s *device.Sample) device.Value { return s.PCIe.Replays }, mb.RecordGpuPcieReplaysDataPoint},
		{func(s *device.Sample) device.Value { return s.SRAMThreshold }, mb.RecordGpuEccSramThresholdExceededDataPoint},
		{func(s *device.Sample) device.Value { return s.RowRemap.Pending }, mb.RecordGpuRowRemapPendingDataPoint},
		{func(s *device.Sample) device.Value { return s.RowRemap.Failure }, mb.RecordGpuRowRemapFailureDataPoint},
		{func(s *device.Sample) device.Value { return s.PageRetirement.Pending }, mb.RecordGpuPageRetirementPendingDataPoint},
		{func(s *device.Sample) device.Value { return s.PageRetirement.Failure }, mb.RecordGpuPageRetirementFailureDataPoint},
		{func(s *device.Sample) device.Value { return s.RecoveryAction }, mb.RecordGpuRecoveryActionDataPoint},
		{func(s *device.Sample) device.Value { return s.Fabric.State }, mb.RecordGpuFabricStateDataPoint},
		{func(s *device.Sample) device.Value { return s.Fabric.Health }, mb.RecordGpuFabricHealthDataPoint},
		{func(s *device.Sample) device.Value { return s.Status }, mb.RecordGpuDeviceStatusDataPoint},
		{func(s *device.Sample) device.Value { return s.Heartbeat }, mb.RecordGpuHeartbeatDataPoint},
		{func(s *device.Sample) device.Value { return s.Runtime.Queue }, mb.RecordGpuRuntimeQueueSizeDataPoint},
		{func(s *device.Sample) device.Value { return s.Runtime.Idle }, mb.RecordGpuRuntimeIdleTimeDataPoint},
		{func(s *device.Sample) device.Value { return s.Runtime.Operations }, mb.RecordGpuRuntimeOperationsDataPoint},
	}
}

// Emit returns the metrics of one tick. Series of the tick before that are gone with
// their device or owner have a last point without a value.
func (e *Emitter) Emit(t node.Tick) pmetric.Metrics {
	runtimes := e.runtimes.next(t)
	md := e.build(t, runtimes)
	if e.last != nil && ended(*e.last, t) {
		series.End(md, e.build(*e.last, e.runtimes), pcommon.NewTimestampFromTime(t.Time))
	}
	e.last, e.runtimes = &t, runtimes
	e.dropped += float64(trim(md, e.cfg.MaxSeries))
	return md
}

func (e *Emitter) build(t node.Tick, runtimes epochs) pmetric.Metrics {
	e.latencies = e.latencies[:0]
	ts := pcommon.NewTimestampFromTime(t.Time)
	for i := range t.Readings {
		p := newPoint(e, ts, &t.Readings[i])
		p.up()
		p.health(t.Findings)
		p.xids()
		p.holders()
		if t.Readings[i].Up {
			p.sample()
		}
	}
	e.self(ts, t)

	md := e.mb.Emit(metadata.WithResource(ticks.Resource(e.mb.NewResourceBuilder(), &t)))
	histograms(md, e.latencies)
	decorate(md, t, runtimes)
	return md
}

// self records gpumeter's own state.
func (e *Emitter) self(ts pcommon.Timestamp, t node.Tick) {
	paused, _ := device.Flag(t.Paused).Get()
	e.mb.RecordGpumeterPausedDataPoint(ts, paused)
	e.mb.RecordGpumeterEventsDroppedDataPoint(ts, float64(t.LostEvents))
	e.mb.RecordGpumeterTicksLostDataPoint(ts, float64(t.LostTicks))
	e.mb.RecordGpumeterSeriesDroppedDataPoint(ts, e.dropped)
	for i, s := range t.Attribution {
		if i > 0 && t.Attribution[i-1].Source == s.Source && t.Attribution[i-1].Reason == s.Reason {
			continue // several details of one
		}
		e.mb.RecordGpumeterAttributionStatusDataPoint(ts, 1, string(s.Reason), s.Source)
	}
	for _, s := range t.Sources {
		if s.State == node.SourceAbsentState && s.Errors == 0 {
			continue // most machines have devices of one vendor
		}
		e.mb.RecordGpumeterReaderErrorsDataPoint(ts, float64(s.Errors), s.Name)
	}
}

// topProcesses returns the n processes that hold the most memory.
func topProcesses(list []device.Process, n int) []device.Process {
	if len(list) <= n {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b device.Process) int {
		x, _ := a.MemoryUsed.Get()
		y, _ := b.MemoryUsed.Get()
		return cmp.Compare(y, x)
	})
	return list[:n]
}
