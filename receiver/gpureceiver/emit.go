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

// Emitter converts ticks to metrics.
type Emitter struct {
	cfg     *Config
	mb      *metadata.MetricsBuilder
	device  []plain // of a physical device
	part    []plain // of a partition
	dropped float64 // points beyond MaxSeries so far
	fold    fold
	last    *node.Tick
	// runtimes has the start times of the runtimes' counters at the last tick.
	runtimes epochs
	// latencies are the histograms that build recorded.
	latencies []*device.Latency
}

// plain is a metric whose only attributes are the identity of the device or partition.
type plain struct {
	value  func(*node.Reading) device.Value
	record func(ts pcommon.Timestamp, v float64, index int64, model, uuid, vendor string)
}

// NewEmitter returns an Emitter. It is not safe for concurrent use.
func NewEmitter(cfg *Config, set receiver.Settings) *Emitter {
	mb := metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set)
	return &Emitter{cfg: cfg, mb: mb, device: deviceMetrics(mb), part: partitionMetrics(mb)}
}

// deviceMetrics are the metrics of a physical device with a single value.
func deviceMetrics(mb *metadata.MetricsBuilder) []plain {
	throttled := func(b device.Buckets) func(*node.Reading) device.Value {
		return func(r *node.Reading) device.Value { return r.Throttled(b) }
	}
	return []plain{
		{func(r *node.Reading) device.Value { return r.Busy }, mb.RecordGpuUtilizationDataPoint},
		{func(r *node.Reading) device.Value { return r.UtilizationPeak.Compute }, mb.RecordGpuUtilizationPeakDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Used }, mb.RecordGpuMemoryUsedDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Free }, mb.RecordGpuMemoryFreeDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Reserved }, mb.RecordGpuMemoryReservedDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Total }, mb.RecordGpuMemoryTotalDataPoint},
		{(*node.Reading).MemoryUtilization, mb.RecordGpuMemoryUtilizationDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.BAR1Used }, mb.RecordGpuMemoryBar1UsedDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.BAR1Total }, mb.RecordGpuMemoryBar1TotalDataPoint},
		{(*node.Reading).Temperature, mb.RecordGpuTemperatureDataPoint},
		{func(r *node.Reading) device.Value { return r.Power().Draw() }, mb.RecordGpuPowerDrawDataPoint},
		{func(r *node.Reading) device.Value { return r.Power().Enforced() }, mb.RecordGpuPowerLimitDataPoint},
		{powerUtilization, mb.RecordGpuPowerUtilizationDataPoint},
		{func(r *node.Reading) device.Value { return r.Energy }, mb.RecordGpuEnergyDataPoint},
		{(*node.Reading).Clock, mb.RecordGpuClockFrequencyDataPoint},
		{(*node.Reading).Voltage, mb.RecordGpuVoltageDataPoint},
		{func(r *node.Reading) device.Value { return r.Current }, mb.RecordGpuCurrentDataPoint},
		{func(r *node.Reading) device.Value { return r.PerformanceState }, mb.RecordGpuPerformanceStateDataPoint},
		{throttled(device.BucketPower), mb.RecordGpuThrottlePowerActiveDataPoint},
		{throttled(device.BucketThermal), mb.RecordGpuThrottleThermalActiveDataPoint},
		{throttled(device.BucketSW), mb.RecordGpuThrottleSwActiveDataPoint},
		{throttled(device.BucketHW), mb.RecordGpuThrottleHwActiveDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.EngineActive }, mb.RecordGpuEngineActiveDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.SMActive }, mb.RecordGpuSmActiveDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.SMOccupancy }, mb.RecordGpuSmOccupancyDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.DRAMActive }, mb.RecordGpuDramActiveDataPoint},
		{func(r *node.Reading) device.Value { return r.PCIe.Generation }, mb.RecordGpuPcieLinkGenerationDataPoint},
		{func(r *node.Reading) device.Value { return r.PCIe.GenerationMax }, mb.RecordGpuPcieLinkGenerationMaxDataPoint},
		{func(r *node.Reading) device.Value { return r.PCIe.Width }, mb.RecordGpuPcieLinkWidthDataPoint},
		{func(r *node.Reading) device.Value { return r.PCIe.WidthMax }, mb.RecordGpuPcieLinkWidthMaxDataPoint},
		{func(r *node.Reading) device.Value { return r.PCIe.Replays }, mb.RecordGpuPcieReplaysDataPoint},
		{func(r *node.Reading) device.Value { return r.SRAMThreshold }, mb.RecordGpuEccSramThresholdExceededDataPoint},
		{func(r *node.Reading) device.Value { return r.RowRemap.Pending }, mb.RecordGpuRowRemapPendingDataPoint},
		{func(r *node.Reading) device.Value { return r.RowRemap.Failure }, mb.RecordGpuRowRemapFailureDataPoint},
		{func(r *node.Reading) device.Value { return r.PageRetirement.Pending }, mb.RecordGpuPageRetirementPendingDataPoint},
		{func(r *node.Reading) device.Value { return r.PageRetirement.Failure }, mb.RecordGpuPageRetirementFailureDataPoint},
		{func(r *node.Reading) device.Value { return r.RecoveryAction }, mb.RecordGpuRecoveryActionDataPoint},
		{func(r *node.Reading) device.Value { return r.Fabric.State }, mb.RecordGpuFabricStateDataPoint},
		{func(r *node.Reading) device.Value { return r.Fabric.Health }, mb.RecordGpuFabricHealthDataPoint},
		{func(r *node.Reading) device.Value { return r.Status }, mb.RecordGpuDeviceStatusDataPoint},
		{func(r *node.Reading) device.Value { return r.Heartbeat }, mb.RecordGpuHeartbeatDataPoint},
		{func(r *node.Reading) device.Value { return r.Runtime.Queue }, mb.RecordGpuRuntimeQueueSizeDataPoint},
		{func(r *node.Reading) device.Value { return r.Runtime.Idle }, mb.RecordGpuRuntimeIdleTimeDataPoint},
		{func(r *node.Reading) device.Value { return r.Runtime.Operations }, mb.RecordGpuRuntimeOperationsDataPoint},
	}
}

