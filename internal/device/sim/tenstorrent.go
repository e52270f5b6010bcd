package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// tenstorrent shows what tt-kmd publishes: the state of the board, but not its workload.
type tenstorrent struct {
	volts, voltsIdle float64 // core voltage
	rpm, rpmIdle     float64
	pcie             int // generation
}

var tenstorrentMaker = &maker{
	vendor: "tenstorrent", driver: "2.10.0", count: 4, buses: []int{0x01, 0x41, 0x81, 0xc1},
	uuid: func(key uint64) string {
		return fmt.Sprintf("tenstorrent-00000461319%05d-%016x", hash(key, 1)%100000, hash(key, 2))
	},
}

var tenstorrentModels = map[string]*model{
	"p150a": {
		maker: tenstorrentMaker, name: "Tenstorrent Blackhole p150a", architecture: "blackhole", firmware: "19.7.99.0",
		memory: 32 * gib, // used by processes but not reported by the driver
		watts:  watts{idle: 28, limit: 150}, hot: 90,
		sensors: []sensor{{name: "edge", idle: 35, full: 73, limits: []limit{{"slowdown", 90}}}},
		clocks:  []clock{{"ai", 800, 1350, 1}, {"axi", 960, 960, 0}, {"arc", 800, 800, 0}},
		shows:   tenstorrent{volts: 0.86, voltsIdle: 0.719, rpm: 3400, rpmIdle: 1882, pcie: 5},
	},
}

func (d tenstorrent) read(r *reading) {
	m := r.gpu.model
	r.Temperatures = r.temperatures(true)
	draw := math.Round(r.now.watts)
	r.Powers = []device.Power{{
		Scope: "gpu", Instant: device.Of(draw), Limits: []device.PowerLimit{{Type: device.LimitEnforced, Watts: device.Of(m.watts.limit)}},
	}}
	r.Clocks = r.frequencies(false)
	part := max(0, r.now.watts-m.watts.idle) / (m.watts.limit - m.watts.idle)
	volts := math.Round((d.voltsIdle+part*(d.volts-d.voltsIdle))*1e3) / 1e3
	r.Voltages = []device.Voltage{{Rail: "core", Volts: device.Of(volts)}}
	r.Current = device.Of(math.Round(draw / volts))
	r.Fans = []device.Fan{{RPM: device.Of(math.Round(d.rpmIdle + part*(d.rpm-d.rpmIdle)))}}
	r.PCIe = r.link(d.pcie, d.pcie)
	r.Heartbeat = device.Of(math.Floor(r.up.Seconds() * 10))
	r.Resets = []device.ErrorCount{{Type: "thermal_trip", Count: device.Of(0)}}
	r.Processes = r.gpu.process(r.up, device.Of(r.used()))
	for i := range r.Processes {
		r.Processes[i].MemoryUsed = device.Value{}
	}
}

func (tenstorrent) readPart(*partition, time.Duration, *device.Sample) {}
