package share

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches a default that a real node exceeds, and one that leaves nothing for others.
func TestDefaultSeries(t *testing.T) {
	for limit, want := range map[int]int{10_000: 7500, 60_000: 45_000, 170_000: 50_000, 700_000: 175_000, 2_000_000: 500_000, 1: 1} {
		if got := DefaultSeries(limit); got != want {
			t.Errorf("a node may have %d of %d series, want %d", got, limit, want)
		}
	}
	// 16 GPUs of 80 series each, and 500 workloads of 10 that are replaced every hour while the
	// series of the last three hours are in memory. The smallest hub of a fleet has 2 GiB.
	if need, got := 16*80+500*10*4, DefaultSeries(170_000); got < 2*need {
		t.Errorf("a node may have %d series and needs %d", got, need)
	}
}

// Catches events of a quiet node that are deleted for a noisy one, rare events that are deleted
// for frequent ones of the same node, and an even fleet whose files are rewritten all the time.
func TestEvict(t *testing.T) {
	kind := func(node, name string) Kind { return Kind{Node{Name: node}, name} }
	for what, c := range map[string]struct {
		sizes map[Kind]int64
		want  map[Kind]int64
	}{
		"one noisy node": {
			map[Kind]int64{kind("noisy", "throttle"): 900, kind("noisy", "xid"): 10, kind("quiet", "xid"): 90},
			map[Kind]int64{kind("noisy", "throttle"): 64},
		},
		"two noisy nodes": {
			map[Kind]int64{kind("a", "throttle"): 228, kind("b", "throttle"): 328, kind("quiet", "xid"): 90},
			map[Kind]int64{kind("a", "throttle"): 22, kind("b", "throttle"): 43},
		},
		"many noisy nodes": {
			map[Kind]int64{
				kind("a", "x"): 110, kind("b", "x"): 110, kind("c", "x"): 110, kind("d", "x"): 110, kind("e", "x"): 110, kind("f", "x"): 110, kind("g", "x"): 110, kind("h", "x"): 110,
				kind("quiet", "x"): 60,
			},
			map[Kind]int64{kind("a", "x"): 8, kind("b", "x"): 8, kind("c", "x"): 8, kind("d", "x"): 8, kind("e", "x"): 8, kind("f", "x"): 8, kind("g", "x"): 8, kind("h", "x"): 8},
		},
		"a node alone": {
			map[Kind]int64{kind("a", "throttle"): 990, kind("a", "xid"): 10},
			map[Kind]int64{kind("a", "throttle"): 64},
		},
		"nothing": {map[Kind]int64{}, nil},
	} {
		if diff := cmp.Diff(c.want, Evict(c.sizes, 64, 1024)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	even := map[Kind]int64{}
	for i := range 2000 {
		even[Kind{Node{Name: string(rune('a' + i))}, "x"}] = 100_000 / 2000
	}
	if got := Evict(even, 6000, 100_000); got != nil {
		t.Errorf("%d of 2000 equal nodes give up events", len(got))
	}
	names := map[Kind]int64{kind("quiet", "xid"): 50}
	for i := range 1000 { // names of events are as free as those of nodes
		names[kind("noisy", string(rune('a'+i)))] = 1
	}
	freed := int64(0)
	for k, n := range Evict(names, 64, 1024) {
		if k.Node.Name != "noisy" {
			t.Errorf("%v gives up %d", k, n)
		}
		freed += n
	}
	if freed < 64 {
		t.Errorf("%d bytes are freed", freed)
	}
}

// Catches a node that stays over its share forever, and a list that grows with invented names.
func TestOver(t *testing.T) {
	now := time.Unix(1000, 0)
	n := NewNodes(10)
	n.Refused(Node{"c", "a"}, Series, 2, now)
	n.Refused(Node{"c", "a"}, Series, 3, now.Add(time.Minute))
	n.Refused(Node{}, Events, 1, now)
	want := []Over{{Node{}, Events, 1, now, now}, {Node{"c", "a"}, Series, 5, now, now.Add(time.Minute)}}
	if diff := cmp.Diff(want, n.Over(now.Add(2*time.Minute))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want[1:], n.Over(now.Add(11*time.Minute))); diff != "" {
		t.Error(diff)
	}
	for i := range 2 * maxOver {
		n.Refused(Node{"", string(rune('a' + i))}, Series, 1, now)
	}
	if got := len(n.Over(now)); got != maxOver {
		t.Errorf("%d nodes are listed", got)
	}
}
