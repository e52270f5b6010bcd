package gpureceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// point records the values of one device at one tick. mdatagen orders the attributes of a metric
// alphabetically, which is why the position of the identity varies below.
type point struct {
	e  *Emitter
	mb *metadata.MetricsBuilder
	ts pcommon.Timestamp
	r  *node.Reading

	index               int64
	model, uuid, vendor string // uuid is the partition's own; decorate distinguishes them
}

func newPoint(e *Emitter, ts pcommon.Timestamp, r *node.Reading) *point {
	return &point{e: e, mb: e.mb, ts: ts, r: r, index: int64(r.ID.Index), model: r.ID.Model, uuid: r.ID.UUID, vendor: r.ID.Vendor}
}

// up records whether the device answered, the only metric of a device that did not.
func (p *point) up() {
	up, _ := device.Flag(p.r.Up).Get()
	record := p.mb.RecordGpuUpDataPoint
	if p.r.ID.Parent != "" {
		record = p.mb.RecordGpuPartitionUpDataPoint
	}
	record(p.ts, up, p.index, p.model, p.uuid, p.vendor)
}

// health records the health of a device, even if the device does not answer.
func (p *point) health(findings []health.Finding) {
	p.mb.RecordGpuHealthDataPoint(p.ts, health.Score(findings, p.uuid), p.index, p.model, p.uuid, p.vendor)
}

// xids records the errors that the driver reported, even of a lost device.
func (p *point) xids() {
	for _, x := range p.r.XIDs {
		p.mb.RecordGpuXidErrorsDataPoint(p.ts, float64(x.Count), p.index, p.model, p.uuid, p.vendor, int64(x.Code))
	}
}

// sample records the values of a device or partition. A partition has its own metrics, so that the plain
// names count each physical device once.
func (p *point) sample() {
	s := &p.r.Sample
	if s.ID.Parent != "" {
		p.plain(p.e.part)
		p.partition(s)
	} else {
		p.plain(p.e.device)
		p.identity(s)
		p.engines(s)
		p.heatAndPower(s)
		p.throttle(s)
		p.interconnects(s)
		p.faults(s)
		p.runtime(s)
	}
	p.processes(s)
}

func (p *point) plain(list []plain) {
	for _, m := range list {
		if v, ok := m.value(p.r).Get(); ok {
			m.record(p.ts, v, p.index, p.model, p.uuid, p.vendor)
		}
	}
}

// partition records the itemized metrics that a partition reports itself.
func (p *point) partition(s *device.Sample) {
	p.tasks(&s.Utilization, p.mb.RecordGpuPartitionEngineUtilizationDataPoint)
	p.pipes(s.Profile.Pipes, p.mb.RecordGpuPartitionPipeActiveDataPoint)
	p.pipes(s.Profile.PipeDetail, p.mb.RecordGpuPartitionPipeDetailActiveDataPoint)
	for _, r := range s.Resets {
		if v, ok := r.Count.Get(); ok {
			p.mb.RecordGpuPartitionResetsDataPoint(p.ts, v, p.index, p.model, r.Type, p.uuid, p.vendor)
		}
	}
	for _, x := range s.Runtime.Executions {
		if v, ok := x.Count.Get(); ok {
			p.mb.RecordGpuPartitionRuntimeExecutionsDataPoint(p.ts, v, p.index, p.model, x.Type, p.uuid, p.vendor)
		}
	}
}

func (p *point) processes(s *device.Sample) {
	for _, proc := range topProcesses(s.Processes, p.e.cfg.MaxProcesses) {
		if v, ok := proc.MemoryUsed.Get(); ok {
			p.mb.RecordGpuProcessMemoryUsedDataPoint(p.ts, v, p.index, p.model, p.uuid, p.vendor, proc.Name, int64(proc.PID))
		}
		if v, ok := proc.Utilization.Get(); ok {
			p.mb.RecordGpuProcessUtilizationDataPoint(p.ts, v, p.index, p.model, p.uuid, p.vendor, proc.Name, int64(proc.PID))
		}
		if v, ok := proc.Occupancy.Get(); ok {
			p.mb.RecordGpuProcessOccupancyDataPoint(p.ts, v, p.index, p.model, p.uuid, p.vendor, proc.Name, int64(proc.PID))
		}
	}
}

func (p *point) identity(s *device.Sample) {
	i := s.Info
	p.mb.RecordGpuInfoDataPoint(p.ts, 1, i.Architecture, i.Driver, i.Firmware, p.index, p.model, i.NUMA, s.ID.PCI, p.uuid, i.VBIOS, p.vendor)
	for _, m := range []struct {
		name string
		v    device.Value
	}{{"ecc", s.Modes.ECC}, {"mig", s.Modes.MIG}, {"persistence", s.Modes.Persistence}, {"compute", s.Modes.Compute}} {
		if v, ok := m.v.Get(); ok {
			p.mb.RecordGpuModeDataPoint(p.ts, v, p.index, m.name, p.model, p.uuid, p.vendor)
		}
	}
}

