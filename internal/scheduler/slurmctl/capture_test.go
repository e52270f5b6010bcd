package slurmctl

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

const ours = "testdata/22.05"

// captured returns a capture from another cluster and skips the test if it is missing.
func captured(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../../../shared/fixtures", name))
	if err != nil {
		t.Skipf("no captures of other clusters: %v", err)
	}
	return b
}

func recorded(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(ours, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func jobsOf(t *testing.T, b []byte, text bool) []slurm.Job {
	t.Helper()
	l := &jobList{}
	parse := l.json
	if text {
		parse = l.text
	}
	if text && !bytes.HasPrefix(b, []byte("last_update_time=")) { // captured without --verbose
		n := bytes.Count(b, []byte("JobId=")) - bytes.Count(b, []byte("ArrayJobId="))
		b = append(fmt.Appendf(nil, "last_update_time=2026-11-15T02:17:02, records=%d\n", n), b...)
	}
	if err := parse(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	return l.list
}

func nodesOf(t *testing.T, b []byte, text bool) []Node {
	t.Helper()
	l := &nodeList{}
	parse := l.json
	if text {
		parse = l.text
	}
	if err := parse(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	return l.list
}

// The captures were recorded on a machine in UTC, and the text form has no time zone.
func inUTC(t *testing.T) {
	t.Helper()
	local := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = local })
}

// Text and JSON of the same moment must yield the same values, including names with line
// breaks and vertical bars.
func TestTextIsJSON(t *testing.T) {
	inUTC(t)
	fromJSON, fromText := jobsOf(t, recorded(t, "jobs.json"), false), jobsOf(t, recorded(t, "jobs.txt"), true)
	byID := cmpopts.SortSlices(func(a, b slurm.Job) bool { return a.ID < b.ID })
	if diff := cmp.Diff(fromJSON, fromText, byID, cmpopts.EquateApproxTime(0), cmpopts.IgnoreFields(slurm.Job{}, "Cluster")); diff != "" {
		t.Errorf("jobs (-json +text):\n%s", diff)
	}
	if len(fromJSON) < 15 {
		t.Errorf("%d jobs", len(fromJSON))
	}
	if diff := cmp.Diff(nodesOf(t, recorded(t, "rest-nodes.json"), false), nodesOf(t, recorded(t, "nodes.txt"), true), cmpopts.IgnoreFields(Node{}, "Reason")); diff != "" {
		t.Errorf("nodes (-json +text):\n%s", diff)
	}
	var a, b partitionList
	if err := a.json(bytes.NewReader(recorded(t, "rest-partitions.json"))); err != nil {
		t.Fatal(err)
	}
	if err := b.text(bytes.NewReader(recorded(t, "partitions.txt"))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.list, b.list, cmpopts.IgnoreFields(Partition{}, "QOS")); diff != "" {
		t.Errorf("partitions (-json +text):\n%s", diff)
	}
	var c, d Diag
	if err := c.json(bytes.NewReader(recorded(t, "rest-diag.json"))); err != nil {
		t.Fatal(err)
	}
	if err := d.text(bytes.NewReader(recorded(t, "diag.txt"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"jobs_submitted", "jobs_started", "jobs_completed", "jobs_canceled", "schedule_queue_length", "bf_cycle_max", "bf_last_backfilled_jobs", "bf_queue_len"} {
		if x, y := c.Value(name), d.Value(name); x != y || !x.OK() {
			t.Errorf("%s is %v in JSON, %v in text", name, x, y)
		}
	}
	if !c.Since.Equal(d.Since) || c.Since.IsZero() || len(c.RPCs) < 10 || len(d.RPCs) < 10 || len(d.Users) < 3 {
		t.Errorf("since: %v and %v; RPC types: %d and %d; RPC users: %d", c.Since, d.Since, len(c.RPCs), len(d.RPCs), len(d.Users))
	}
}

// Answers of 22.05, recorded together with squeue: four pending tasks of an array in one
// row, a GPU held in part by shards, a job of two components, and a node that is draining
// while it still runs jobs.
func TestRecorded(t *testing.T) {
	jobs, nodes := jobsOf(t, recorded(t, "jobs.json"), false), nodesOf(t, recorded(t, "nodes.txt"), true)
	got := map[JobKey][2]int64{}
	for _, c := range CountJobs(jobs, 1000) {
		got[c.JobKey] = [2]int64{c.Jobs, c.GPUs}
	}
	want := map[JobKey][2]int64{
		{"running", "gpu", "ml", "gpu_alice"}:      {4, 7}, // 2 GPUs; 1 on each of two nodes; 1 and 2 for two components
		{"running", "gpu", "bio", "gpu_bob"}:       {3, 5},
		{"running", "short", "ml", "gpu_alice"}:    {1, 0}, // shards
		{"pending", "gpu", "bio", "gpu_bob"}:       {5, 12},
		{"pending", "gpu,short", "bio", "gpu_bob"}: {1, 0},
		{"pending", "gpu", "ml", "gpu_alice"}:      {1, 0},
		{"completed", "gpu", "ml", "gpu_alice"}:    {2, 0},
		{"failed", "gpu", "bio", "gpu_bob"}:        {1, 0},
		{"cancelled", "gpu", "bio", "gpu_bob"}:     {1, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	q := CountQueue(jobs)
	if diff := cmp.Diff([]Wait{{"BeginTime", "gpu,short", 1, 0}, {"JobArrayTaskLimit", "gpu", 4, 4}, {"JobHeldUser", "gpu", 1, 0}, {"Resources", "gpu", 1, 8}}, q.Waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	if v := q.Spread["gpu"]; v != 1.0/7 {
		t.Errorf("share of multi-node jobs in gpu: %v", v)
	}
	all, parts := CountNodes(nodes, nil)
	if diff := cmp.Diff(map[string]int64{"mixed": 1, "draining": 1}, all.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[GPUKey]int64{{"allocated", "h100"}: 13, {"drained", "h100"}: 3, {"idle", "h100"}: 0}, all.GPUs); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int64{"allocated": 5, "drained": 11}, parts["short"].CPUs); diff != "" {
		t.Errorf("CPUs of short (-want +got):\n%s", diff)
	}
	for _, j := range jobs {
		if j.Name == "line break" && j.State == "PENDING" {
			return
		}
	}
	t.Error("the job with a line break is missing")
}

// A cluster that does not track GPUs in its accounting reports none, or only those of one
// node.
func TestUntracked(t *testing.T) {
	inUTC(t)
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join("testdata/22.05-untracked", name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	fromJSON, fromText := jobsOf(t, read("jobs.json"), false), jobsOf(t, read("jobs.txt"), true)
	byID := cmpopts.SortSlices(func(a, b slurm.Job) bool { return a.ID < b.ID })
	if diff := cmp.Diff(fromJSON, fromText, byID, cmpopts.EquateApproxTime(0), cmpopts.IgnoreFields(slurm.Job{}, "Cluster")); diff != "" {
		t.Errorf("(-json +text):\n%s", diff)
	}
	got := map[string]int64{}
	for _, j := range fromJSON {
		got[j.ID] = j.GPUs
	}
	if diff := cmp.Diff(map[string]int64{"1": 2, "2": 6, "3": 16, "4": 7, "5": 12}, got); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	all, _ := CountNodes(nodesOf(t, read("nodes.txt"), true), nil)
	if diff := cmp.Diff(map[GPUKey]int64{{"allocated", "h100"}: 8, {"idle", "h100"}: 8}, all.GPUs); diff != "" {
		t.Errorf("GPUs of nodes (-want +got):\n%s", diff)
	}
}

// Captures of other versions yield the same answers, each in its own form.
func TestCaptured(t *testing.T) {
	f := func(version, jobs, nodes string) {
		t.Helper()
		got := map[string][2]int64{}
		for _, c := range CountJobs(jobsOf(t, captured(t, version+jobs), jobs[len(jobs)-3:] == "txt"), 1000) {
			have := got[c.State]
			got[c.State] = [2]int64{have[0] + c.Jobs, have[1] + c.GPUs}
		}
		if diff := cmp.Diff(map[string][2]int64{"running": {8, 14}, "pending": {1, 8}}, got); diff != "" {
			t.Errorf("%s%s (-want +got):\n%s", version, jobs, diff)
		}
		all, parts := CountNodes(nodesOf(t, captured(t, version+nodes), nodes[len(nodes)-3:] == "txt"), nil)
		// On gn2 six GPUs are held, and two shards of a seventh.
		if diff := cmp.Diff(map[GPUKey]int64{{"allocated", "h100"}: 15, {"idle", "h100"}: 1}, all.GPUs); diff != "" {
			t.Errorf("%s%s (-want +got):\n%s", version, nodes, diff)
		}
		if parts["gpu"].Free.Placeable(1) != 1 || parts["gpu"].Free.Placeable(2) != 0 {
			t.Errorf("%s%s: placeable(1) = %d", version, nodes, parts["gpu"].Free.Placeable(1))
		}
	}
	f("slurm-real/22.05/", "squeue_json.json", "sinfo_json.json")
	f("slurm-real/22.05/", "rest-slurm_v0.0.38_jobs.json", "rest-slurm_v0.0.38_nodes.json")
	f("slurm-real/22.05/", "scontrol-show-job-d.txt", "scontrol-show-node-d.txt")
	f("slurm-real/24.11/", "squeue_json.json", "scontrol_show_nodes_json.json")
	f("slurm-real/24.11/", "rest-slurm_v0.0.41_jobs.json", "rest-slurm_v0.0.41_nodes.json")
	f("slurm-real/24.11/", "scontrol-show-job-d.txt", "scontrol-show-node-d.txt")
}

// The captures from telegraf have a two-word node state, no GRES, and null for lists.
func TestCapturedTelegraf(t *testing.T) {
	for _, name := range []string{"gather", "panic"} {
		dir := "slurm/slurmrestd_telegraf_" + name + "/"
		jobsOf(t, captured(t, dir+"jobs.json"), false)
		var p partitionList
		if err := p.json(bytes.NewReader(captured(t, dir+"partitions.json"))); err != nil {
			t.Error(err)
		}
		var d Diag
		if err := d.json(bytes.NewReader(captured(t, dir+"diag.json"))); (err == nil) != (name == "gather") { // only gather has statistics
			t.Error(err)
		}
		nodes := nodesOf(t, captured(t, dir+"nodes.json"), false)
		if name == "gather" {
			if nodes[0].State != "drained" || nodes[0].CPUs != 36 || nodes[0].GPUs != nil || p.list[0].State != "up" || !p.list[0].Default || d.Value("jobs_submitted") != optional.Of(287) {
				t.Errorf("%+v, %+v, %+v", nodes[0], p.list, d)
			}
		}
	}
}

// The first job of an array, jobs on many nodes, and comments that look like fields.
func TestCapturedText(t *testing.T) {
	f := func(name string, want ...slurm.Job) {
		t.Helper()
		got := jobsOf(t, captured(t, "slurm/gcm_scontrol_show_job/"+name), true)
		for i := range got { // times have their own test
			got[i] = slurm.Job{ID: got[i].ID, Tasks: got[i].Tasks, State: got[i].State, User: got[i].User, Nodes: got[i].Nodes, GPUs: got[i].GPUs}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("scontrol_out_main_array_job.txt", slurm.Job{ID: "30214", Tasks: 1, State: "RUNNING", User: "test_username", Nodes: 1, GPUs: 8},
		slurm.Job{ID: "31214", Tasks: 1, State: "RUNNING", User: "test_username_2", Nodes: 3, GPUs: 8})
}

// sdiag of other versions: without epoch seconds, and with additional lines.
func TestCapturedDiag(t *testing.T) {
	var d Diag
	if err := d.text(bytes.NewReader(captured(t, "slurm/datadog/sdiag.txt"))); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"agent_queue_size": 2, "agent_thread_count": 4, "dbd_agent_queue_size": 5, "jobs_submitted": 6, "jobs_failed": 10, "schedule_cycle_max": 3605,
		"schedule_cycle_total": 88, "schedule_queue_length": 15, "bf_last_backfilled_jobs": 17, "bf_cycle_counter": 19, "bf_cycle_last": 20, "bf_queue_len": 24, "bf_last_depth": 22,
	}
	for name, v := range want {
		if d.Value(name) != optional.Of(v) {
			t.Errorf("%s is %v, want %v", name, d.Value(name), v)
		}
	}
	if d.Since.Unix() != 1726531870 || len(d.RPCs) != 7 || d.RPCs[2] != (RPC{"REQUEST_JOB_INFO", 51, 16833 * time.Microsecond}) || len(d.Users) != 1 {
		t.Errorf("%+v", d)
	}
	if err := d.text(bytes.NewReader(captured(t, "slurm/vpenso/sdiag.txt"))); err != nil || d.Since.IsZero() || d.Value("bf_last_backfilled_jobs") != optional.Of(793) {
		t.Errorf("%v: %+v", err, d)
	}
	if err := d.json(bytes.NewReader(captured(t, "slurm/l9gpu/sample-sdiag-output.json"))); err != nil {
		t.Fatal(err)
	}
	if v := d.CycleTime("schedule_cycle_sum", "schedule_cycle_mean", "schedule_cycle_total"); v != optional.Of(582.130236) {
		t.Errorf("cycle time %v s", v)
	}
}

// Partitions of a large cluster, one per line, and its configuration, users and QoS.
func TestCapturedRecords(t *testing.T) {
	var p partitionList
	if err := p.text(bytes.NewReader(captured(t, "slurm/gcm/sample-scontrol-output.txt"))); err != nil {
		t.Fatal(err)
	}
	want := Partition{
		Name: "partition1", State: "up", Nodes: "node[0201-0272,0281-0932,1069-2468,4000-4455,5025-5028,5041-5316,7456-7735]", QOS: "qos1",
		CPUs: 251200, GPUs: 22384, NodeCount: 3140, Default: true,
	}
	if len(p.list) < 3 || !cmp.Equal(want, p.list[0]) {
		t.Errorf("%d partitions, %s", len(p.list), cmp.Diff(want, p.list[0]))
	}
	var conf configList
	if err := conf.text(bytes.NewReader(captured(t, "slurm/gcm/sample-scontrol-show-config-output.txt"))); err != nil || len(conf.pairs) < 100 || conf.get("AccountingStorageHost") != "slurmdb" {
		t.Errorf("%d keys, %v", len(conf.pairs), err)
	}
	for _, a := range conf.record().Attrs {
		if a.Value == "" || len(a.Key) > 64 {
			t.Errorf("%+v", a)
		}
	}
	f := func(name string, want int, first string, value any) {
		t.Helper()
		tab := table{event: "x", prefix: "p.", names: map[string]string{"Name": "name", "User": "name"}}
		if err := tab.text(bytes.NewReader(captured(t, "slurm/gcm/"+name))); err != nil || len(tab.list) != want {
			t.Errorf("%s: %d records, %v", name, len(tab.list), err)
			return
		}
		for _, a := range tab.list[1].Attrs {
			if a.Key == first && a.Value != value {
				t.Errorf("%s: %s is %v", name, first, a.Value)
			}
		}
	}
	f("sample-sacctmgr-qos.txt", 5, "p.priority", int64(1))
	f("sample-sacctmgr-user-info.txt", 4, "p.qos", "normal,lowest")
}

// Catches GPUs of 26.05 that are held by shards and counted as idle.
func TestNodes2605(t *testing.T) {
	b, err := os.ReadFile("testdata/26.05/nodes.txt") // scontrol --all --details show nodes
	if err != nil {
		t.Fatal(err)
	}
	want := []Node{
		{Name: "gn1", State: "mixed", Partitions: []string{"gpu"}, CPUs: 16, CPUsAllocated: 3, Memory: 64000, MemoryAllocated: 300, GPUs: []GPUs{{"h100", 8, 3}}},
		{Name: "gn2", State: "mixed", Partitions: []string{"gpu"}, CPUs: 16, CPUsAllocated: 4, Memory: 64000, MemoryAllocated: 300, GPUs: []GPUs{{"h100", 8, 4}}},
	}
	if diff := cmp.Diff(want, nodesOf(t, b, true)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
