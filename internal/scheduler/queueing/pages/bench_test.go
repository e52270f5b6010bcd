package pages

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gpumeter/gpumeter/internal/promtext"
	"github.com/gpumeter/gpumeter/internal/scheduler/queueing"
)

// BenchmarkLargePage reads the page of kube-state-metrics of a cluster with 10,000 pods and 1,000 nodes.
func BenchmarkLargePage(b *testing.B) {
	var page bytes.Buffer
	for i := range 10_000 {
		id := fmt.Sprintf("namespace=\"team-%d\",pod=\"training-job-%d-worker-0\",uid=\"e145609d-2a5d-43fe-8ef5-%012d\"", i%50, i, i)
		for _, resource := range []string{"cpu", "memory", "nvidia_com_gpu"} {
			fmt.Fprintf(&page, "kube_pod_container_resource_requests{%s,container=\"main\",node=\"gn%d\",resource=%q,unit=\"integer\"} 1\n", id, i%1000, resource)
		}
		for n, phase := range []string{"Running", "Pending", "Succeeded", "Failed", "Unknown"} {
			fmt.Fprintf(&page, "kube_pod_status_phase{%s,phase=%q} %d\n", id, phase, map[bool]int{true: 1}[n == 0])
		}
		for range 40 { // of other families
			fmt.Fprintf(&page, "kube_pod_container_status_ready{%s,container=\"main\"} 1\n", id)
		}
	}
	for i := range 1000 {
		fmt.Fprintf(&page, "kube_node_status_allocatable{node=\"gn%d\",resource=\"nvidia_com_gpu\",unit=\"integer\"} 8\n", i)
	}
	b.SetBytes(int64(page.Len()))
	b.ReportAllocs()
	for b.Loop() {
		kept, err := keep(bytes.NewReader(page.Bytes()), maxBytes, maxKept)
		if err != nil {
			b.Fatal(err)
		}
		r := queueing.Read("kube-state-metrics", []queueing.Page{{Instance: "a", Text: promtext.Scan(kept)}}, vendors, nil)
		if got := r.Gauges[queueing.Point{Name: queueing.Capacity}]; got != 8000 {
			b.Fatalf("%v GPUs", got)
		}
	}
}
