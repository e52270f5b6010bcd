//go:build linux

package amd

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

const mi300x = "sys/devices/pci0000:00/0000:05:00.0/"

// Two seconds and 1000 ticks later: the 32-bit counters have wrapped.
const later = `
system_clock_counter 3000000000
accumulation_counter 704
ppt_residency_acc 244
energy_accumulator 739246080
pcie_nak_rcvd_count_acc 3
xcp0.gfx_below_host_limit_ppt_acc 600 600 600 600
`

// Every value of a whole machine. A wrong unit, a value on the wrong device, a sensor on a
// partition or a zero for an absent value would differ.
func TestMachine(t *testing.T) {
	tr := machine(t)
	list := devices(t, tr.open())
	first := read(t, list, device.Static)
	if first[0].Throttles != nil {
		t.Error("throttling is reported from a single table")
	}
	tr.change(mi300x+"gpu_metrics", "v1.8", later)
	got := read(t, list, device.Slow)
	want := wantMachine()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again := read(t, list, device.Fast) // the same table: nothing happened since
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
	// Without its table a GPU has none of the table's values.
	tr.remove(mi300x + "gpu_metrics")
	s := read(t, list[:1], device.Slow)[0]
	gone := want[0]
	gone.Utilization, gone.Energy, gone.Clocks, gone.Throttles, gone.ThrottleTimes, gone.Interconnects = device.Engines{}, device.Value{}, nil, nil, nil, nil
	gone.Temperatures = append([]device.Temperature{gone.Temperatures[0]}, gone.Temperatures[3:]...) // from hwmon and the board
	gone.Powers = []device.Power{{Scope: "gpu", Limits: gone.Powers[0].Limits}}
	gone.PCIe = device.PCIe{GenerationMax: device.Of(5), WidthMax: device.Of(16), Errors: gone.PCIe.Errors[3:]}
	if diff := cmp.Diff(gone, s); diff != "" {
		t.Errorf("without a table (-want +got):\n%s", diff)
	}
}

