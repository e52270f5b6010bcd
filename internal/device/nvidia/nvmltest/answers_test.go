//go:build linux

package nvmltest

import (
	"math"
	"testing"
	"time"
	"unsafe"
)

type fieldValue struct {
	ID, Scope          uint32
	timestamp, latency int64
	Type, Ret          uint32
	Value              uint64
}

// field is the part of a fieldValue that tests compare.
type field struct {
	ID, Type, Ret uint32
	Value         uint64
}

const unset = 777 // neither a type nor a return code

func (l library) fields(d uintptr, ids ...uint32) []field {
	l.t.Helper()
	values := make([]fieldValue, len(ids))
	for i, id := range ids {
		values[i] = fieldValue{ID: id, Type: unset, Ret: unset}
	}
	l.want(success, "nvmlDeviceGetFieldValues", d, uintptr(len(ids)), uintptr(unsafe.Pointer(&values[0])))
	var fields []field
	for _, v := range values {
		fields = append(fields, field{v.ID, v.Type, v.Ret, v.Value})
	}
	return fields
}

func TestVersionedStructs(t *testing.T) {
	l := open(t, New(t, ""))
	d := l.gpu(0)

	memory := struct {
		version                     uint32
		Total, Reserved, Free, Used uint64
	}{version: 40 | 1<<24}
	l.want(functionNotFound, "nvmlDeviceGetMemoryInfo_v2", d, uintptr(unsafe.Pointer(&memory)))
	memory.version = 40 | 2<<24
	l.want(success, "nvmlDeviceGetMemoryInfo_v2", d, uintptr(unsafe.Pointer(&memory)))
	diff(t, [4]uint64{150754820096, 644939776, 148915748864, 1194131456},
		[4]uint64{memory.Total, memory.Reserved, memory.Free, memory.Used})
	var v1 struct{ Total, Free, Used uint64 }
	l.want(success, "nvmlDeviceGetMemoryInfo", d, uintptr(unsafe.Pointer(&v1)))
	diff(t, memory.Used+memory.Reserved, v1.Used)

	for name, version := range map[string]uint32{
		"nvmlDeviceGetMarginTemperature":  8 | 1<<24,
		"nvmlDeviceGetSramEccErrorStatus": 104 | 1<<24,
		"nvmlDeviceGetGpuFabricInfoV":     40 | 3<<24,
		"nvmlGpmQueryDeviceSupport":       1,
	} {
		buffer := [32]uint32{version + 1}
		l.want(mismatch, name, d, uintptr(unsafe.Pointer(&buffer)))
		buffer[0] = version
		l.want(success, name, d, uintptr(unsafe.Pointer(&buffer)))
	}
}

func TestFieldsLeftUntouched(t *testing.T) {
	h := New(t, "field * 221 7 u64\nfield 0 166/3 unsupported\nfield 0 94 untouched")
	l := open(t, h)
	d := l.gpu(0)
	plain := []field{
		{82, 1, success, 50},
		{83, 3, success, 8653252},
		{193, 5, success, 0xfffffff8},
		{187, 1, success, 200000},
		{221, 3, success, 7},
		{94, unset, unset, 0},
		{270, 3, success, 0},
		{220, unset, notSupported, 0},
	}
	diff(t, plain, l.fields(d, 82, 83, 193, 187, 221, 94, 270, 220))

	// A ninth element, or one C2C field, suppresses the fragile fields and no others.
	want := []field{
		{82, 1, success, 50},
		{187, unset, unset, 0},
		{193, unset, unset, 0},
		{271, unset, unset, 0},
		{269, 3, success, 0},
		{74, 3, success, 6328776864},
		{75, 3, success, 0},
		{186, 1, success, 685770},
		{230, 1, success, 0},
	}
	diff(t, want, l.fields(d, 82, 187, 193, 271, 269, 74, 75, 186, 230))
	diff(t, []field{{187, unset, unset, 0}, {170, 1, notSupported, 0}}, l.fields(d, 187, 170))

	h.Append(t, "field-batch 0\ngpu 0 pcie-bytes 4294967298 5")
	want[1].Type, want[1].Ret, want[1].Value = 1, success, 200000
	diff(t, want[1], l.fields(d, 82, 187, 193, 271, 269, 74, 75, 186, 230)[1])
	diff(t, []field{{197, 1, success, 2}}, l.fields(d, 197)) // wrapped at 2^32
}

