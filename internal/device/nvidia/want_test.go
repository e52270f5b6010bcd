//go:build linux

package nvidia

import "github.com/gpumeter/gpumeter/internal/device"

// wantEverything is the Sample of TestReadEverything's script, on the fake's H200.
func wantEverything() device.Sample {
	of := device.Of
	throttle := func(cause string, b device.Buckets, active bool) device.Throttle {
		return device.Throttle{Cause: cause, Buckets: b, Active: active}
	}
	const power, thermal, sw, hw = device.BucketPower, device.BucketThermal, device.BucketSW, device.BucketHW
	return device.Sample{
		Aliases: []string{"nvidia0", "gpu-0"},
		ID:      device.ID{Vendor: "nvidia", UUID: "GPU-00000000-0000-4000-8000-000000000000", Model: "NVIDIA H200", PCI: "0000:10:00.0"},
		Info: device.Info{
			Driver: "580.159.04", Architecture: "hopper", NUMA: "1", VBIOS: "96.00.A5.00.1A", Firmware: "580.159.04",
		},
		Modes:           device.Modes{ECC: of(1), MIG: of(0), Persistence: of(1), Compute: of(0)},
		Utilization:     device.Engines{Compute: of(0.4), Memory: of(0.24), Encoder: of(0.05), Decoder: of(0), JPEG: of(0), OFA: of(0)},
		UtilizationPeak: device.Engines{Compute: of(0.9), Memory: of(0.24), Encoder: of(0.05), Decoder: of(0), JPEG: of(0), OFA: of(0)},
		Memory: device.Memory{
			Used: of(1194131456), Free: of(148915748864), Reserved: of(644939776), Total: of(150754820096),
			BAR1Used: of(1195900928), BAR1Total: of(274877906944),
		},
		Temperatures: []device.Temperature{
			{Sensor: "edge", Value: of(63), Limits: []device.TemperatureCap{
				{Event: "operating", Limit: of(87), Margin: of(18)},
				{Event: "slowdown", Limit: of(89), Margin: of(20)},
				{Event: "shutdown", Limit: of(95), Margin: of(26)},
			}},
			{Sensor: "memory", Value: of(50), Limits: []device.TemperatureCap{{Event: "operating", Limit: of(95), Margin: of(45)}}},
		},
		Powers: []device.Power{
			{Scope: "gpu", Instant: of(685.77), Average: of(689.58), Limits: []device.PowerLimit{
				{Type: "enforced", Watts: of(700)},
				{Type: "requested", Watts: of(700)},
				{Type: "default", Watts: of(700)},
				{Type: "min", Watts: of(200)},
				{Type: "max", Watts: of(700)},
			}},
			{Scope: "memory", Average: of(108.91)},
		},
		Energy: of(8653.252),
		Clocks: []device.Clock{
			{Type: "graphics", Frequency: of(1455e6), Limit: of(1980e6)},
			{Type: "sm", Frequency: of(1455e6), Limit: of(1980e6)},
			{Type: "memory", Frequency: of(3201e6), Limit: of(3201e6)},
			{Type: "video", Frequency: of(1470e6), Limit: of(1545e6)},
		},
		Fans:             []device.Fan{{Index: 0, Speed: of(0.3), RPM: of(1500)}, {Index: 1, Speed: of(0.4), RPM: of(2000)}},
		PerformanceState: of(0),
		Throttles: []device.Throttle{ // 0x844: power cap, hardware thermal, and an unknown bit
			throttle("gpu_idle", 0, false),
			throttle("applications_clocks_setting", sw, false),
			throttle("sw_power_cap", power|sw, true),
			throttle("hw_slowdown", hw, false),
			throttle("sync_boost", sw, false),
			throttle("sw_thermal_slowdown", thermal|sw, false),
			throttle("hw_thermal_slowdown", thermal|hw, true),
			throttle("hw_power_brake_slowdown", power|hw, false),
			throttle("display_clock_setting", sw, false),
			throttle("board_limit", hw, false),
			throttle("reliability", hw, false),
			throttle("bit_11", hw, true),
		},
		ThrottleTimes: []device.ThrottleTime{
			{Cause: "power", Seconds: of(6.328776864)},
			{Cause: "thermal", Seconds: of(0)},
			{Cause: "sync_boost", Seconds: of(0), Detail: true},
			{Cause: "board_limit", Seconds: of(0), Detail: true},
			{Cause: "low_utilization", Seconds: of(18.078119936), Detail: true},
			{Cause: "reliability", Seconds: of(0), Detail: true},
			{Cause: "app_clocks", Seconds: of(8.618824256), Detail: true},
			{Cause: "base_clocks", Seconds: of(8.618824256), Detail: true},
			{Cause: "sw_thermal_slowdown", Seconds: of(0), Detail: true},
			{Cause: "hw_thermal_slowdown", Seconds: of(0), Detail: true},
			{Cause: "hw_power_brake_slowdown", Seconds: of(0)},
		},
		Profile: device.Profile{
			EngineActive: of(0.9975), SMActive: of(0.965), SMOccupancy: of(0.1425), DRAMActive: of(0.1725),
			Pipes: []device.Pipe{
				{Name: "tensor", Active: of(0.935)}, {Name: "fp64", Active: of(0)}, {Name: "fp32", Active: of(0)}, {Name: "fp16", Active: of(0)},
			},
			PipeDetail: []device.Pipe{
				{Name: "hmma", Active: of(0.935)},
				{Name: "imma", Active: of(0)},
				{Name: "dmma", Active: of(0)},
				{Name: "dfma", Active: of(0)},
				{Name: "int", Active: of(0.015)},
			},
		},
		Interconnects: []device.Interconnect{
			{Type: "pcie", TXRate: of(5.5 * mebi), RXRate: of(14.25 * mebi)},
			{
				Type: "nvlink", TX: of(2 * 1048576 * kibi), RX: of(2 * 2097152 * kibi), TXRate: of(576 * mebi), RXRate: of(1152 * mebi),
				BandwidthLimit: of(26562 * mega), // of the one link that is up
				Errors: []device.ErrorCount{
					{Type: "crc_flit", Count: of(1)},
					{Type: "crc_data", Count: of(2)},
					{Type: "replay", Count: of(11)},
					{Type: "recovery", Count: of(4)},
					{Type: "ecc", Count: of(5)},
				},
				Links: []device.Link{wantLink(0, 1, 5), wantLink(1, 0, 6)},
			},
		},
		PCIe: device.PCIe{
			Generation: of(5), GenerationMax: of(5), Width: of(16), WidthMax: of(16), Replays: of(4),
			Errors: wantPCIeErrors(),
		},
		ECC:            wantECC(),
		SRAMThreshold:  of(0),
		RowRemap:       wantRemap(),
		PageRetirement: device.PageRetirement{Corrected: of(2), Uncorrected: of(1), Pending: of(0)},
		RecoveryAction: of(1),
		Fabric:         device.Fabric{State: of(3), Health: of(1)},
		Processes: []device.Process{
			{PID: 4242, Type: "compute", MemoryUsed: of(1184890880), Utilization: of(0.74)},
			{PID: 4243, Type: "graphics", Utilization: of(0)},
			{PID: 4244, Type: "mps", MemoryUsed: of(1024), Utilization: of(0.12)},
		},
	}
}