func wantMachine() []device.Sample {
	of := device.Of
	cut := device.ID{Vendor: "amd", UUID: "amd-e3aa1c0d5b6f7081", Model: "AMD Instinct MI300X OAM", PCI: "0000:05:00.0"}
	part := func(uuid string) device.ID {
		id := cut
		id.UUID, id.Parent, id.Profile = uuid, cut.UUID, "dpx_nps1"
		return id
	}
	ecc := func(kind, location string, n float64) device.ECC {
		return device.ECC{Type: kind, Lifetime: "volatile", Location: location, Count: of(n)}
	}
	temp := func(sensor string, v float64, limits ...device.TemperatureCap) device.Temperature {
		return device.Temperature{Sensor: sensor, Value: of(v), Limits: limits}
	}
	return []device.Sample{
		{
			ID: cut,
			Info: device.Info{
				Driver: "6.12.12", Architecture: "gfx942", NUMA: "0", VBIOS: "113-M3000100-102", Firmware: "0x00556f00",
			},
			Modes:       device.Modes{ECC: of(1)},
			Utilization: device.Engines{Compute: of(0.88), Memory: of(0.35), Decoder: of(0.1), JPEG: of(0.02)},
			Memory: device.Memory{
				Used: of(50e9), Free: of(156141652992), Total: of(206141652992),
				BAR1Used: of(40e9), BAR1Total: of(206141652992),
			},
			Temperatures: []device.Temperature{
				temp("hotspot", 61, device.TemperatureCap{Event: "slowdown", Limit: of(100)}, device.TemperatureCap{Event: "shutdown", Limit: of(105)}),
				temp("memory", 54), temp("vr_soc", 57), temp("vr_vdd0", 45), temp("vr_soc_a", 47), temp("vr_200", 50), temp("vr_13", 51), temp("ibc", 48),
			},
			Powers: []device.Power{{Scope: "gpu", Instant: of(640), Limits: []device.PowerLimit{
				{Type: "enforced", Watts: of(750)},
				{Type: "default", Watts: of(750)},
				{Type: "min", Watts: of(0)},
				{Type: "max", Watts: of(750)},
			}}},
			Energy: of(11280), // 640 W for 2 s more
			Clocks: []device.Clock{
				{Type: "graphics", Frequency: of(1091e6), Limit: of(2100e6)},
				{Type: "memory", Frequency: of(1300e6), Limit: of(1300e6)},
				{Type: "soc", Frequency: of(1000e6)},
				{Type: "video", Frequency: of(30e6)},
			},
			Throttles: []device.Throttle{
				{Cause: "prochot", Buckets: device.BucketThermal | device.BucketHW},
				{Cause: "ppt", Buckets: device.BucketPower | device.BucketSW, Active: true},
				{Cause: "socket_thermal", Buckets: device.BucketThermal | device.BucketSW},
				{Cause: "vr_thermal", Buckets: device.BucketThermal | device.BucketSW},
				{Cause: "hbm_thermal", Buckets: device.BucketThermal | device.BucketSW},
			},
			ThrottleTimes: []device.ThrottleTime{
				{Cause: "prochot", Seconds: of(0)},
				{Cause: "ppt", Seconds: of(0.5)}, // 250 of 1000 ticks
				{Cause: "socket_thermal", Seconds: of(0)},
				{Cause: "vr_thermal", Seconds: of(0)},
				{Cause: "hbm_thermal", Seconds: of(0)},
				{Cause: "below_host_limit_power", Seconds: of(0.5), Detail: true}, // half of the dies, half of the time
			},
			Interconnects: []device.Interconnect{{
				Type: "xgmi", TX: of(500 * 1024), RX: of(5000 * 1024), BandwidthLimit: of(64e9),
				Links: []device.Link{
					{Index: 1, Up: of(1), TX: of(200 * 1024), RX: of(2000 * 1024)},
					{Index: 2, Up: of(0), TX: of(300 * 1024), RX: of(3000 * 1024)},
				},
			}},
			PCIe: device.PCIe{
				Generation: of(5), GenerationMax: of(5), Width: of(16), WidthMax: of(16), Replays: of(4),
				Errors: []device.ErrorCount{
					{Type: "l0_to_recovery", Count: of(1)},
					{Type: "replay_rollover", Count: of(0)},
					{Type: "naks_received", Count: of(1<<32 + 3)},
					{Type: "correctable", Count: of(3)},
					{Type: "non_fatal", Count: of(0)},
					{Type: "fatal", Count: of(0)},
				},
			},
			ECC: []device.ECC{
				ecc("corrected", "", 23), ecc("uncorrected", "", 1), ecc("deferred", "", 2),
				ecc("corrected", "gfx", 3), ecc("uncorrected", "gfx", 0),
				ecc("corrected", "umc", 20), ecc("uncorrected", "umc", 1), ecc("deferred", "umc", 2),
			},
			PageRetirement: device.PageRetirement{Uncorrected: of(2), Pending: of(1), Failure: of(0)},
			Aliases:        []string{"GPU-e3aa1c0d5b6f7081"},
		},
		{
			ID:          part("amd-e3aa1c0d5b6f7081-xcp0"),
			Utilization: device.Engines{Compute: of(0.85), Decoder: of(0.2), JPEG: of(0.02)},
			Profile:     device.Profile{EngineActive: of(0.85)},
			Memory:      device.Memory{Used: of(31e9), Free: of(72070826496), Total: of(103070826496)},
			Processes: []device.Process{
				{PID: 4242, Name: "python3", Type: "compute", MemoryUsed: of(31e9), Occupancy: of(0.75)}, // 76 + 38 of 152
			},
			Slice:   device.Slice{Held: 1, Of: 2},
			Aliases: []string{"0000:05:00.0", "renderD128", "card1", "gpu-1-128"},
		},
		{
			ID:          part("amd-e3aa1c0d5b6f7081-xcp1"),
			Utilization: device.Engines{Compute: of(0.02), Decoder: of(0)},
			Profile:     device.Profile{EngineActive: of(0.02)},
			Memory:      device.Memory{Used: of(0), Free: of(103070826496), Total: of(103070826496)},
			Slice:       device.Slice{Held: 1, Of: 2},
			Aliases:     []string{"amdgpu_xcp_0", "renderD129", "card2", "gpu-2-129"},
		},
		{
			ID:          device.ID{Vendor: "amd", UUID: "amd-1901f3a8c0de4242", Index: 1, Model: "AMD Instinct MI210", PCI: "0000:26:00.0"},
			Info:        device.Info{Driver: "6.12.12", Architecture: "gfx90a"},
			Utilization: device.Engines{Compute: of(0), Memory: of(0)},
			Memory:      device.Memory{Used: of(0), Free: of(68702699520), Total: of(68702699520)},
			Temperatures: []device.Temperature{
				temp("edge", 39), temp("hotspot", 44), temp("vr_soc", 33),
				temp("hbm0", 38), temp("hbm1", 39), temp("hbm2", 40), temp("hbm3", 41),
				temp("memory", 40, device.TemperatureCap{Event: "slowdown", Limit: of(95)}),
			},
			Powers:    []device.Power{{Scope: "gpu", Average: of(42)}},
			Energy:    of(100),
			Clocks:    []device.Clock{{Type: "graphics", Frequency: of(800e6)}, {Type: "memory", Frequency: of(1600e6)}},
			Voltages:  []device.Voltage{{Rail: "core", Volts: of(0.8)}, {Rail: "soc", Volts: of(0.75)}, {Rail: "memory", Volts: of(1.2)}},
			Throttles: independent("sppt", "tdc_gfx"),
			PCIe:      device.PCIe{Generation: of(4), Width: of(8), Replays: of(0)},
			Processes: []device.Process{{PID: 500, Name: "hipBLAS test", Type: "compute", MemoryUsed: of(0)}},
			Aliases:   []string{"GPU-1901f3a8c0de4242", "renderD136", "card10", "gpu-10-136"},
		},
		{
			ID:      device.ID{Vendor: "amd", UUID: "amd-7600-0001", Index: 2, Model: "AMD Radeon RX 7600", PCI: "0000:83:00.0"},
			Info:    device.Info{Driver: "6.12.12", VBIOS: "113-V39-A"},
			Memory:  device.Memory{Used: of(27e6), Free: of(8546157376), Total: of(8573157376)},
			Aliases: []string{"card12"},
		},
		{
			ID: device.ID{
				Vendor: "amd", UUID: "amd-0123456789abcdef-0000:84:00.0", Index: 3, Model: "AMD GPU 1002:1234", PCI: "0000:84:00.0",
			},
			Info:         device.Info{Driver: "6.12.12"},
			Utilization:  device.Engines{Compute: of(0.04), Memory: of(0), Decoder: of(0.07)},
			Temperatures: []device.Temperature{temp("edge", 38)},
			Powers:       []device.Power{{Scope: "gpu", Average: of(8)}},
			Clocks:       []device.Clock{{Type: "graphics", Frequency: of(852e6)}, {Type: "memory", Frequency: of(167e6)}},
			Voltages:     []device.Voltage{{Rail: "core", Volts: of(0.762)}},
			Fans:         []device.Fan{{Speed: of(0.2), RPM: of(0)}},
			Aliases:      []string{"renderD137", "card13", "gpu-13-137"},
		},
	}
}

// independent returns the causes of v1.3, with the given ones active.
func independent(active ...string) []device.Throttle {
	list := throttles(0, independentBits)
	for i := range list {
		for _, cause := range active {
			if list[i].Cause == cause {
				list[i].Active = true
			}
		}
	}
	return list
}