type process struct {
	PID    uint32
	Memory uint64
	GI, CI uint32
}

type utilization struct {
	PID               uint32
	timestamp         uint64
	SM, mem, enc, dec uint32
}

func TestProcesses(t *testing.T) {
	l := open(t, New(t, "process 0 100 compute 1024 93\nprocess 0 101 compute na na\nprocess 0 102 mps 5 na"))
	d := l.gpu(0)
	const list = "nvmlDeviceGetComputeRunningProcesses_v3"
	rows := make([]process, 4)
	n := uint32(0)
	l.want(insufficientSize, list, d, uintptr(unsafe.Pointer(&n)), 0)
	diff(t, uint32(2), n)
	n = 1
	l.want(insufficientSize, list, d, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&rows[0])))
	n = 4
	l.want(success, list, d, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&rows[0])))
	diff(t, []process{{100, 1024, math.MaxUint32, math.MaxUint32}, {101, math.MaxUint64, math.MaxUint32, math.MaxUint32}}, rows[:n])
	n = 0
	l.want(success, "nvmlDeviceGetGraphicsRunningProcesses_v3", d, uintptr(unsafe.Pointer(&n)), 0)

	const util = "nvmlDeviceGetProcessUtilization"
	l.want(insufficientSize, util, d, 0, uintptr(unsafe.Pointer(&n)), 0)
	diff(t, uint32(72), n)
	samples := make([]utilization, n)
	l.want(success, util, d, uintptr(unsafe.Pointer(&samples[0])), uintptr(unsafe.Pointer(&n)), 0)
	diff(t, uint32(1), n)
	diff(t, [2]uint32{100, 93}, [2]uint32{samples[0].PID, samples[0].SM})
	n, samples[0] = 72, utilization{}
	future := uintptr(time.Now().Add(time.Hour).UnixMicro())
	l.want(notFound, util, d, uintptr(unsafe.Pointer(&samples[0])), uintptr(unsafe.Pointer(&n)), future)
	diff(t, uint32(72), n) // not truncated: the rows belong to the caller
	diff(t, uint32(0), samples[0].PID)
}

func TestSamples(t *testing.T) {
	l := open(t, New(t, "gpu 0 util-samples 30 20"))
	d := l.gpu(0)
	var n, valueType uint32
	l.want(success, "nvmlDeviceGetSamples", d, 1, 0, uintptr(unsafe.Pointer(&valueType)), uintptr(unsafe.Pointer(&n)), 0)
	diff(t, uint32(72), n)
	rows := make([]struct{ Time, Value uint64 }, n)
	before := time.Now().UnixMicro()
	l.want(success, "nvmlDeviceGetSamples", d, 1, 0, uintptr(unsafe.Pointer(&valueType)),
		uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&rows[0])))
	diff(t, uint32(71), n)
	diff(t, uint64(0), rows[71].Time)
	diff(t, [3]uint64{100, 20, 30}, [3]uint64{rows[68].Value, rows[69].Value, rows[70].Value})
	if age := before - int64(rows[70].Time); age > 200_000 {
		t.Errorf("the newest sample is %d µs old", age)
	}
	l.want(notFound, "nvmlDeviceGetSamples", d, 1, uintptr(rows[70].Time+1e9), uintptr(unsafe.Pointer(&valueType)),
		uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&rows[0])))
}