// powerUtilization returns the power draw relative to the limit.
func powerUtilization(r *node.Reading) device.Value {
	p := r.Power()
	return p.Draw().Ratio(p.Enforced()).Or(p.Utilization)
}

// partitionMetrics are the metrics with a single value that a partition reports itself.
func partitionMetrics(mb *metadata.MetricsBuilder) []plain {
	return []plain{
		{func(r *node.Reading) device.Value { return r.Utilization.Compute }, mb.RecordGpuPartitionUtilizationDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Used }, mb.RecordGpuPartitionMemoryUsedDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Free }, mb.RecordGpuPartitionMemoryFreeDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Reserved }, mb.RecordGpuPartitionMemoryReservedDataPoint},
		{func(r *node.Reading) device.Value { return r.Memory.Total }, mb.RecordGpuPartitionMemoryTotalDataPoint},
		{(*node.Reading).MemoryUtilization, mb.RecordGpuPartitionMemoryUtilizationDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.EngineActive }, mb.RecordGpuPartitionEngineActiveDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.SMActive }, mb.RecordGpuPartitionSmActiveDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.SMOccupancy }, mb.RecordGpuPartitionSmOccupancyDataPoint},
		{func(r *node.Reading) device.Value { return r.Profile.DRAMActive }, mb.RecordGpuPartitionDramActiveDataPoint},
		{func(r *node.Reading) device.Value { return r.Runtime.Operations }, mb.RecordGpuPartitionRuntimeOperationsDataPoint},
	}
}

// Emit returns the metrics of one tick. Series of the previous tick that ended with their device or
// owner get a final point without a value.
func (e *Emitter) Emit(t node.Tick) pmetric.Metrics {
	runtimes := e.runtimes.next(t)
	t = e.fold.apply(t, e.cfg.MaxSeries/2/perHolder, func() int { return (e.cfg.MaxSeries - e.others(t, runtimes)) / perHolder })
	md := e.build(t, runtimes)
	if e.last != nil && ended(*e.last, t) {
		series.End(md, e.build(*e.last, e.runtimes), pcommon.NewTimestampFromTime(t.Time))
	}
	e.last, e.runtimes = &t, runtimes
	e.dropped += float64(trim(md, e.cfg.MaxSeries))
	return md
}

// others returns how many points a tick has besides those of workloads with series of their own.
func (e *Emitter) others(t node.Tick, runtimes epochs) int {
	t.Readings = slices.Clone(t.Readings)
	rest := 0 // unallocated, unattributed and other of each device
	for i := range t.Readings {
		if t.Readings[i].Holders = nil; t.Readings[i].ID.Parent == "" {
			rest += 3 * perHolder
		}
	}
	return e.build(t, runtimes).DataPointCount() + rest
}

func (e *Emitter) build(t node.Tick, runtimes epochs) pmetric.Metrics {
	e.latencies = e.latencies[:0]
	ts := pcommon.NewTimestampFromTime(t.Time)
	for i := range t.Readings {
		p := newPoint(e, ts, &t.Readings[i])
		p.up()
		if t.Readings[i].ID.Parent == "" {
			p.health(t.Findings)
			p.xids()
			p.holders()
		}
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
	if !t.Started.IsZero() {
		e.mb.RecordGpumeterAgentStartTimeDataPoint(ts, float64(t.Started.UnixMilli())/1e3)
	}
	paused, _ := device.Flag(t.Paused).Get()
	e.mb.RecordGpumeterPausedDataPoint(ts, paused)
	e.mb.RecordGpumeterEventsDroppedDataPoint(ts, float64(t.LostEvents))
	e.mb.RecordGpumeterTicksLostDataPoint(ts, float64(t.LostTicks))
	e.mb.RecordGpumeterSeriesDroppedDataPoint(ts, e.dropped)
	for i, s := range t.Attribution {
		if i > 0 && t.Attribution[i-1].Source == s.Source && t.Attribution[i-1].Reason == s.Reason {
			continue // several details of one source
		}
		e.mb.RecordGpumeterAttributionStatusDataPoint(ts, 1, string(s.Reason), s.Source)
	}
	for _, s := range t.Sources {
		if s.State == node.SourceAbsentState && s.Errors == 0 {
			continue // most machines have devices of a single vendor
		}
		e.mb.RecordGpumeterReaderErrorsDataPoint(ts, float64(s.Errors), s.Name)
		e.mb.RecordGpumeterReaderRejectedDataPoint(ts, float64(s.Rejected), s.Name)
	}
}

// topProcesses returns the n processes with the most memory.
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