// labeled records a value with one attribute besides the identity, which mdatagen orders between model
// and uuid.
type labeled func(ts pcommon.Timestamp, v float64, index int64, model, label, uuid, vendor string)

func (p *point) tasks(e *device.Engines, record labeled) {
	for _, t := range []struct {
		name string
		v    device.Value
	}{
		{"compute", e.Compute},
		{"memory", e.Memory},
		{"encoder", e.Encoder},
		{"decoder", e.Decoder},
		{"jpeg", e.JPEG},
		{"ofa", e.OFA},
	} {
		if v, ok := t.v.Get(); ok {
			record(p.ts, v, p.index, p.model, t.name, p.uuid, p.vendor)
		}
	}
}

func (p *point) pipes(list []device.Pipe, record labeled) {
	for _, pipe := range list {
		if v, ok := pipe.Active.Get(); ok {
			record(p.ts, v, p.index, p.model, pipe.Name, p.uuid, p.vendor)
		}
	}
}

func (p *point) engines(s *device.Sample) {
	p.tasks(&s.Utilization, p.mb.RecordGpuEngineUtilizationDataPoint)
	p.tasks(&s.UtilizationPeak, p.mb.RecordGpuEngineUtilizationPeakDataPoint)
	for _, c := range s.Clocks {
		if v, ok := c.Frequency.Get(); ok {
			p.mb.RecordGpuClockDomainFrequencyDataPoint(p.ts, v, c.Type, p.index, p.model, p.uuid, p.vendor)
		}
		if v, ok := c.Limit.Get(); ok {
			p.mb.RecordGpuClockDomainFrequencyLimitDataPoint(p.ts, v, c.Type, p.index, p.model, p.uuid, p.vendor)
		}
	}
	p.pipes(s.Profile.Pipes, p.mb.RecordGpuPipeActiveDataPoint)
	p.pipes(s.Profile.PipeDetail, p.mb.RecordGpuPipeDetailActiveDataPoint)
}

func (p *point) heatAndPower(s *device.Sample) {
	for _, t := range s.Temperatures {
		if v, ok := t.Value.Get(); ok {
			p.mb.RecordGpuSensorTemperatureDataPoint(p.ts, v, p.index, p.model, t.Sensor, p.uuid, p.vendor)
		}
		for _, c := range t.Limits {
			if v, ok := c.Limit.Get(); ok {
				p.mb.RecordGpuTemperatureLimitDataPoint(p.ts, v, p.index, p.model, c.Event, t.Sensor, p.uuid, p.vendor)
			}
			if v, ok := c.Margin.Get(); ok {
				p.mb.RecordGpuTemperatureMarginDataPoint(p.ts, v, p.index, p.model, c.Event, t.Sensor, p.uuid, p.vendor)
			}
		}
	}
	for _, w := range s.Powers {
		if v, ok := w.Instant.Get(); ok {
			p.mb.RecordGpuPowerScopeDrawDataPoint(p.ts, v, p.index, p.model, w.Scope, "instant", p.uuid, p.vendor)
		}
		if v, ok := w.Average.Get(); ok {
			p.mb.RecordGpuPowerScopeDrawDataPoint(p.ts, v, p.index, p.model, w.Scope, "average", p.uuid, p.vendor)
		}
		for _, l := range w.Limits {
			if v, ok := l.Watts.Get(); ok {
				p.mb.RecordGpuPowerLimitSettingDataPoint(p.ts, v, p.index, p.model, l.Type, w.Scope, p.uuid, p.vendor)
			}
		}
	}
	for _, u := range s.Voltages {
		if v, ok := u.Volts.Get(); ok {
			p.mb.RecordGpuRailVoltageDataPoint(p.ts, v, p.index, p.model, p.uuid, p.vendor, u.Rail)
		}
	}
	for _, f := range s.Fans {
		if v, ok := f.Speed.Get(); ok {
			p.mb.RecordGpuFanSpeedDataPoint(p.ts, v, int64(f.Index), p.index, p.model, p.uuid, p.vendor)
		}
		if v, ok := f.RPM.Get(); ok {
			p.mb.RecordGpuFanRpmDataPoint(p.ts, v, int64(f.Index), p.index, p.model, p.uuid, p.vendor)
		}
	}
}

func (p *point) throttle(s *device.Sample) {
	for _, t := range s.Throttles {
		active, _ := device.Flag(t.Active).Get()
		p.mb.RecordGpuThrottleReasonDataPoint(p.ts, active, p.index, p.model, t.Cause, p.uuid, p.vendor)
	}
	for _, t := range s.ThrottleTimes {
		v, ok := t.Seconds.Get()
		switch {
		case !ok:
		case t.Detail:
			p.mb.RecordGpuThrottleDetailTimeDataPoint(p.ts, v, p.index, p.model, t.Cause, p.uuid, p.vendor)
		default:
			p.mb.RecordGpuThrottleTimeDataPoint(p.ts, v, p.index, p.model, t.Cause, p.uuid, p.vendor)
		}
	}
}

