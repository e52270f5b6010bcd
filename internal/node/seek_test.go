package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// allocations is a kubelet that has allocated devices that no reader may know.
type allocations struct{ workload.Resolver }

func (a *allocations) give(ids ...string) {
	var s granted
	for _, id := range ids {
		s.list = append(s.list, workload.Grant{Workload: pod("of " + id), Device: workload.Ref{Resource: "nvidia.com/mig-1g", IDs: []string{id}}, Held: 1, Replicas: 1})
	}
	a.Sources = []workload.Source{s}
}

type granted struct{ list []workload.Grant }

func (g granted) Grants() []workload.Grant                      { return g.list }
func (g granted) Process(uint32) (w workload.Workload, ok bool) { return w, false }
func (g granted) Statuses() []workload.Status                   { return nil }

// Catches a MIG instance that was created at run time and is unallocated for up to a minute,
// although the kubelet names its holder; and a resource that no reader ever knows and that
// makes the driver list its devices at every tick.
func TestUnknownDeviceIsSought(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		var kubelet allocations
		r.cfg.Owners = &kubelet
		holders := func(name string, want ...string) {
			t.Helper()
			tick := r.tick(t)
			synctest.Wait() // a discovery runs between two ticks
			var got []string
			for _, h := range tick.Readings[0].Holders {
				if !h.Ended {
					got = append(got, h.Name+" "+h.Partition)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: holders (-want +got):\n%s", name, diff)
			}
		}
		lists := func(want int) {
			t.Helper()
			if got := r.m.listed(); got != want {
				t.Errorf("%d discoveries, want %d", got, want)
			}
		}
		time.Sleep(time.Second) // the zero time is special
		holders("start", " ")
		for range 12 {
			r.tick(t)
		}
		lists(1)
		r.m.set(func() {
			id := device.ID{Vendor: "test", UUID: "M", Parent: "A", Model: "T1"}
			r.m.devices = append(r.m.devices, &gpu{id: id, s: device.Sample{ID: id, Slice: device.Slice{Held: 1, Of: 1}}})
		})
		kubelet.give("M")
		holders("the kubelet names the instance", " ")
		holders("a tick later", "of M M")
		lists(2)
		kubelet.give("M", "fpga")
		for range 50 {
			r.tick(t)
		}
		lists(3) // once for the FPGA
		for i := range 9 {
			kubelet.give("M", string(rune('a'+i)))
			r.tick(t)
		}
		synctest.Wait()
		lists(4) // one in 10 s, although there is a new device at each tick
	})
}
