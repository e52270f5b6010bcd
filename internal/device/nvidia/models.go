package nvidia

import "github.com/gpumeter/gpumeter/internal/device"

// models are the data center GPUs whose partitions or speed are known, more specific names first.
//
// Profiles are those without media extensions, read off `nvidia-smi mig -lgip`: on an H200 (driver 580.159, 2026-11-19), else as
// published by NVIDIA and users up to 2026-11 for drivers 470 to 590. Where drivers differ, memory and SMs are the lesser. What no
// listing has is a lower bound: a profile of four memory slices has at least twice the memory of one with two, and n compute slices
// have at least n times the SMs of one. The name of a profile says more than it has: 1g.18gb of an H200 has 16 GiB. Partitions
// without a listing are left out: those of the H20 and of the B300.
//
// Compute is the dense rate of FP16 and BF16 on tensor cores, without sparsity, and Bandwidth that of the device memory, from the
// data sheets of 2026-11. The memory is what NVML reports with ECC.
var models = []device.Model{
	{Words: []string{"T4"}, Memory: 15360, Compute: 65, Bandwidth: 320},
	{Words: []string{"V100", "SXM2"}, Memory: 16384, Compute: 125, Bandwidth: 900},
	{Words: []string{"V100", "SXM2"}, Memory: 32768, Compute: 125, Bandwidth: 900},
	{Words: []string{"V100"}, Memory: 16384, Compute: 112, Bandwidth: 900},
	{Words: []string{"V100"}, Memory: 32768, Compute: 112, Bandwidth: 900},
	{Words: []string{"L4"}, Memory: 23034, Compute: 121, Bandwidth: 300},
	{Words: []string{"A10"}, Memory: 23028, Compute: 125, Bandwidth: 600},
	{Words: []string{"A40"}, Memory: 46068, Compute: 149, Bandwidth: 696},
	{Words: []string{"L40"}, Memory: 46068, Compute: 181, Bandwidth: 864},
	{Words: []string{"L40S"}, Memory: 46068, Compute: 362, Bandwidth: 864},
	{Words: []string{"A30"}, Memory: 24576, Compute: 165, Bandwidth: 933, Units: 56, Profiles: []device.PartitionProfile{
		{Name: "1g.6gb", Slice: device.Slice{Held: 1, Of: 4}, Units: 14, Memory: 5888},
		{Name: "2g.12gb", Slice: device.Slice{Held: 2, Of: 4}, Units: 28, Memory: 11904},
	}},
	{Words: []string{"A100"}, Memory: 40960, Compute: 312, Bandwidth: 1555, Units: 108, Profiles: sevenths(
		sliced{"1g.5gb", 1, 14, 4864}, sliced{"1g.10gb", 1, 14, 9856}, sliced{"2g.10gb", 2, 28, 9984}, sliced{"3g.20gb", 3, 42, 20096}, sliced{"4g.20gb", 4, 56, 20096},
	)},
	{Words: []string{"A100", "PCIe"}, Memory: 81920, Compute: 312, Bandwidth: 1935, Units: 108, Profiles: a100x80},
	{Words: []string{"A100"}, Memory: 81920, Compute: 312, Bandwidth: 2039, Units: 108, Profiles: a100x80},
	{Words: []string{"A800", "PCIe"}, Memory: 81920, Compute: 312, Bandwidth: 1935, Units: 108, Profiles: a100x80},
	{Words: []string{"A800"}, Memory: 81920, Compute: 312, Bandwidth: 2039, Units: 108, Profiles: a100x80},
	{Words: []string{"H100", "PCIe"}, Memory: 81559, Compute: 756, Bandwidth: 2000, Units: 114, Profiles: sevenths(
		sliced{"1g.10gb", 1, 14, 9728}, sliced{"1g.20gb", 1, 14, 19968}, sliced{"2g.20gb", 2, 30, 19968}, sliced{"3g.40gb", 3, 46, 40192}, sliced{"4g.40gb", 4, 62, 40192},
	)},
	{Words: []string{"H100", "NVL"}, Memory: 95830, Compute: 835, Bandwidth: 3900, Units: 132, Profiles: h100x94},
	{Words: []string{"H100"}, Memory: 81559, Compute: 989, Bandwidth: 3350, Units: 132, Profiles: h100x80},
	{Words: []string{"H100"}, Memory: 95830, Compute: 989, Bandwidth: 3350, Units: 132, Profiles: h100x94}, // SXM5 of 94 GB
	{Words: []string{"H800"}, Memory: 81559, Compute: 989, Bandwidth: 3350, Units: 132, Profiles: h100x80},
	{Words: []string{"GH200"}, Memory: 97871, Compute: 989, Bandwidth: 4000, Units: 132, Profiles: sevenths(
		sliced{"1g.12gb", 1, 16, 11264}, sliced{"1g.24gb", 1, 26, 23552}, sliced{"2g.24gb", 2, 32, 23552}, sliced{"3g.48gb", 3, 60, 47616}, sliced{"4g.48gb", 4, 64, 47616},
	)},
	{Words: []string{"GH200"}, Memory: 146831, Compute: 989, Bandwidth: 4900, Units: 132, Profiles: sevenths(
		sliced{"1g.18gb", 1, 16, 17920}, sliced{"1g.36gb", 1, 26, 36096}, sliced{"2g.36gb", 2, 32, 36096}, sliced{"3g.72gb", 3, 48, 72192}, sliced{"4g.72gb", 4, 64, 72192},
	)},
	{Words: []string{"H200"}, Memory: 143771, Compute: 989, Bandwidth: 4800, Units: 132, Profiles: sevenths(
		sliced{"1g.18gb", 1, 16, 16384}, sliced{"1g.35gb", 1, 26, 33024}, sliced{"2g.35gb", 2, 32, 33024}, sliced{"3g.71gb", 3, 60, 71168}, sliced{"4g.71gb", 4, 64, 71168},
	)},
	{Words: []string{"B200"}, Memory: 183359, Compute: 2250, Bandwidth: 7700, Units: 148, Profiles: sevenths(
		sliced{"1g.23gb", 1, 18, 20992}, sliced{"1g.45gb", 1, 30, 45312}, sliced{"2g.45gb", 2, 36, 45312}, sliced{"3g.90gb", 3, 54, 90624}, sliced{"4g.90gb", 4, 72, 90624},
	)},
	{Words: []string{"GB200"}, Memory: 189471, Compute: 2450, Bandwidth: 8000, Units: 152, Profiles: sevenths(
		sliced{"1g.23gb", 1, 18, 20480}, sliced{"1g.47gb", 1, 32, 46592}, sliced{"2g.47gb", 2, 38, 46592}, sliced{"3g.95gb", 3, 54, 93184}, sliced{"4g.95gb", 4, 72, 93184},
	)},
	{Words: []string{"RTX", "PRO", "6000", "Blackwell"}, Memory: 97887, Units: 188, Profiles: []device.PartitionProfile{
		{Name: "1g.24gb", Slice: device.Slice{Held: 1, Of: 4}, Units: 46, Memory: 23680},
		{Name: "2g.48gb", Slice: device.Slice{Held: 2, Of: 4}, Units: 92, Memory: 47360},
	}},
}

