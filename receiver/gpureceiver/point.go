package gpureceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// point records the values of one device at one tick. mdatagen wants the attributes of
// a metric in alphabetical order, which is why the identity moves about below.
type point struct {
	e  *Emitter
	mb *metadata.MetricsBuilder
	ts pcommon.Timestamp
	r  *node.Reading

	index               int64
	model, uuid, vendor string // uuid is the partition's own; decorate tells them apart
}

func newPoint(e *Emitter, ts pcommon.Timestamp, r *node.Reading) *point {
	return &point{e: e, mb: e.mb, ts: ts, r: r, index: int64(r.ID.Index), model: r.ID.Model, uuid: r.ID.UUID, vendor: r.ID.Vendor}
}

// up records whether the device answered, which is all there is of one that did not.
func (p *point) up() {
	up, _ := device.Flag(p.r.Up).Get()
	p.mb.RecordGpuUpDataPoint(p.ts, up, p.index, p.model, p.uuid, p.vendor)
}

// health records how well the device is, also if it does not answer. A partition is as
// well as its device.
func (p *point) health(findings []health.Finding) {
	if p.r.ID.Parent == "" {
		p.mb.RecordGpuHealthDataPoint(p.ts, health.Score(findings, p.uuid), p.index, p.model, p.uuid, p.vendor)
	}
}

// xids records the errors its driver reported, of a device that is lost too.
func (p *point) xids() {
	for _, x := range p.r.XIDs {
		p.mb.RecordGpuXidErrorsDataPoint(p.ts, float64(x.Count), p.index, p.model, p.uuid, p.vendor, int64(x.Code))
	}
}

func (p *point) sample() {
	s := &p.r.Sample
	for _, m := range p.e.plain {
		if v, ok := m.value(s).Get(); ok {
			m.record(p.ts, v, p.index, p.model, p.uuid, p.vendor)
		}
	}
	p.identity(s)
	p.engines(s)
	p.heatAndPower(s)
	p.throttle(s)
	p.interconnects(s)
	p.faults(s)
	p.runtime(s)
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
	if s.ID.Parent == "" {
		i := s.Info
		p.mb.RecordGpuInfoDataPoint(p.ts, 1, i.Architecture, i.Driver, i.Firmware, p.index, p.model, i.NUMA, s.ID.PCI, p.uuid, i.VBIOS, p.vendor)
	}
	for _, m := range []struct {
		name string
		v    device.Value
	}{{"ecc", s.Modes.ECC}, {"mig", s.Modes.MIG}, {"persistence", s.Modes.Persistence}, {"compute", s.Modes.Compute}} {
		if v, ok := m.v.Get(); ok {
			p.mb.RecordGpuModeDataPoint(p.ts, v, p.index, m.name, p.model, p.uuid, p.vendor)
		}
	}
}

func (p *point) engines(s *device.Sample) {
	tasks := func(e *device.Engines, record func(pcommon.Timestamp, float64, int64, string, string, string, string)) {
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
	tasks(&s.Utilization, p.mb.RecordGpuUtilizationDataPoint)
	tasks(&s.UtilizationPeak, p.mb.RecordGpuUtilizationPeakDataPoint)
	for _, c := range s.Clocks {
		if v, ok := c.Frequency.Get(); ok {
			p.mb.RecordGpuClockFrequencyDataPoint(p.ts, v, c.Type, p.index, p.model, p.uuid, p.vendor)
		}
		if v, ok := c.Limit.Get(); ok {
			p.mb.RecordGpuClockFrequencyLimitDataPoint(p.ts, v, c.Type, p.index, p.model, p.uuid, p.vendor)
		}
	}
	for _, pipe := range s.Profile.Pipes {
		if v, ok := pipe.Active.Get(); ok {
			p.mb.RecordGpuPipeActiveDataPoint(p.ts, v, p.index, p.model, pipe.Name, p.uuid, p.vendor)
		}
	}
	for _, pipe := range s.Profile.PipeDetail {
		if v, ok := pipe.Active.Get(); ok {
			p.mb.RecordGpuPipeDetailActiveDataPoint(p.ts, v, p.index, p.model, pipe.Name, p.uuid, p.vendor)
		}
	}
}

func (p *point) heatAndPower(s *device.Sample) {
	for _, t := range s.Temperatures {
		if v, ok := t.Value.Get(); ok {
			p.mb.RecordGpuTemperatureDataPoint(p.ts, v, p.index, p.model, t.Sensor, p.uuid, p.vendor)
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
			p.mb.RecordGpuPowerDrawDataPoint(p.ts, v, p.index, p.model, w.Scope, "instant", p.uuid, p.vendor)
		}
		if v, ok := w.Average.Get(); ok {
			p.mb.RecordGpuPowerDrawDataPoint(p.ts, v, p.index, p.model, w.Scope, "average", p.uuid, p.vendor)
		}
		if v, ok := w.Enforced().Get(); ok {
			p.mb.RecordGpuPowerLimitDataPoint(p.ts, v, p.index, p.model, w.Scope, p.uuid, p.vendor)
		}
		if v, ok := w.Draw().Ratio(w.Enforced()).Or(w.Utilization).Get(); ok {
			p.mb.RecordGpuPowerUtilizationDataPoint(p.ts, v, p.index, p.model, w.Scope, p.uuid, p.vendor)
		}
		for _, l := range w.Limits {
			if v, ok := l.Watts.Get(); ok && l.Type != device.LimitEnforced {
				p.mb.RecordGpuPowerLimitSettingDataPoint(p.ts, v, p.index, p.model, l.Type, w.Scope, p.uuid, p.vendor)
			}
		}
	}
	for _, u := range s.Voltages {
		if v, ok := u.Volts.Get(); ok {
			p.mb.RecordGpuVoltageDataPoint(p.ts, v, p.index, p.model, p.uuid, p.vendor, u.Rail)
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

// The values of network.io.direction.
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
		default:
			p.mb.RecordGpuEccErrorsDataPoint(p.ts, v, e.Lifetime, e.Type, p.index, p.model, p.uuid, p.vendor)
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
