//go:build linux

package amd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

func TestArchitecture(t *testing.T) {
	for gfx, want := range map[int]string{
		90402: "gfx942", 90500: "gfx950", 90010: "gfx90a", 90008: "gfx908", 110000: "gfx1100", 120001: "gfx1201", 0: "",
	} {
		if got := architecture(gfx); got != want {
			t.Errorf("%d is %s, want %s", gfx, got, want)
		}
	}
}

// Both of the kernel's partition numbering schemes map to the address of their GPU. CPUs
// and GPUs of other vendors are ignored.
func TestParseNode(t *testing.T) {
	f := func(text string, want node, wantOK bool) {
		t.Helper()
		got, ok := parseNode(text)
		if ok != wantOK {
			t.Errorf("%q: %v", text, ok)
		}
		if diff := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	const gpu = "simd_count 152\nsimd_per_cu 4\nvendor_id 4098\n"
	f("simd_count 0\nvendor_id 4098\n", node{}, false)
	f("simd_count 8\nvendor_id 4318\n", node{}, false)
	f("garbage\n\nsimd_count\n", node{}, false)
	f(gpu, node{pci: "0000:00:00.0", cus: 38}, true)
	f(gpu+"location_id 1287\ndomain 1\ndrm_render_minor 135\nunique_id 11\ngfx_target_version 90402\n",
		node{pci: "0001:05:00.0", part: 7, cus: 38, unique: "000000000000000b", render: "renderD135", gfx: 90402}, true)
	f(gpu+"location_id 1879049472\n", node{pci: "0000:05:00.0", part: 7, cus: 38}, true)
	f(gpu+"location_id 18176\n", node{pci: "0000:47:00.0", cus: 38}, true)
	f(gpu+"location_id 800\n", node{pci: "0000:03:04.0", cus: 38}, true)
	f("simd_count 152\nvendor_id 4098\n", node{pci: "0000:00:00.0"}, true) // no division by 0
}

// cpx creates a GPU split into eight partitions, with or without a unique id.
func cpx(tr tree, card int, bus int, first int, unique uint64) {
	files := map[string]string{"current_compute_partition": "CPX\n", "current_memory_partition": "NPS4\n"}
	if unique != 0 {
		files["unique_id"] = fmt.Sprintf("%016x\n", unique)
	}
	tr.card(card, fmt.Sprintf("0000:%02x:00.0", bus), files)
	tr.write(fmt.Sprintf("sys/class/drm/card%d/device/drm/renderD%d/dev", card, 128+first), "")
	for k := range 8 {
		dir := fmt.Sprintf("sys/class/kfd/kfd/topology/nodes/%d/", first+k+1)
		tr.write(dir+"gpu_id", fmt.Sprintln(1000+first+k))
		tr.write(dir+"properties", fmt.Sprintf("simd_count 152\nsimd_per_cu 4\nvendor_id 4098\nlocation_id %d\nunique_id %d\ndrm_render_minor %d\n",
			bus<<8|k, unique, 128+first+k))
	}
}

// Sixteen partitions of two GPUs: each under its own parent, in order, with two-digit node
// numbers.
func TestCPX(t *testing.T) {
	for _, unique := range []uint64{0, 0xabc} {
		tr := newTree(t)
		cpx(tr, 1, 0x05, 0, unique)
		cpx(tr, 9, 0x26, 8, unique*2)
		list := devices(t, tr.open())
		if len(list) != 18 {
			t.Fatalf("%d devices", len(list))
		}
		for i, d := range list {
			id, of, k := d.ID(), i/9, i%9-1
			g := d.(*gpu)
			switch {
			case k < 0:
				if id.Parent != "" || g.cus != 304 || g.gpuID != 0 || id.Profile != "" {
					t.Errorf("GPU %d: %+v, %d compute units", of, id, g.cus)
				}
			case id.Parent != list[of*9].ID().UUID || id.UUID != fmt.Sprintf("%s-xcp%d", id.Parent, k) || id.Index != of ||
				g.gpuID != uint64(1000+of*8+k) || g.cus != 38 || g.render != fmt.Sprintf("renderD%d", 128+of*8+k) || id.Profile != "cpx_nps4":
				t.Errorf("partition %d of %d: %+v, KFD %d", k, of, id, g.gpuID)
			}
		}
		// The first partition has its table among the GPU's files; the others have none
		// here.
		tr.write("sys/class/drm/card1/device/xcp/xcp_metrics", string(packed(t, partitionPacked, "40 u8 40 60")))
		for i, want := range []device.Value{device.Of(0.5), {}} {
			if got := read(t, list[1+i:2+i], device.Fast)[0].Utilization.Compute; got != want {
				t.Errorf("partition %d is busy %v, want %v", i, got, want)
			}
		}
		// A partition without files of its own must not use the first partition's.
		if got := strings.Join(list[2].(*gpu).aliases(), " "); got != "renderD129" {
			t.Errorf("aliases of partition 1: %s", got)
		}
		if got := strings.Join(list[1].(*gpu).aliases(), " "); got != "0000:05:00.0 renderD128 card1 gpu-1-128" {
			t.Errorf("aliases of partition 0: %s", got)
		}
		if list[2].(*gpu).xcp != "" {
			t.Errorf("partition 1 reads %s", list[2].(*gpu).xcp)
		}
	}
}

// A partition that KFD does not list leaves the numbers of the others unchanged.
func TestNumbering(t *testing.T) {
	f := func(parts []uint64, want []int, count int) {
		t.Helper()
		var own []node
		for _, p := range parts {
			own = append(own, node{part: p})
		}
		got, n := numbering(own)
		if diff := cmp.Diff(want, got); diff != "" || n != count {
			t.Errorf("%v: %d partitions (-want +got):\n%s", parts, n, diff)
		}
	}
	f([]uint64{0, 1, 2, 3}, []int{0, 1, 2, 3}, 4)
	f([]uint64{0, 2, 3}, []int{0, 2, 3}, 4)
	f([]uint64{0, 0, 0}, []int{0, 1, 2}, 3)
	f([]uint64{0, 1, 1}, []int{0, 1, 2}, 3)
}

// The functions of one slot are separate GPUs.
func TestFunctions(t *testing.T) {
	f := func(pci, unique string, want int, properties ...string) {
		t.Helper()
		s := sighting{id: device.ID{PCI: pci}, unique: unique}
		var all []node
		for _, p := range properties {
			n, ok := parseNode("simd_count 4\nsimd_per_cu 4\nvendor_id 4098\n" + p)
			if !ok {
				t.Fatal(p)
			}
			all = append(all, n)
		}
		if got := len(s.nodes(all)); got != want {
			t.Errorf("%s %s: %d nodes, want %d", pci, unique, got, want)
		}
	}
	f("0000:05:00.0", "", 1, "location_id 1280")
	f("0000:05:00.1", "", 1, "location_id 1280", "location_id 1281", "location_id 1282")
	f("0000:05:00.0", "00000000000000ab", 1, "location_id 1280\nunique_id 171", "location_id 1281\nunique_id 172")
	f("0000:05:00.0", "00000000000000ab", 1, "location_id 1280") // KFD of an older kernel
	f("0000:05:00.0", "", 1, "location_id 1280\nunique_id 171")
	f("0000:06:00.0", "00000000000000ab", 0, "location_id 1280\nunique_id 171") // the id of another GPU
	f("0001:05:00.0", "", 0, "location_id 1280")
	f("0001:05:00.0", "", 1, "location_id 1280\ndomain 1")
}

// If the GPU's directory has no render node, KFD provides its number.
func TestRender(t *testing.T) {
	tr := newTree(t)
	tr.card(4, "0000:01:00.0", nil)
	tr.write("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 4\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 256\ndrm_render_minor 131\n")
	s := read(t, devices(t, tr.open()), device.Static)[0]
	if diff := cmp.Diff([]string{"renderD131", "card4", "gpu-4-131"}, s.Aliases); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Processes that can no longer be listed are absent, not those of the previous read.
func TestProcessesGone(t *testing.T) {
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", nil)
	tr.write("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 4\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 256\n")
	tr.write("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "7\n")
	tr.write("sys/class/kfd/kfd/proc/12/vram_7", "1\n")
	list := devices(t, tr.open())
	if got := read(t, list, device.Static)[0].Processes; len(got) != 1 {
		t.Errorf("%v", got)
	}
	tr.remove("sys/class/kfd/kfd/proc")
	if got := read(t, list, device.Fast)[0].Processes; got != nil {
		t.Errorf("%v", got)
	}
}

// A user of a GPU has memory or a queue on it, and is reported once, however often KFD
// lists it.
func TestProcesses(t *testing.T) {
	f := func(files map[string]string, want []device.Process, wantErr string) {
		t.Helper()
		s, err := one(t, nil, func(tr tree) {
			tr.write("sys/class/kfd/kfd/topology/nodes/0/name", "") // a node that is disappearing
			tr.write("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 400\nsimd_per_cu 4\nvendor_id 4098\nlocation_id 256\n")
			tr.write("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "7\n")
			for name, content := range files {
				tr.write("sys/class/kfd/kfd/proc/"+name, content)
			}
		})
		if diff := cmp.Diff(want, s.Processes); diff != "" {
			t.Errorf("%v (-want +got):\n%s", files, diff)
		}
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%v: error %v", files, err)
		}
	}
	of := device.Of
	p := func(pid uint32, memory, occupancy device.Value) device.Process {
		return device.Process{PID: pid, Type: "compute", MemoryUsed: memory, Occupancy: occupancy}
	}
	f(nil, nil, "")
	f(map[string]string{"12/vram_7": "0", "12/vram_8": "5", "12/queues/0/gpuid": "8"}, nil, "")
	f(map[string]string{"12/pasid": "1"}, nil, "")
	f(map[string]string{"12/vram_7": "4096\n", "12/stats_7/cu_occupancy": "25\n"}, []device.Process{p(12, of(4096), of(0.25))}, "")
	f(map[string]string{"12/vram_7": "4096"}, []device.Process{p(12, of(4096), device.Value{})}, "")
	f(map[string]string{"12/vram_7": "0", "12/queues/3/gpuid": "7", "12/stats_7/cu_occupancy": "0"}, []device.Process{p(12, of(0), of(0))}, "")
	f(map[string]string{"12/queues/3/gpuid": "7"}, []device.Process{p(12, device.Value{}, device.Value{})}, "")
	f(map[string]string{"100/vram_7": "1", "9/vram_7": "2", "x/vram_7": "3", "0/vram_7": "3"}, []device.Process{p(9, of(2), device.Value{}), p(100, of(1), device.Value{})}, "")
	f(map[string]string{"12/vram_7": "10", "12/stats_7/cu_occupancy": "80", "pid:12-id:1/vram_7": "5", "pid:12-id:1/stats_7/cu_occupancy": "40"},
		[]device.Process{p(12, of(15), of(1))}, "")
	f(map[string]string{"12/vram_7": "garbage", "13/vram_7": "1"}, []device.Process{p(13, of(1), device.Value{})}, "proc/12/vram_7")
}
