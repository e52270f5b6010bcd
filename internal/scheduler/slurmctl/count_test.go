package slurmctl

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Defects: counting a node with two states twice, and a drained node as idle.
func TestNodeState(t *testing.T) {
	f := func(want string, words ...string) {
		t.Helper()
		if got := nodeState(words...); got != want {
			t.Errorf("%q is %s, want %s", words, got, want)
		}
	}
	f("idle", "IDLE")
	f("idle", "IDLE+CLOUD")
	f("mixed", "MIXED+CLOUD")
	f("mixed", "MIXED+PLANNED")
	f("allocated", "alloc+")
	f("allocated", "ALLOCATED+COMPLETING")
	f("completing", "IDLE+COMPLETING")
	f("drained", "IDLE+DRAIN")
	f("drained", "IDLE", "DRAIN")
	f("drained", "idle", "DRAIN", "MAINTENANCE")
	f("drained", "drained*")
	f("drained", "IDLE+DRAIN+POWERED_DOWN")
	f("draining", "MIXED+DRAIN")
	f("draining", "drng")
	f("draining", "IDLE+COMPLETING+DRAIN")
	f("down", "down*")
	f("down", "DOWN+DRAIN+NOT_RESPONDING")
	f("not_responding", "IDLE*")
	f("powered_down", "IDLE+CLOUD+POWERED_DOWN")
	f("powered_down", "idle~")
	f("powering_up", "alloc#")
	f("powering_down", "idle%")
	f("maint", "maint")
	f("maint", "idle$")
	f("reserved", "IDLE+RESERVED")
	f("allocated", "ALLOCATED+RESERVED")
	f("planned", "idle-")
	f("rebooting", "IDLE+REBOOT_ISSUED")
	f("mixed", "MIXED+REBOOT_REQUESTED")
	f("fail", "IDLE+FAIL")
	f("future", "FUTURE")
	f("invalid", "IDLE+INVALID_REG")
	f("unknown", "")
	f("unknown", "WAT")
}

// GPUs that are shared, or that have a type, counted twice.
func TestGPUsOfNodes(t *testing.T) {
	g := func(has, used, tres string, want ...GPUs) {
		t.Helper()
		got, err := gpusOn(has, used, tres)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q %q: %v (-want +got):\n%s", has, used, err, diff)
		}
	}
	g("", "", "")
	g("(null)", "(null)", "")
	g("gpu:tesla:4", "gpu:tesla:3(IDX:0,2-3)", "", GPUs{"tesla", 4, 3})
	g("gpu:h100:8(S:0-1)", "gpu:h100:0(IDX:N/A)", "", GPUs{"h100", 8, 0})
	g("gpu:h100:4,gpu:a100:4", "gpu:h100:1(IDX:0),gpu:a100:2(IDX:4-5)", "", GPUs{"h100", 4, 1}, GPUs{"a100", 4, 2})
	g("gpu:h100:8,shard:h100:32", "gpu:h100:6(IDX:0-5),shard:h100:1(IDX:6)", "", GPUs{"h100", 8, 7})
	g("gpu:h100:8,shard:h100:32", "gpu:h100:6(IDX:0-5),shard:h100:2(0/4,0/4,0/4,0/4,0/4,0/4,2/4,0/4)", "", GPUs{"h100", 8, 7})
	g("gpu:h100:1,gpu:a100:1,shard:8", "shard:2(IDX:1)", "", GPUs{"h100", 1, 0}, GPUs{"a100", 1, 1})
	g("gpu:h100:4,shard:h100:16", "gpu:h100:2(IDX:0-1),shard:h100:2(-/4,-/4,2/4,0/4)", "", GPUs{"h100", 4, 3}) // 26.05
	g("gpu:8", "", "cpu=1,gres/gpu=3", GPUs{"", 8, 3})
	g("gpu:2", "gpu:5(IDX:0-4)", "", GPUs{"", 2, 2}) // free GPUs never go negative
}

