package workload

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
)

const gib = 1 << 30

func limited(name string, memory, compute float64) Grant {
	g := grant(pod(name), "GPU-a", 1, 10)
	g.Limit = Limit{Memory: uint64(memory * gib), Compute: compute}
	return g
}

// resolved returns the parts of a device of 80 GiB by pod, those of limits with a minus, and the reasons.
func resolved(memory float64, grants ...Grant) (map[string]float64, []Reason) {
	r := Resolver{Sources: []Source{source{grants: grants}}}
	a := r.Resolve(Question{Devices: []Device{{ID: device.ID{UUID: "GPU-a"}, Memory: memory * gib}}})
	parts := map[string]float64{}
	for _, h := range a.Holdings {
		parts[h.Workload.Name] = h.Part
		if h.Limited {
			parts[h.Workload.Name] = -h.Part
		}
	}
	var reasons []Reason
	for _, s := range a.Statuses {
		reasons = append(reasons, s.Reason)
	}
	return parts, reasons
}

// Catches a slice that counts as a replica, and parts that are more than the device.
func TestLimits(t *testing.T) {
	f := func(what string, want map[string]float64, grants ...Grant) {
		t.Helper()
		got, reasons := resolved(80, grants...)
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" || len(reasons) > 0 {
			t.Errorf("%s, %v (-want +got):\n%s", what, reasons, diff)
		}
	}
	f("memory", map[string]float64{"a": -0.5, "b": -0.1}, limited("a", 40, 0), limited("b", 8, 0))
	f("more of the cores than of the memory", map[string]float64{"a": -0.6, "b": -0.1}, limited("a", 40, 0.6), limited("b", 8, 0))
	f("more of the cores than the memory of others leaves", map[string]float64{"a": -0.5, "b": -0.5}, limited("a", 40, 0), limited("b", 8, 1))
	f("two that want the rest", map[string]float64{"a": -(0.1 + 0.4), "b": -(0.1 + 0.4)}, limited("a", 8, 0.5), limited("b", 8, 0.5))
	f("the whole device", map[string]float64{"a": -1}, limited("a", 80, 1))
	f("two slices of one container", map[string]float64{"a": -0.2}, limited("a", 8, 0), limited("a", 8, 0))
}

// Catches a pod whose annotation says that it has more than it was given: it gets no more than a replica, and nobody else loses to it.
func TestUntrueLimits(t *testing.T) {
	f := func(what string, want map[string]float64, grants ...Grant) {
		t.Helper()
		got, reasons := resolved(80, grants...)
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" || !cmp.Equal(reasons, []Reason{Failed}) {
			t.Errorf("%s, %v (-want +got):\n%s", what, reasons, diff)
		}
	}
	replicas := map[string]float64{"a": 0.1, "b": 0.1}
	f("more memory than the device", replicas, limited("a", 40, 0), limited("b", 80, 0))
	f("more cores than the device", replicas, limited("a", 8, 0.7), limited("b", 8, 0.7))
	whole := grant(pod("a"), "GPU-a", 1, 1)
	f("a device that somebody has", map[string]float64{"a": 1, "b": 0.1}, whole, limited("b", 40, 0))
	f("alone", map[string]float64{"b": 0.1}, limited("b", 16<<30, 0))
	if got, reasons := resolved(0, limited("a", 40, 0)); got["a"] != 0.1 || len(reasons) > 0 {
		t.Errorf("a device without a size: %v, %v", got, reasons)
	}

	// Whatever somebody writes into b, a has at least the memory that it was given, or a replica.
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a, b := limited("a", 80*r.Float64(), r.Float64()), limited("b", 160*r.Float64(), 2*r.Float64())
		parts, reasons := resolved(80, a, b)
		own := float64(a.Limit.Memory) / (80 * gib)
		sum := math.Abs(parts["a"]) + math.Abs(parts["b"])
		if sum > 1+1e-3 || len(reasons) == 0 && -parts["a"] < own-1e-9 || len(reasons) > 0 && (parts["a"] != 0.1 || parts["b"] != 0.1) {
			t.Fatalf("%+v and %+v: %v, %v", a.Limit, b.Limit, parts, reasons)
		}
	}
}