// Values of network.io.direction.
const (
	transmit = "transmit"
	receive  = "receive"
)

func (p *point) interconnects(s *device.Sample) {
	for _, c := range s.Interconnects {
		for _, d := range []struct {
			name        string
			bytes, rate device.Value
		}{{transmit, c.TX, c.TXRate}, {receive, c.RX, c.RXRate}} {
			if v, ok := d.bytes.Get(); ok {
				p.mb.RecordGpuInterconnectIoDataPoint(p.ts, v, p.index, c.Type, p.model, p.uuid, p.vendor, d.name)
			}
			if v, ok := d.rate.Get(); ok {
				p.mb.RecordGpuInterconnectThroughputDataPoint(p.ts, v, p.index, c.Type, p.model, p.uuid, p.vendor, d.name)
			}
		}
		if v, ok := c.BandwidthLimit.Get(); ok {
			p.mb.RecordGpuInterconnectBandwidthLimitDataPoint(p.ts, v, p.index, c.Type, p.model, p.uuid, p.vendor)
		}
		for _, e := range c.Errors {
			if v, ok := e.Count.Get(); ok {
				p.mb.RecordGpuInterconnectErrorsDataPoint(p.ts, v, p.index, e.Type, c.Type, p.model, p.uuid, p.vendor)
			}
		}
		for _, l := range c.Links {
			p.link(c.Type, l)
		}
	}
	for _, e := range s.PCIe.Errors {
		if v, ok := e.Count.Get(); ok {
			p.mb.RecordGpuPcieErrorsDataPoint(p.ts, v, p.index, p.model, e.Type, p.uuid, p.vendor)
		}
	}
}

func (p *point) link(kind string, l device.Link) {
	if v, ok := l.Up.Get(); ok {
		p.mb.RecordGpuInterconnectLinkUpDataPoint(p.ts, v, p.index, int64(l.Index), kind, p.model, p.uuid, p.vendor)
	}
	if v, ok := l.TX.Get(); ok {
		p.mb.RecordGpuInterconnectLinkIoDataPoint(p.ts, v, p.index, int64(l.Index), kind, p.model, p.uuid, p.vendor, transmit)
	}
	if v, ok := l.RX.Get(); ok {
		p.mb.RecordGpuInterconnectLinkIoDataPoint(p.ts, v, p.index, int64(l.Index), kind, p.model, p.uuid, p.vendor, receive)
	}
	for _, e := range l.Errors {
		if v, ok := e.Count.Get(); ok {
			p.mb.RecordGpuInterconnectLinkErrorsDataPoint(p.ts, v, p.index, e.Type, int64(l.Index), kind, p.model, p.uuid, p.vendor)
		}
	}
}

func (p *point) faults(s *device.Sample) {
	for _, e := range s.ECC {
		v, ok := e.Count.Get()
		switch {
		case !ok:
		case e.Location != "":
			p.mb.RecordGpuEccLocationErrorsDataPoint(p.ts, v, e.Lifetime, e.Type, e.Location, p.index, p.model, p.uuid, p.vendor)
		case e.Lifetime == "aggregate":
			p.mb.RecordGpuEccLifetimeErrorsDataPoint(p.ts, v, e.Type, p.index, p.model, p.uuid, p.vendor)
		default:
			p.mb.RecordGpuEccErrorsDataPoint(p.ts, v, e.Type, p.index, p.model, p.uuid, p.vendor)
		}
	}
	for _, r := range s.Resets {
		if v, ok := r.Count.Get(); ok {
			p.mb.RecordGpuResetsDataPoint(p.ts, v, p.index, p.model, r.Type, p.uuid, p.vendor)
		}
	}
	if v, ok := s.RowRemap.Corrected.Get(); ok {
		p.mb.RecordGpuRowRemapCountDataPoint(p.ts, v, p.index, p.model, "corrected", p.uuid, p.vendor)
	}
	if v, ok := s.RowRemap.Uncorrected.Get(); ok {
		p.mb.RecordGpuRowRemapCountDataPoint(p.ts, v, p.index, p.model, "uncorrected", p.uuid, p.vendor)
	}
	for _, b := range s.RowRemap.Banks {
		if v, ok := b.Banks.Get(); ok {
			p.mb.RecordGpuRowRemapAvailableDataPoint(p.ts, v, p.index, p.model, b.Spare, p.uuid, p.vendor)
		}
	}
	if v, ok := s.PageRetirement.Corrected.Get(); ok {
		p.mb.RecordGpuPageRetirementCountDataPoint(p.ts, v, p.index, p.model, "corrected", p.uuid, p.vendor)
	}
	if v, ok := s.PageRetirement.Uncorrected.Get(); ok {
		p.mb.RecordGpuPageRetirementCountDataPoint(p.ts, v, p.index, p.model, "uncorrected", p.uuid, p.vendor)
	}
}