// Defects: unbounded series, and sums that lose the jobs of folded groups.
func TestFold(t *testing.T) {
	var jobs []slurm.Job
	for i := range 5000 {
		jobs = append(jobs, slurm.Job{
			ID: fmt.Sprint(i), Tasks: 1, GPUs: int64(i % 9), State: []string{"RUNNING", "PENDING"}[i%2], Partition: fmt.Sprint("p", i%3),
			Account: fmt.Sprint("a", i%400), User: fmt.Sprint("u", i%1700),
		})
	}
	jobs = append(jobs, slurm.Job{ID: "x", Tasks: 50, GPUs: 8, State: "PENDING", Partition: "p0", Account: "big", User: "whale"})
	want, wantGPUs := int64(0), int64(0)
	for _, c := range CountJobs(jobs, 1<<30) {
		want, wantGPUs = want+c.Jobs, wantGPUs+c.GPUs
	}
	if want != 5050 {
		t.Fatalf("%d jobs", want)
	}
	for _, limit := range []int{2000, 100, 20} {
		list := CountJobs(jobs, limit)
		got, gpus, whale, other := int64(0), int64(0), false, false
		keys := map[JobKey]bool{}
		for _, c := range list {
			got, gpus = got+c.Jobs, gpus+c.GPUs
			whale = whale || c.User == "whale"
			other = other || c.User == Other
			if keys[c.JobKey] {
				t.Errorf("%v is listed twice", c.JobKey)
			}
			keys[c.JobKey] = true
		}
		if len(list) > limit || got != want || gpus != wantGPUs || !whale || !other {
			t.Errorf("limit %d: %d series, %d jobs, %d GPUs, whale %t, other %t", limit, len(list), got, gpus, whale, other)
		}
	}
}

// The documented example: nodes with 3, 1 and 8 free GPUs.
func TestFragmentation(t *testing.T) {
	node := func(free, cpus int64, state string, parts ...string) Node {
		return Node{Name: "n", State: state, CPUs: 64, CPUsAllocated: 64 - cpus, Memory: 100, Partitions: parts, GPUs: []GPUs{{"h100", 8, 8 - free}}}
	}
	nodes := []Node{
		node(3, 56, "mixed", "a", "b"), node(1, 52, "mixed", "a"), node(8, 0, "mixed", "a"),
		node(8, 64, "drained", "a"), node(8, 64, "down", "a"), node(8, 64, "reserved", "a"), node(8, 64, "future", "a"),
	}
	all, parts := CountNodes(nodes, map[string]bool{"b": true})
	p := parts["a"]
	for size, want := range map[int64]struct {
		frag float64
		fits int64
	}{1: {0, 12}, 2: {1 - 10./12, 5}, 4: {1 - 8./12, 2}, 8: {1 - 8./12, 1}} {
		if frag, ok := p.Free.Fragmentation(size); !ok || math.Abs(frag-want.frag) > 1e-12 || p.Free.Placeable(size) != want.fits {
			t.Errorf("size %d: fragmentation %v, placeable %d", size, frag, p.Free.Placeable(size))
		}
	}
	if p.Stranded != 8 {
		t.Errorf("%d GPUs are stranded, want the 8 of the node without free CPUs", p.Stranded)
	}
	if _, ok := parts["b"].Free.Fragmentation(1); ok || parts["b"].Free.Placeable(1) != 0 {
		t.Error("a partition that is down has free GPUs")
	}
	want := map[GPUKey]int64{{"allocated", "h100"}: 12, {"idle", "h100"}: 20, {"down", "h100"}: 8, {"drained", "h100"}: 8}
	if diff := cmp.Diff(want, all.GPUs); diff != "" {
		t.Errorf("each GPU once, those of the future not at all (-want +got):\n%s", diff)
	}
}

