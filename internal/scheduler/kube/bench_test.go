package kube

import (
	"fmt"
	"runtime"
	"testing"
)

// A cluster of 1,000 nodes with 8 GPUs and 10,000 pods, of which 7,000 ask for GPUs and 2,000 of those wait: what a
// round of the elected instance costs, and what it keeps in memory.
func BenchmarkCluster(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := NewCluster(vendors, "team", NewWaits(epoch))
	add, commit := NodeSink{c}.Begin()
	for i := range 1000 {
		add(raw(b, node(fmt.Sprint("gn", i), "128")))
	}
	commit()
	add, commit = at(c, epoch).Begin()
	for i := range 10_000 {
		name, at, gpus := fmt.Sprint("p", i), fmt.Sprint("gn", i%1000), 1
		var more []object
		switch {
		case i < 3000:
			gpus = 0
		case i < 5000:
			at, gpus, more = "", 8, []object{refused(lacksGPUAndCPU)}
		}
		add(raw(b, pod(name, at, gpus, fmt.Sprint(1+i%200), more...)))
	}
	commit()
	runtime.GC()
	runtime.ReadMemStats(&after)
	for b.Loop() {
		s := c.Snapshot(epoch)
		if len(s.Counts()) == 0 || len(s.Room(s.Reference()).Pools) == 0 {
			b.Fatal("nothing is known")
		}
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
	runtime.KeepAlive(c)
}

// 1,000 nodes with 8 GPUs for claims, or with 8 GPUs in 15 ways each, and 5,000 pods with a claim each, 1,000 of which wait.
func BenchmarkClaims(b *testing.B) {
	for _, parts := range []int{0, 14} {
		b.Run(fmt.Sprint(1+parts, " per device"), func(b *testing.B) {
			nodes, pods, further := []object{}, []object{}, map[string][]object{"DeviceClass": deviceClass}
			for i := range 1000 {
				name := fmt.Sprint("gn", i)
				nodes = append(nodes, bare(name))
				further["ResourceSlice"] = append(further["ResourceSlice"], offered(name, 8*(1+parts)))
			}
			for i := range 5000 {
				name, at := fmt.Sprint("p", i), fmt.Sprint("gn", i%1000)
				c := claim(name, 1, at, []string{fmt.Sprint(i / 1000)}, name)
				if i >= 4000 {
					at, c = "", claim(name, 1, "", nil)
				}
				pods, further["ResourceClaim"] = append(pods, claims(name, at, "g="+name)), append(further["ResourceClaim"], c)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			c, _ := claimed(b, nodes, pods, further)
			runtime.GC()
			runtime.ReadMemStats(&after)
			runtime.KeepAlive([]any{nodes, pods, further})
			for b.Loop() {
				s := c.Snapshot(epoch)
				if len(s.Counts()) == 0 || len(s.Room(s.Reference()).Pools) == 0 {
					b.Fatal("nothing is known")
				}
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
			runtime.KeepAlive(c)
		})
	}
}

// The cluster of BenchmarkCluster, where every pod may move and 20 different demands for 8 GPUs wait: the advice of one round.
func BenchmarkPlan(b *testing.B) {
	c := NewCluster(vendors, "", nil)
	add, commit := NodeSink{c}.Begin()
	for i := range 1000 {
		add(raw(b, node(fmt.Sprint("gn", i), "128")))
	}
	commit()
	add, commit = at(c, epoch).Begin()
	for i := range 7000 {
		add(raw(b, pod(fmt.Sprint("p", i), fmt.Sprint("gn", i%1000), 1, fmt.Sprint(1+i%16), by("Job"))))
	}
	commit()
	s := c.Snapshot(epoch)
	for b.Loop() {
		p := NewPlanner(s)
		for i := range int64(20) {
			p.Plan(&Demand{Requests: Requests{CPU: 1000 * (1 + i), Memory: 1 << 30, Devices: map[string]int64{gpu: 8}}})
		}
	}
}