func wantPCIeErrors() []device.ErrorCount {
	var list []device.ErrorCount
	for _, kind := range []string{
		"l0_to_recovery", "correctable", "naks_received", "receiver", "bad_tlp", "naks_sent",
		"bad_dllp", "non_fatal", "fatal", "unsupported_request", "lcrc", "lane",
	} {
		list = append(list, device.ErrorCount{Type: kind, Count: device.Of(0)})
	}
	return list
}

func wantLink(i int, up, replays float64) device.Link {
	of := device.Of
	return device.Link{
		Index: i, Up: of(up), TX: of(1048576 * kibi), RX: of(2097152 * kibi),
		Errors: []device.ErrorCount{{Type: "replay", Count: of(replays)}, {Type: "recovery", Count: of(0)}, {Type: "crc", Count: of(0)}},
	}
}

func wantECC() []device.ECC {
	var list []device.ECC
	for _, c := range []struct {
		kind, lifetime string
		n              float64
	}{{"corrected", "volatile", 7}, {"corrected", "aggregate", 9}, {"uncorrected", "volatile", 0}, {"uncorrected", "aggregate", 2}} {
		list = append(list,
			device.ECC{Type: c.kind, Lifetime: c.lifetime, Count: device.Of(c.n)},
			device.ECC{Type: c.kind, Lifetime: c.lifetime, Location: "dram", Count: device.Of(c.n)},
			device.ECC{Type: c.kind, Lifetime: c.lifetime, Location: "sram", Count: device.Of(0)})
	}
	return list
}

func wantRemap() device.RowRemap {
	of := device.Of
	return device.RowRemap{
		Corrected: of(3), Uncorrected: of(1), Pending: of(1), Failure: of(0),
		Banks: []device.RowRemapBanks{
			{Spare: "max", Banks: of(3072)},
			{Spare: "high", Banks: of(0)},
			{Spare: "partial", Banks: of(0)},
			{Spare: "low", Banks: of(0)},
			{Spare: "none", Banks: of(0)},
		},
	}
}