// Defects: counting jobs that started before the first round, counting a job twice,
// recording waits of jobs that never started, and using expected times.
func TestDurations(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	job := func(id, state string, eligible, start, end int) slurm.Job {
		j := slurm.Job{ID: id, State: state, Tasks: 1, Partition: "gpu", Submit: at(-1000), Eligible: at(eligible), Start: at(start), End: at(end), NodeList: "gn1"}
		if state == "pending" {
			j.NodeList = ""
		}
		return j
	}
	d := NewDurations()
	sums := func(when string, wait, run, suspended float64, waits, runs uint64) {
		t.Helper()
		of := func(h scheduler.Histograms) scheduler.Histogram {
			if at := h["gpu"]; at != nil {
				return *at
			}
			return scheduler.Histogram{}
		}
		w, r, s := of(d.Wait), of(d.Run), of(d.Suspended)
		if w.Sum != wait || r.Sum != run || s.Sum != suspended || w.Count != waits || r.Count != runs || s.Count != runs {
			t.Errorf("%s: waited %v (%d), ran %v (%d), suspended %v", when, w.Sum, w.Count, r.Sum, r.Count, s.Sum)
		}
	}
	array := job("a", "PENDING", -5, 100, 0)
	array.Tasks = 4
	round := func(s int, jobs ...slurm.Job) { d.Observe(at(s), jobs, 2*time.Minute) }
	round(0, job("old", "RUNNING", -900, -500, 500), job("1", "PENDING", -10, 100, 200), job("never", "PENDING", -10, 100, 200), array)
	sums("first", 0, 0, 0, 0, 0)
	never := job("never", "CANCELLED", -10, 30, 30)
	never.NodeList = ""
	round(60, job("old", "COMPLETED", -900, -500, 50), job("1", "RUNNING", -10, 20, 900), never, array)
	sums("one started", 30, 0, 0, 1, 0)
	paused := job("1", "COMPLETED", -10, 20, 110)
	paused.Suspend, paused.PreSuspend = at(60), 25*time.Second // ran for 25 s, then suspended until 60
	round(120, paused, job("short", "FAILED", 61, 62, 63), job("gone", "RUNNING", 100, 110, 900), array)
	sums("ended", 30+1+10, 75+1, 15, 3, 2)
	round(180, paused)
	sums("seen again, and one forgotten", 41, 76+70, 15, 3, 3)
	round(240, job("lost", "RUNNING", 200, 201, 900))
	round(3600)
	sums("away for too long to know when it ended", 42, 146, 15, 4, 3)
	if len(d.known) != 0 {
		t.Errorf("%d ended jobs are still tracked", len(d.known))
	}
}

// Defect: reading Slurm's sentinels for no value and no limit as numbers, in any form.
func TestSentinels(t *testing.T) {
	for _, v := range []string{"4294967294", "4294967295", "18446744073709551614", "-2", "null", `"x"`, `{"set":false,"infinite":false,"number":7}`, `{"set":true,"infinite":true,"number":7}`} {
		jobs := jobsOf(t, []byte(`{"jobs":[{"job_id":1,"job_state":"RUNNING","time_limit":`+v+`,"cpus":`+v+`,"node_count":`+v+`,"start_time":`+v+`,"priority":`+v+`}]}`), false)
		if diff := cmp.Diff([]slurm.Job{{ID: "1", Tasks: 1, State: "RUNNING"}}, jobs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", v, diff)
		}
	}
}

// Catches GPUs counted as idle because the resources of their node cannot be parsed, and
// nobody told.
func TestOddGRES(t *testing.T) {
	f := newFake(t)
	f.write("scontrol", `case "$*" in *--json*) echo '{"nodes":[{"name":"a","state":"IDLE","gres":"gpu:2","gres_used":"gpu:1(IDX:0),shard:1(?/4,1/4)"}]}';; esac`)
	s := f.client(Config{}).Snapshot(t.Context())
	want := []Node{{Name: "a", State: "idle", GPUs: []GPUs{{"", 2, 1}}}}
	if diff := cmp.Diff(want, s.Nodes); diff != "" || !s.Up || s.Err == nil || !strings.Contains(s.Err.Error(), "node a: GRES") {
		t.Errorf("up %t, %v (-want +got):\n%s", s.Up, s.Err, diff)
	}
}

// Defect: taking user-written text for a field. internal/slurm tests jobs.
func TestFreeText(t *testing.T) {
	nodes := nodesOf(t, []byte("NodeName=a\n   State=IDLE CPUTot=4\n   OS=Linux Gres=gpu:9\n   Reason=x CPUAlloc=3 [root@2026]\n"), true)
	if diff := cmp.Diff([]Node{{Name: "a", State: "idle", CPUs: 4, Reason: "x CPUAlloc=3 [root@2026]"}}, nodes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A node listed once for each of its partitions counts once.
func TestNodeOnce(t *testing.T) {
	nodes := nodesOf(t, []byte(`{"nodes":[{"name":"a","state":"IDLE","cpus":4,"partitions":["x","y"]},{"name":"a","state":"IDLE","cpus":4,"partitions":["y","z"]}]}`), false)
	if diff := cmp.Diff([]Node{{Name: "a", State: "idle", CPUs: 4, Partitions: []string{"x", "y", "z"}}}, nodes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
