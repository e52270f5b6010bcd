//go:build linux

package nvidia

import (
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

const percent = 100

func (g *gpu) readUtilization() {
	var rates utilization
	e := device.Engines{
		Encoder: g.engine("nvmlDeviceGetEncoderUtilization"),
		Decoder: g.engine("nvmlDeviceGetDecoderUtilization"),
		JPEG:    g.engine("nvmlDeviceGetJpgUtilization"),
		OFA:     g.engine("nvmlDeviceGetOfaUtilization"),
	}
	if g.Do("nvmlDeviceGetUtilizationRates", 0, g.Handle, uintptr(unsafe.Pointer(&rates))) {
		e.Compute = device.Of(float64(rates.gpu) / percent)
		e.Memory = device.Of(float64(rates.memory) / percent)
	}
	g.sample.Utilization = e
}

// engine calls sym(device, &percent, &samplingPeriod).
func (g *gpu) engine(sym string) device.Value {
	var busy, periodUs uint32
	if !g.Do(sym, 0, g.Handle, uintptr(unsafe.Pointer(&busy)), uintptr(unsafe.Pointer(&periodUs))) {
		return device.Value{}
	}
	return device.Of(float64(busy) / percent)
}

// The driver's sample buffers, as in nvmlSamplingType_t.
const (
	samplesGPU    = 1
	samplesMemory = 2
	samplesEnc    = 3
	samplesDec    = 4
	samplesJPEG   = 8
	samplesOFA    = 9
)

func (g *gpu) readPeaks() {
	g.sample.UtilizationPeak = device.Engines{
		Compute: g.peak(samplesGPU),
		Memory:  g.peak(samplesMemory),
		Encoder: g.peak(samplesEnc),
		Decoder: g.peak(samplesDec),
		JPEG:    g.peak(samplesJPEG),
		OFA:     g.peak(samplesOFA),
	}
}

// maxSamples bounds the buffer that the driver may request; it keeps about 120 samples.
const maxSamples = 4096

// peak returns the highest of the driver's own samples over the last minute. The driver
// takes several per second, so a burst between two ticks still shows.
func (g *gpu) peak(kind uint32) device.Value {
	const sym = "nvmlDeviceGetSamples"
	since := uint64(g.r.opts.Now().Add(-time.Minute).UnixMicro())
	var valueType, count uint32
	if !g.Do(sym, uint64(kind), g.Handle, uintptr(kind), uintptr(since),
		uintptr(unsafe.Pointer(&valueType)), uintptr(unsafe.Pointer(&count)), 0) || count == 0 || count > maxSamples {
		return device.Value{}
	}
	rows := make([]sampleValue, count)
	if !g.Do(sym, uint64(kind), g.Handle, uintptr(kind), uintptr(since),
		uintptr(unsafe.Pointer(&valueType)), uintptr(unsafe.Pointer(&count)), uintptr(unsafe.Pointer(&rows[0]))) {
		return device.Value{}
	}
	var top device.Value
	for _, row := range rows[:min(int(count), len(rows))] {
		v := decode(valueType, row.value)
		now, ok := v.Get()
		if most, _ := top.Get(); ok && row.timestamp > since && (!top.OK() || now > most) { // unused rows are zero
			top = v
		}
	}
	return top.Div(percent)
}

var clocks = [4]string{"graphics", "sm", "memory", "video"} // as in nvmlClockType_t

func (g *gpu) readClocks() {
	const mega = 1e6
	list := make([]device.Clock, 0, len(clocks))
	for i, name := range clocks {
		if f := g.U32Of("nvmlDeviceGetClockInfo", uint32(i)); f.OK() || g.clockLimits[i].OK() {
			list = append(list, device.Clock{Type: name, Frequency: f.Scale(mega), Limit: g.clockLimits[i].Scale(mega)})
		}
	}
	g.sample.Clocks = list
	g.sample.PerformanceState = device.Value{}
	const unknown = 32
	if p := g.U32("nvmlDeviceGetPerformanceState"); p != device.Of(unknown) {
		g.sample.PerformanceState = p
	}
}
