package slurm

import "testing"

func TestJobState(t *testing.T) {
	f := func(want string, words ...string) {
		t.Helper()
		if got := jobState(words); got != want {
			t.Errorf("%q is %s, want %s", words, got, want)
		}
	}
	f("RUNNING", "RUNNING")
	f("COMPLETING", "COMPLETED", "COMPLETING")
	f("COMPLETING", "COMPLETING")
	f("CONFIGURING", "RUNNING", "CONFIGURING")
	f("RUNNING", "RUNNING", "RESIZING")
	f("CANCELLED", "CANCELLED by 1000")
	f("UNKNOWN")
	f("UNKNOWN", "<script>")
}

// Catches pending tasks of a job array counted as one job.
func TestTasks(t *testing.T) {
	f := func(s string, want int64) {
		t.Helper()
		if got := tasksOf(s); got != want {
			t.Errorf("%q has %d tasks, want %d", s, got, want)
		}
	}
	f("3-6%2", 4)
	f("[1-3,7,9-21:4%10]", 8)
	f("0-999999", 1000000)
	f("1,3,5,...", 3)
	f("7", 1)
	f("", 1)
	f("9-1", 1)
	f("1-9:0", 1)
}

func TestReason(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		if got := reason(s); got != want {
			t.Errorf("%q is %q, want %q", s, got, want)
		}
	}
	f("ReqNodeNotAvail, UnavailableNodes:gn[1-4000]", "ReqNodeNotAvail")
	f("ReqNodeNotAvail(Unavailable:gn1)", "ReqNodeNotAvail")
	f("(Resources)", "Resources")
	f("None", "None")
}

// Catches GPUs counted twice, with and without their type, and GPU memory counted as GPUs.
func TestGPUs(t *testing.T) {
	f := func(tres string, want int64, ok bool) {
		t.Helper()
		if got, is := CountGPUs(tres); got != want || is != ok {
			t.Errorf("%q has %d GPUs (%t), want %d", tres, got, is, want)
		}
	}
	f("cpu=2,mem=62.50G,node=1,billing=2,gres/gpu=8,gres/gpu:h100=8", 8, true)
	f("gres/gpu:h100=4,gres/gpu:a100=2", 6, true)
	f("gres/gpu:a100_1g.10gb=3,gres/gpu=3", 3, true)
	f("gres/gpumem=80G,gres/gpuutil=97", 0, false)
	f("gres:gpu:2", 2, true)
	f("gres:gpu:h100:3", 3, true)
	f("gres/gpu:2", 2, true)
	f("gpu", 1, true)
	f("gres/gpu=0", 0, true)
	f("gres/shard=2", 0, false)
	f("gres/gpu=18446744073709551614", 0, false)
	f("", 0, false)
}
