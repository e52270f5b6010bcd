package device

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches a sum over links that falls when a link is silent, or jumps when a link answers
// late: increase() would count the traffic of all links, or of that one, once more.
func TestSum(t *testing.T) {
	var s Sum[int]
	no := Value{}
	var got []Value
	for _, links := range [][3]Value{
		{no, no, no},
		{Of(100), Of(1000), no},
		{Of(110), no, no},          // the second link is silent
		{Of(120), Of(1030), no},    // and back
		{Of(121), Of(1030), Of(5)}, // the third link comes up late
		{no, no, Of(8)},
		{no, no, no},
	} {
		for i, v := range links {
			s.Add(i, v)
		}
		got = append(got, s.Total())
	}
	want := []Value{no, Of(1100), Of(1110), Of(1150), Of(1151), Of(1154), no}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}
