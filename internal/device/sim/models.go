package sim

const (
	mib = 1 << 20
	mhz = 1e6
)

// model is what is fixed about a kind of accelerator. A zero means that the hardware,
// or its driver, does not have it.
type model struct {
	vendor, name, architecture, vbios string

	memory, reserved, bar1 float64 // bytes
	banks                  float64 // of memory, each with its own spare rows

	watts   watts
	celsius celsius
	clocks  clocks

	idleState      float64 // performance state without load
	pcie, pcieIdle int     // generation of the 16-lane link under load and without

	links    int     // NVLinks
	linkRate float64 // bytes per second and direction, of one link
	fabric   bool    // registers with an NVSwitch fabric
	gpm      bool    // counts its own activity and traffic: Hopper and later

	slices []slice // how GPU 7 is cut
}

// watts are power figures. There is no memory power where memoryFull is 0.
type watts struct {
	idle, limit, min, max  float64
	memoryIdle, memoryFull float64
	instantOnly            bool // GA100 has no averaged reading
}

// celsius are temperatures at the edge of the die and in memory, without load and at
// the power limit. There is no memory sensor where memoryFull is 0.
type celsius struct {
	idle, full                     float64
	operating, slowdown, shutdown  float64
	memoryIdle, memoryFull, memory float64 // memory is the highest to operate at
}

// clocks are the highest frequencies and those without load, in MHz.
type clocks struct{ sm, memory, video, smIdle, memoryIdle, videoIdle float64 }

// slice is one partition: its profile, its sevenths of the compute units, its bytes.
type slice struct {
	profile string
	compute int
	memory  float64
}

const driver = "580.95.05"

// models are boards as nvidia-smi and NVML show them. No full listing of a B200 was
// found: its banks, thermal limits and partition sizes are scaled from the H200.
var models = map[string]*model{
	"a100": {
		vendor: "nvidia", name: "NVIDIA A100-SXM4-80GB", architecture: "ampere", vbios: "92.00.9E.00.02",
		memory: 81920 * mib, reserved: 763 * mib, bar1: 131072 * mib, banks: 640,
		watts: watts{idle: 60, limit: 400, min: 100, max: 400, instantOnly: true},
		celsius: celsius{
			idle: 27, full: 61, operating: 85, slowdown: 89, shutdown: 92,
			memoryIdle: 40, memoryFull: 68, memory: 95,
		},
		clocks: clocks{sm: 1410, memory: 1593, video: 1290, smIdle: 210, memoryIdle: 1593, videoIdle: 585},
		pcie:   4, pcieIdle: 4, links: 12, linkRate: 25.781e9,
		slices: []slice{{"3g.40gb", 3, 40192 * mib}, {"2g.20gb", 2, 19968 * mib}, {"1g.10gb", 1, 9728 * mib}, {"1g.10gb", 1, 9728 * mib}},
	},
	"b200": {
		vendor: "nvidia", name: "NVIDIA B200", architecture: "blackwell", vbios: "97.00.82.00.34",
		memory: 183359 * mib, reserved: 717 * mib, bar1: 262144 * mib, banks: 3840,
		watts: watts{idle: 143, limit: 1000, min: 200, max: 1000},
		celsius: celsius{
			idle: 30, full: 66, operating: 87, slowdown: 89, shutdown: 95,
			memoryIdle: 31, memoryFull: 62,
		},
		clocks: clocks{sm: 1965, memory: 3996, video: 1830, smIdle: 120, memoryIdle: 3996, videoIdle: 600},
		pcie:   5, pcieIdle: 5, links: 18, linkRate: 53.125e9, fabric: true, gpm: true,
		slices: []slice{{"3g.90gb", 3, 90368 * mib}, {"2g.45gb", 2, 43776 * mib}, {"1g.23gb", 1, 21632 * mib}, {"1g.23gb", 1, 21632 * mib}},
	},
	"h100": {
		vendor: "nvidia", name: "NVIDIA H100 80GB HBM3", architecture: "hopper", vbios: "96.00.A5.00.01",
		memory: 81559 * mib, reserved: 479 * mib, bar1: 131072 * mib, banks: 2560,
		watts: watts{idle: 70, limit: 700, min: 200, max: 700, memoryIdle: 43, memoryFull: 92},
		celsius: celsius{
			idle: 33, full: 63, operating: 87, slowdown: 89, shutdown: 95,
			memoryIdle: 42, memoryFull: 58,
		},
		clocks: clocks{sm: 1980, memory: 2619, video: 1545, smIdle: 345, memoryIdle: 2619, videoIdle: 765},
		pcie:   5, pcieIdle: 5, links: 18, linkRate: 26.562e9, fabric: true, gpm: true,
		slices: []slice{{"3g.40gb", 3, 40448 * mib}, {"2g.20gb", 2, 20096 * mib}, {"1g.10gb", 1, 9984 * mib}, {"1g.10gb", 1, 9984 * mib}},
	},
	"h200": {
		vendor: "nvidia", name: "NVIDIA H200", architecture: "hopper", vbios: "96.00.A5.00.03",
		memory: 150754820096, reserved: 644939776, bar1: 262144 * mib, banks: 3072,
		watts: watts{idle: 78, limit: 700, min: 200, max: 700, memoryIdle: 47, memoryFull: 109},
		celsius: celsius{
			idle: 30, full: 64, operating: 87, slowdown: 89, shutdown: 95,
			memoryIdle: 32, memoryFull: 51,
		},
		clocks: clocks{sm: 1980, memory: 3201, video: 1545, smIdle: 345, memoryIdle: 3201, videoIdle: 765},
		pcie:   5, pcieIdle: 5, links: 18, linkRate: 26.562e9, fabric: true, gpm: true,
		slices: []slice{{"3g.71gb", 3, 71424 * mib}, {"2g.35gb", 2, 33280 * mib}, {"1g.18gb", 1, 16384 * mib}, {"1g.18gb", 1, 16384 * mib}},
	},
	"l40s": {
		vendor: "nvidia", name: "NVIDIA L40S", architecture: "ada", vbios: "95.02.66.00.02",
		memory: 46068 * mib, reserved: 609 * mib, bar1: 65536 * mib, banks: 192,
		watts: watts{idle: 35, limit: 350, min: 100, max: 350},
		celsius: celsius{
			idle: 30, full: 71, operating: 88, slowdown: 90, shutdown: 93,
		},
		clocks:    clocks{sm: 2520, memory: 9001, video: 1965, smIdle: 210, memoryIdle: 405, videoIdle: 1185},
		idleState: 8, pcie: 4, pcieIdle: 1,
	},
}

// lanes is the width of the PCIe link of every model.
const lanes = 16

// pcieRate returns the bytes per second and direction of a link: 2.5 GT/s a lane in
// generation 1, 5 in 2, then 8 and its doubles, with 2 of 10 or 2 of 130 bits of coding.
func pcieRate(generation int) float64 {
	if generation < 3 {
		return lanes * 2.5e9 * float64(generation) / 10
	}
	return lanes * 8e9 * float64(int(1)<<(generation-3)) * 128 / 130 / 8
}