func TestMIG(t *testing.T) {
	l := open(t, New(t, `
mig 0 0 MIG-a 2 0 3 3 71424 45219840
mig 0 2 MIG-b 9 0 1 1 16384 15204352
process 0 100 compute 5 na 9 0
gpm-mig 0 9 2 7.25
`))
	d := l.gpu(0)
	var mig, parent uintptr
	l.want(success, "nvmlDeviceGetMigDeviceHandleByIndex", d, 2, uintptr(unsafe.Pointer(&mig)))
	l.want(notFound, "nvmlDeviceGetMigDeviceHandleByIndex", d, 1, uintptr(unsafe.Pointer(&parent)))
	diff(t, "MIG-b", l.text("nvmlDeviceGetUUID", mig))
	diff(t, "NVIDIA H200 MIG 1g.18gb", l.text("nvmlDeviceGetName", mig))
	l.want(success, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig, uintptr(unsafe.Pointer(&parent)))
	diff(t, d, parent)
	l.want(notSupported, "nvmlDeviceGetUtilizationRates", d, uintptr(unsafe.Pointer(new([2]uint32))))
	ret, _ := l.temperature(d)
	diff(t, success, ret)
	ret, _ = l.temperature(mig)
	diff(t, invalidArgument, ret)
	n := uint32(0)
	l.want(insufficientSize, "nvmlDeviceGetComputeRunningProcesses_v3", mig, uintptr(unsafe.Pointer(&n)), 0)
	diff(t, uint32(1), n)

	older, newer := l.sample(), l.sample()
	l.want(success, "nvmlGpmMigSampleGet", d, 9, older)
	l.want(success, "nvmlGpmMigSampleGet", d, 9, newer)
	l.want(invalidArgument, "nvmlGpmMigSampleGet", d, 1, newer)
	diff(t, []metric{{2, success, 7.25}, {20, success, 0}}, l.metrics(success, older, newer, 2, 20))
}

func (l library) sample() (s uintptr) {
	l.t.Helper()
	l.want(success, "nvmlGpmSampleAlloc", uintptr(unsafe.Pointer(&s)))
	return s
}

type metric struct {
	ID, Ret uint32
	Value   float64
}

func (l library) metrics(ret int, older, newer uintptr, ids ...uint32) (got []metric) {
	l.t.Helper()
	var m struct {
		version, count uint32
		older, newer   uintptr
		metric         [8]struct {
			metric
			_ [3]uintptr
		}
	}
	m.version, m.count, m.older, m.newer = 1, uint32(len(ids)), older, newer
	for i, id := range ids {
		m.metric[i].metric = metric{ID: id, Ret: unset}
	}
	l.want(ret, "nvmlGpmMetricsGet", uintptr(unsafe.Pointer(&m)))
	for i := range ids {
		got = append(got, m.metric[i].metric)
	}
	return got
}

func TestGPM(t *testing.T) {
	h := New(t, "")
	l := open(t, h)
	d := l.gpu(0)
	older, newer := l.sample(), l.sample()
	l.want(success, "nvmlGpmSampleGet", d, older)
	l.metrics(invalidArgument, older, newer, 1) // the newer one is empty
	h.Script(t, "gpu 0 gpm 10 50.5\ngpu 0 gpm 12 na")
	l.want(success, "nvmlGpmSampleGet", d, newer)
	want := []metric{{1, success, 99.75}, {10, success, 50.5}, {12, notSupported, 0}, {21, success, 14.25}, {210, invalidArgument, 0}}
	diff(t, want, l.metrics(success, older, newer, 1, 10, 12, 21, 210))
	diff(t, []metric{{1, unset, 0}}, l.metrics(invalidArgument, newer, newer, 1))

	h.Append(t, "gpu 0 gpm-period 1000")
	l.want(success, "nvmlGpmSampleGet", d, newer)
	got := l.metrics(success, older, newer, 1, 10)
	if got[0].Value != 0 || !math.IsNaN(got[1].Value) {
		t.Errorf("samples too close gave %v, want 0 and NaN, both with success", got)
	}
	l.want(success, "nvmlGpmSampleFree", older)
	h.Script(t, "gpu 0 arch 8")
	l.want(notSupported, "nvmlGpmSampleGet", d, newer)
}
