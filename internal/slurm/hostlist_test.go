package slurm

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A parser that accepts only letters and a single bracket loses the host names of most
// multi-node jobs.
func TestHosts(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		var got []string
		err := Hosts(list, func(h string) bool { got = append(got, h); return true })
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", list, err, diff)
		}
		for i, h := range want {
			if at := HostIndex(list, h); at != i {
				t.Errorf("%q: index of %s is %d", list, h, at)
			}
		}
	}
	f("")
	f("(null)")
	f("node1751", "node1751")
	f("nodeA,nodeB", "nodeA", "nodeB")
	f("h100-[001-003]", "h100-001", "h100-002", "h100-003")
	f("cw-h100-220-[037-038,041]", "cw-h100-220-037", "cw-h100-220-038", "cw-h100-220-041")
	f("a[1-2],b[3-4]", "a1", "a2", "b3", "b4")
	f("rack[1-2]n[1-2]", "rack1n1", "rack1n2", "rack2n1", "rack2n2")
	f("r[08-10]", "r08", "r09", "r10")
	f("r[8-10]", "r8", "r9", "r10")
	f("r[098-101]", "r098", "r099", "r100", "r101")
	f("n[1-2]-ib.cluster,x", "n1-ib.cluster", "n2-ib.cluster", "x")
	f("/dev/nvidia[0-1]", "/dev/nvidia0", "/dev/nvidia1")
	f("node[1433,1787,1889-1890]", "node1433", "node1787", "node1889", "node1890")
}

func TestHostsOdd(t *testing.T) {
	for _, list := range []string{"a[1-2", "a1-2]", "a[x-y]", "a[2-1]", "a[-]", "a[1-99999999]", "a[1-9999]b[1-9999]", "a[]", "a[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]"} {
		if err := Hosts(list, func(string) bool { return true }); err == nil {
			t.Errorf("%q: no error", list)
		}
		if at := HostIndex(list, "b"); at != -1 {
			t.Errorf("%q: index of b is %d", list, at)
		}
	}
}

func FuzzHosts(f *testing.F) {
	f.Add("rack[1-2]n[01-04,7]x,b")
	f.Fuzz(func(t *testing.T, list string) {
		n := 0
		_ = Hosts(list, func(string) bool { n++; return true })
		if n > maxHosts {
			t.Errorf("%d hosts", n)
		}
	})
}

func TestParseJobID(t *testing.T) {
	f := func(s string, want JobID) {
		t.Helper()
		got, err := ParseJobID(s)
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != (want == JobID{}) {
			t.Errorf("%q: %v (-want +got):\n%s", s, err, diff)
		}
	}
	f("7", JobID{Job: "7"})
	f("7.0", JobID{Job: "7", Step: "0"})
	f("7.batch", JobID{Job: "7", Step: "batch"})
	f("4_2", JobID{Job: "4", Tasks: "2"})
	f("4_2.extern", JobID{Job: "4", Tasks: "2", Step: "extern"})
	f("4_[1-3%2]", JobID{Job: "4", Tasks: "1-3"})
	f("4_[1-3,7,9-21:4%10]", JobID{Job: "4", Tasks: "1-3,7,9-21:4"})
	f("4_[1,3,5,...]", JobID{Job: "4", Tasks: "1,3,5"})
	f("10+1", JobID{Job: "10", Component: "1"})
	f("10+1.0", JobID{Job: "10", Component: "1", Step: "0"})
	for _, s := range []string{"", "x", "7.", "4_", "4_[1-3", "4_[%2]", "4_[1%x]", "4_x", "10+", "+1", "99999999999", "7 8"} {
		f(s, JobID{})
	}
}

func FuzzParseJobID(f *testing.F) {
	f.Add("4_[1-3%2].0")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseJobID(s); err == nil && !IsNumber(id.Job) {
			t.Errorf("%+v", id)
		}
	})
}

func TestParseRanges(t *testing.T) {
	f := func(s string, want ...int) {
		t.Helper()
		got, err := ParseRanges(s)
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != (want == nil) {
			t.Errorf("%q: %v (-want +got):\n%s", s, err, diff)
		}
	}
	f("0", 0)
	f("0-3,7", 0, 1, 2, 3, 7)
	f("0-6:2", 0, 2, 4, 6)
	for _, s := range []string{"", "a", "1-", "-1", "3-1", "0-4:0", "1024", "0-1023,0-1023", "NoDevFiles", fmt.Sprint(1 << 40)} {
		f(s)
	}
}