var (
	a100x80 = sevenths(
		sliced{"1g.10gb", 1, 14, 9728}, sliced{"1g.20gb", 1, 14, 19968}, sliced{"2g.20gb", 2, 28, 19968}, sliced{"3g.40gb", 3, 42, 40192}, sliced{"4g.40gb", 4, 56, 40192},
	)
	h100x80 = sevenths(
		sliced{"1g.10gb", 1, 16, 9984}, sliced{"1g.20gb", 1, 26, 20096}, sliced{"2g.20gb", 2, 32, 20096}, sliced{"3g.40gb", 3, 60, 40448}, sliced{"4g.40gb", 4, 64, 40448},
	)
	h100x94 = sevenths(
		sliced{"1g.12gb", 1, 16, 10880}, sliced{"1g.24gb", 1, 26, 22016}, sliced{"2g.24gb", 2, 32, 22016}, sliced{"3g.47gb", 3, 60, 47232}, sliced{"4g.47gb", 4, 64, 47232},
	)
)

// sliced is a profile of a GPU with seven compute slices.
type sliced struct {
	name                string
	slices, sms, memory int
}

func sevenths(list ...sliced) []device.PartitionProfile {
	out := make([]device.PartitionProfile, len(list))
	for i, s := range list {
		out[i] = device.PartitionProfile{Name: s.name, Slice: device.Slice{Held: s.slices, Of: 7}, Units: s.sms, Memory: s.memory}
	}
	return out
}
