package discover

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches an engine on the devices of another, on a device instead of its partition, or on none.
func TestDevices(t *testing.T) {
	reading := func(uuid, parent string, pids ...uint32) node.Reading {
		r := node.Reading{Sample: device.Sample{ID: device.ID{UUID: uuid, Parent: parent}}}
		for _, pid := range pids {
			r.Processes = append(r.Processes, device.Process{PID: pid})
		}
		return r
	}
	holder := func(r node.Reading, partitions ...string) node.Reading {
		for _, p := range partitions {
			r.Holders = append(r.Holders, node.Holder{Workload: workload.Workload{ID: "pod/1/c"}, Partition: p})
		}
		return r
	}
	gone := reading("c", "")
	gone.Holders = []node.Holder{{Workload: workload.Workload{ID: "pod/1/c"}, Ended: true}}
	e := &engine{near: of([]uint32{1, 2}), tree: of([]uint32{1, 2, 3}), group: of([]uint32{1, 2, 3, 4})}
	for _, tt := range []struct {
		name     string
		readings []node.Reading
		want     []string
	}{
		{"its own processes, in the order of the tick", []node.Reading{reading("b", "", 2), reading("a", "", 1, 9), reading("c", "", 3), reading("d", "", 4)}, []string{"b", "a"}},
		{"those of its tree", []node.Reading{reading("a", "", 4), reading("b", "", 3)}, []string{"b"}},
		{"those of its control group", []node.Reading{reading("a", "", 9), reading("b", "", 4)}, []string{"b"}},
		{"those that its workload holds", []node.Reading{reading("a", "", 9), holder(reading("b", ""), ""), gone}, []string{"b"}},
		{"a partition, whose processes are on the device, too", []node.Reading{reading("a", "", 1, 9), reading("a1", "a", 1), reading("a2", "a", 9)}, []string{"a1"}},
		{"a partition that its workload holds", []node.Reading{holder(reading("a", ""), "a2"), reading("a1", "a"), reading("a2", "a")}, []string{"a2"}},
		{"the same, with its processes on the device only", []node.Reading{holder(reading("a", "", 1), "a2"), reading("a1", "a"), reading("a2", "a")}, []string{"a2"}},
		{"a process on one of the partitions that it holds", []node.Reading{holder(reading("a", "", 1), "a1", "a2"), reading("a1", "a", 1), reading("a2", "a")}, []string{"a1"}},
		{"nothing", []node.Reading{reading("a", "", 9), {Sample: device.Sample{ID: device.ID{UUID: "b"}}, Owner: &workload.Workload{ID: "pod/2/c"}}}, nil},
	} {
		var got []string
		for _, id := range devices(&node.Tick{Readings: tt.readings}, e, &workload.Workload{ID: "pod/1/c"}) {
			got = append(got, id.UUID)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if got := devices(&node.Tick{Readings: []node.Reading{holder(reading("a", ""), "")}}, e, nil); got != nil {
		t.Errorf("without an owner: %v", got)
	}
}

// Catches programs that hold no device and are asked, because a program of the same name and user is on one.
func TestProcessWorkloadTellsNothing(t *testing.T) {
	t.Parallel()
	python := workload.Workload{ID: "process/1000/python3", Kind: "process", Name: "python3"}
	pod := workload.Workload{ID: "pod/1/vllm", Kind: "deployment", Name: "chat"}
	tick := &node.Tick{Readings: []node.Reading{{Sample: device.Sample{ID: device.ID{UUID: "a"}}, Owner: &python, Holders: []node.Holder{{Workload: python}, {Workload: pod}}}}}
	if diff := cmp.Diff(map[string]bool{"pod/1/vllm": true}, ask(tick).holders); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := holds(tick, &python); len(got) != 0 {
		t.Errorf("it holds %v", got)
	}
}
