package slurmctl

import (
	"bytes"
	"math"
	"testing"
)

// No answer of a controller may crash the agent or yield an impossible number.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{
		`{"jobs":[{"job_id":1,"job_state":["RUNNING"],"array_task_string":"1-9%2","tres_alloc_str":"gres/gpu=8","gres_detail":["gpu:2(IDX:0-1)"]}]}`,
		`{"nodes":[{"name":"a","state":["IDLE","DRAIN"],"gres":"gpu:8","gres_used":"gpu:2(IDX:0-1),shard:1(0/4,1/4)"}]}`,
		`{"statistics":{"server_thread_count":1,"req_time_start":{"set":true,"number":1},"rpcs_by_user":[{"user":"x","count":1}]}}`,
		`{"shares":{"shares":[{"name":"a","type":["USER"],"fairshare":{"factor":0.5}}]}}`,
		"last_update_time=2026-11-15T02:17:02, records=1\nJobId=1 JobName=x\n   UserId=a(1) GroupId=a(1)\n   JobState=RUNNING TRES=gres/gpu=2 NumNodes=1-2\n   TimeLimit=1-00:00:00\n",
		"NodeName=a\n   State=IDLE+DRAIN Gres=gpu:8 GresUsed=gpu:1(IDX:0)\n   Reason=x\n",
		"PartitionName=a\n   State=UP\n", "Server thread count: 3\nData since x (1)\n", "Account|User|FairShare\na|b|0.5\n",
		"slurm_node_gpus{node=\"a\"} 8\nslurm_partition_nodes{partition=\"p\"} 1\n", "ClusterName = x\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var jobs jobList
		var nodes nodeList
		var parts partitionList
		var shares shareList
		var diag Diag
		var conf configList
		check := func() {
			for _, c := range CountJobs(jobs.list, 10) {
				if c.Jobs < 1 || c.GPUs < 0 {
					t.Errorf("%+v", c)
				}
			}
			all, _ := CountNodes(nodes.list, nil)
			for k, n := range all.GPUs {
				if n < 0 {
					t.Errorf("impossible count: %d GPUs are %s", n, k.State)
				}
			}
			for name, v := range diag.Values {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					t.Errorf("%s is %v", name, v)
				}
			}
		}
		_, _, _, _ = jobs.json(bytes.NewReader(b)), nodes.json(bytes.NewReader(b)), parts.json(bytes.NewReader(b)), shares.json(bytes.NewReader(b))
		_ = diag.json(bytes.NewReader(b))
		check()
		_, _, _, _ = jobs.text(bytes.NewReader(b)), nodes.text(bytes.NewReader(b)), parts.text(bytes.NewReader(b)), shares.text(bytes.NewReader(b))
		_, _ = diag.text(bytes.NewReader(b)), conf.text(bytes.NewReader(b))
		check()
		_ = conf.record()
		if p, err := parsePage(b); err == nil {
			_, _ = newNative(p, p), nativeDiag(p)
		}
		table := table{event: "x"}
		_ = table.text(bytes.NewReader(b))
	})
}
