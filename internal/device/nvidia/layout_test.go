//go:build linux

package nvidia

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// A struct whose layout differs from the driver's is silently read as garbage. The numbers
// are those of the C ABI on amd64 and arm64, as published with NVML.
func TestLayout(t *testing.T) {
	type layout struct {
		Size    uintptr
		Offsets []uintptr
	}
	var (
		fv fieldValue
		pi processInfo
		m2 memoryV2
		pc pciInfo
		pu processUtil
		sv sampleValue
		f2 fabricV2
		f3 fabricV3
		ss sramStatus
		ma migAttributes
		gm gpmMetric
		gg gpmMetricsGet
		mg margin
		ed eventData
	)
	got := map[string]layout{
		"FieldValue": {unsafe.Sizeof(fv), []uintptr{
			unsafe.Offsetof(fv.scopeID), unsafe.Offsetof(fv.timestamp),
			unsafe.Offsetof(fv.latencyUs), unsafe.Offsetof(fv.valueType), unsafe.Offsetof(fv.ret), unsafe.Offsetof(fv.value),
		}},
		"ProcessInfo":              {unsafe.Sizeof(pi), []uintptr{unsafe.Offsetof(pi.usedGPUMemory), unsafe.Offsetof(pi.gi), unsafe.Offsetof(pi.ci)}},
		"Memory_v2":                {unsafe.Sizeof(m2), []uintptr{unsafe.Offsetof(m2.total), unsafe.Offsetof(m2.reserved), unsafe.Offsetof(m2.free), unsafe.Offsetof(m2.used)}},
		"PciInfo":                  {unsafe.Sizeof(pc), []uintptr{unsafe.Offsetof(pc.domain), unsafe.Offsetof(pc.pciDeviceID), unsafe.Offsetof(pc.busID)}},
		"ProcessUtilizationSample": {unsafe.Sizeof(pu), []uintptr{unsafe.Offsetof(pu.timestamp), unsafe.Offsetof(pu.sm), unsafe.Offsetof(pu.dec)}},
		"Sample":                   {unsafe.Sizeof(sv), []uintptr{unsafe.Offsetof(sv.value)}},
		"GpuFabricInfo_v2":         {unsafe.Sizeof(f2), []uintptr{unsafe.Offsetof(f2.status), unsafe.Offsetof(f2.state), unsafe.Offsetof(f2.healthMask)}},
		"GpuFabricInfo_v3":         {unsafe.Sizeof(f3), []uintptr{unsafe.Offsetof(f3.healthSummary)}},
		"EccSramErrorStatus":       {unsafe.Sizeof(ss), []uintptr{unsafe.Offsetof(ss.counters), unsafe.Offsetof(ss.thresholdExceeded)}},
		"DeviceAttributes":         {unsafe.Sizeof(ma), []uintptr{unsafe.Offsetof(ma.gpuSlices), unsafe.Offsetof(ma.memoryMiB)}},
		"GpmMetric":                {unsafe.Sizeof(gm), []uintptr{unsafe.Offsetof(gm.ret), unsafe.Offsetof(gm.value)}},
		"GpmMetricsGet":            {unsafe.Offsetof(gg.metrics), []uintptr{unsafe.Offsetof(gg.sample1), unsafe.Offsetof(gg.sample2)}},
		"MarginTemperature":        {unsafe.Sizeof(mg), []uintptr{unsafe.Offsetof(mg.celsius)}},
		"EventData":                {unsafe.Sizeof(ed), []uintptr{unsafe.Offsetof(ed.eventType), unsafe.Offsetof(ed.data), unsafe.Offsetof(ed.gi), unsafe.Offsetof(ed.ci)}},
		"Utilization":              {unsafe.Sizeof(utilization{}), nil},
		"BAR1Memory":               {unsafe.Sizeof(bar1{}), nil},
		"RowRemapperHistogram":     {unsafe.Sizeof(rowHistogram{}), nil},
		"FanSpeedInfo":             {unsafe.Sizeof(fanSpeedRPM{}), nil},
		"GpmSupport":               {unsafe.Sizeof(gpmSupport{}), nil},
	}
	want := map[string]layout{
		"FieldValue":               {40, []uintptr{4, 8, 16, 24, 28, 32}},
		"ProcessInfo":              {24, []uintptr{8, 16, 20}},
		"Memory_v2":                {40, []uintptr{8, 16, 24, 32}},
		"PciInfo":                  {68, []uintptr{16, 28, 36}},
		"ProcessUtilizationSample": {32, []uintptr{8, 16, 28}},
		"Sample":                   {16, []uintptr{8}},
		"GpuFabricInfo_v2":         {36, []uintptr{20, 28, 32}},
		"GpuFabricInfo_v3":         {40, []uintptr{36}},
		"EccSramErrorStatus":       {104, []uintptr{8, 96}},
		"DeviceAttributes":         {40, []uintptr{24, 32}},
		"GpmMetric":                {40, []uintptr{4, 8}},
		"GpmMetricsGet":            {24, []uintptr{8, 16}},
		"MarginTemperature":        {8, []uintptr{4}},
		"EventData":                {32, []uintptr{8, 16, 24, 28}},
		"Utilization":              {8, nil},
		"BAR1Memory":               {24, nil},
		"RowRemapperHistogram":     {20, nil},
		"FanSpeedInfo":             {12, nil},
		"GpmSupport":               {8, nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layout (-want +got):\n%s", diff)
	}
	if v := version(unsafe.Sizeof(m2), 2); v != 33554472 {
		t.Errorf("version of Memory_v2 = %d, the H200's driver expects 33554472", v)
	}
}
