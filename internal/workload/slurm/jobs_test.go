package slurm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

func gpu(index ...int) []slurm.GRES {
	return []slurm.GRES{{Name: "gpu", Type: "h100", Count: uint64(len(index)), Index: index}}
}

func shards(n uint64, index int) []slurm.GRES {
	return []slurm.GRES{{Name: "shard", Count: n, Index: []int{index}}}
}

// recorded are the jobs of testdata/22.05 on a node.
func recorded(node string) []Job {
	alice := Job{Job: slurm.Job{User: "gpu_alice", Account: "ml", Partition: "gpu", QOS: "normal", States: []string{"RUNNING"}}}
	bob := Job{Job: slurm.Job{User: "gpu_bob", Account: "bio", Partition: "gpu", QOS: "normal", States: []string{"RUNNING"}}}
	of := func(j Job, id, name string, gres []slurm.GRES) Job {
		j.ID, j.Name, j.GRES = id, name, gres
		return j
	}
	array := func(j Job, of, task string) Job {
		j.ArrayJobID, j.ArrayTaskID = of, task
		return j
	}
	het := func(j Job, of string) Job {
		j.HetJobID = of
		return j
	}
	if node == "gn2" {
		return []Job{
			of(alice, "3", "ddp", gpu(0)), het(of(alice, "8", "het", gpu(1)), "7"), of(alice, "12", "inter", gpu(2)),
		}
	}
	return []Job{
		of(alice, "1", "my job name=x JobState=PENDING", gpu(0, 1)), array(of(bob, "10", "sweep", gpu(2)), "2", "0"),
		of(alice, "3", "ddp", gpu(4)), of(bob, "4", "shardjob", shards(2, 5)), of(bob, "5", "shard2", shards(1, 5)),
		of(alice, "6", "nogpu", nil), het(of(alice, "7", "het", gpu(6)), "7"), of(alice, "9", "idle", gpu(7)),
		array(of(bob, "11", "sweep", gpu(3)), "2", "1"),
	}
}

// A job with a hostile name, a shard, or a part on another node must not affect the others;
// the part on another node is not ours.
func TestRecorded(t *testing.T) {
	f := func(file string, parse func(io.Reader, func(slurm.Job) error) error, ignore ...string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join("testdata/22.05", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range []string{"gn1", "gn2", "gn3"} {
			var want []Job
			if node != "gn3" {
				want = recorded(node)
			}
			got, err := jobsOn(node, parse, bytes.NewReader(b))
			if diff := cmp.Diff(want, got, sorted, who, cmpopts.IgnoreFields(slurm.Job{}, ignore...), cmpopts.EquateEmpty()); diff != "" || err != nil {
				t.Errorf("%s on %s: %v (-want +got):\n%s", file, node, err, diff)
			}
		}
	}
	f("squeue.json", slurm.ParseJobsJSON, "Cluster")
	f("scontrol.txt", slurm.ParseJobsText)
}

// who compares the fields of a job that a node needs. internal/slurm tests the others.
var who = cmp.FilterPath(func(p cmp.Path) bool {
	switch p.Last().String() {
	case ".unreadable", ".Tasks", ".State", ".Reason", ".NodeList", ".Nodes", ".CPUs", ".GPUs", ".Priority", ".Restarts",
		".Submit", ".Eligible", ".Start", ".End", ".Suspend", ".PreSuspend", ".TimeLimit", ".Undetailed":
		return true
	}
	return false
}, cmp.Ignore())

var sorted = cmpopts.SortSlices(func(a, b Job) bool { return natural.Compare(a.ID, b.ID) < 0 })

// The formats of newer versions, written by hand after their OpenAPI description.
func TestParseJSON(t *testing.T) {
	f := func(name, in string, want ...Job) {
		t.Helper()
		got, err := jobsOn("gn2", slurm.ParseJobsJSON, strings.NewReader(in))
		if diff := cmp.Diff(want, got, who); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	const set, unset = `{"set":true,"infinite":false,"number":%d}`, `{"set":false,"infinite":false,"number":0}`
	f("24.11", `{"meta":{"plugin":{}},"jobs":[{"job_id":8,"array_job_id":`+fmt.Sprintf(set, 5)+`,"array_task_id":`+fmt.Sprintf(set, 0)+`,
		"het_job_id":`+fmt.Sprintf(set, 0)+`,"name":"a\nb \"c\"=","user_name":"u","account":"","job_state":["RUNNING","SIGNALING"],"cluster":"c",
		"nodes":"gn[1-2]","gres_detail":["gpu:h100:1(IDX:7)","shard:2(0/4,2/4)"]}],"last_update":`+unset+`,"errors":[]}`,
		Job{
			Job:  slurm.Job{ID: "8", ArrayJobID: "5", ArrayTaskID: "0", Name: `a b "c"=`, User: "u", Cluster: "c", States: []string{"RUNNING", "SIGNALING"}},
			GRES: []slurm.GRES{{Name: "shard", Count: 2, Parts: []slurm.Part{{Held: 0, Of: 4}, {Held: 2, Of: 4}}}},
		})
	f("one field of one job is odd", `{"jobs":[{"job_id":1,"nodes":"gn2","job_state":"RUNNING","gres_detail":"x","name":7},
		{"job_id":"2","nodes":"gn2","job_state":"COMPLETING","account":"a"},{"nodes":"gn2","job_state":"RUNNING"},null,{"job_id":{"set":1}}]}`,
		Job{Job: slurm.Job{ID: "1", States: []string{"RUNNING"}}}, Job{Job: slurm.Job{ID: "2", Account: "a", States: []string{"COMPLETING"}}})
	f("not running", `{"jobs":[{"job_id":1,"nodes":"gn2","job_state":"PENDING"},{"job_id":2,"nodes":"gn2","job_state":["COMPLETED"]},
		{"job_id":3,"nodes":"gn2","job_state":[]},{"job_id":4,"nodes":"","job_state":"RUNNING"}]}`)
	f("no jobs", `{"jobs":[]}`)
	f("none at all", `{"jobs":null,"errors":null}`)
	for _, in := range []string{"", "[]", "{", "garbage", `{"jobs":[{"job_id":1`, `{"jobs":{}}`, `{"errors":[{"error":"down"}]}`, `{"x":1}`, "slurm_load_jobs error: x"} {
		if got, err := jobsOn("gn2", slurm.ParseJobsJSON, strings.NewReader(in)); err == nil {
			t.Errorf("%q gives %v and no error", in, got)
		}
	}
}

// Missing details do not mean "no GPU": local knowledge is used then.
func TestParseJSONNoDetail(t *testing.T) {
	got, err := jobsOn("gn2", slurm.ParseJobsJSON, strings.NewReader(`{"jobs":[{"job_id":1,"nodes":"gn2","job_state":"RUNNING","tres_alloc_str":"cpu=1,gres/gpu=2"}]}`))
	if err != nil || len(got) != 1 || got[0].unreadable == nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// textJob is what scontrol writes about a job. name, details and network may contain line
// breaks.
func textJob(id, name, nodes, details, network string) string {
	return "JobId=" + id + " JobName=" + name + `
   UserId=u(1) GroupId=g(1) MCS_label=N/A
   Priority=1 Nice=0 Account=a QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:08 TimeLimit=365-00:00:00 TimeMin=N/A
   SubmitTime=2026-11-15T01:09:32 EligibleTime=2026-11-15T01:09:32
   StartTime=2026-11-15T01:09:32 EndTime=2027-11-15T01:09:32 Deadline=N/A
   SuspendTime=None SecsPreSuspend=0
   Partition=gpu AllocNode:Sid=localhost:2375
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=` + nodes + `
   NumNodes=3 NumCPUs=2 NumTasks=1 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
` + details + `   MinCPUsNode=2 MinMemoryNode=1G MinTmpDiskNode=0
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=` + network + `
   Command=/bin/x NodeList=gn9
   Comment=GRES=gpu:1(IDX:7) Nodes=gn2 GRES=gpu:1(IDX:7)

`
}

func records(n int) string {
	return fmt.Sprintf("last_update_time=2026-11-15T02:17:02, records=%d\n", n)
}

// A name is not truncated at its first space, GRES= in a comment or a network is ignored, and
// a node does not get the devices of other nodes.
func TestParseText(t *testing.T) {
	f := func(name, in string, want ...Job) {
		t.Helper()
		got, err := jobsOn("gn2", slurm.ParseJobsText, strings.NewReader(in))
		if diff := cmp.Diff(want, got, who); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	of := func(id, name string, gres ...slurm.GRES) Job {
		return Job{Job: slurm.Job{ID: id, Name: name, User: "u", Account: "a", QOS: "normal", Partition: "gpu", States: []string{"RUNNING"}}, GRES: gres}
	}
	f("several lines of GRES", records(2)+
		textJob("5", "UserId=root(0) x", "gn[1-3]", `     Nodes=gn1 CPU_IDs=0-3 Mem=8 GRES=gpu:h100:2(IDX:0-1)
     Nodes=gn[2-3] CPU_IDs=0-3 Mem=8 GRES=gpu:h100:1(IDX:4),gpu:h100:1(IDX:6)
`, "(null)")+textJob("6", "", "gn2", "     Nodes=gn2 CPU_IDs=0-3 Mem=8 GRES=\n", "(null)"),
		of("5", "UserId=root(0) x", slurm.GRES{Name: "gpu", Type: "h100", Count: 1, Index: []int{4}}, slurm.GRES{Name: "gpu", Type: "h100", Count: 1, Index: []int{6}}),
		of("6", ""))
	array := of("30214", "a")
	array.ArrayJobID = "30185"
	f("an array that waits", records(1)+textJob("30214 ArrayJobId=30185 ArrayTaskId=28-59%100 ArrayTaskThrottle=100", "a", "gn2", "", "(null)"), array)
	held := "     Nodes=gn2 CPU_IDs=0 Mem=8 GRES=gpu:h100:1(IDX:3)\n"
	f("a network with line breaks", records(1)+textJob("5", "x", "gn2", held, "y\n     Nodes=gn2 CPU_IDs=0 Mem=8 GRES=gpu:8(IDX:0-7)"), of("5", "x", gpu(3)...))
	f("a name with line breaks", records(1)+textJob("5", "x\nJobId=9 JobName=y\n     Nodes=gn2 GRES=gpu:8(IDX:0-7)\n  UserId=root(0)", "gn2", held, "(null)"),
		of("5", "x JobId=9 JobName=y      Nodes=gn2 GRES=gpu:8(IDX:0-7)   UserId=root(0)", gpu(3)...))
	odd := Job{Job: slurm.Job{ID: "5", Ambiguous: true}}
	f("a name with a line of Slurm", records(2)+textJob("5", "x\n   UserId=root(0) GroupId=root(0)", "gn2", held, "(null)")+textJob("6", "", "gn2", held, "(null)"),
		odd, of("6", "", gpu(3)...))
	f("a network with a line of Slurm", records(1)+textJob("5", "x", "gn2", held, "y\n   MinCPUsNode=1"), odd)
	f("nothing", records(0)+"No jobs in the system\n")
	f("nothing at all", "")
	for _, in := range []string{
		"garbage\n", records(1) + "garbage\n", textJob("5", "x", "gn2", held, "(null)"), // without --verbose nothing can be checked
		records(1) + textJob("5", "x", "gn2", held, "(null)") + textJob("9", "forged", "gn2", held, "(null)"),
	} {
		if got, err := jobsOn("gn2", slurm.ParseJobsText, strings.NewReader(in)); err == nil {
			t.Errorf("%q gives %v and no error", in, got)
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"jobs":[{"job_id":1,"nodes":"gn2","job_state":["RUNNING"],"gres_detail":["gpu:1(IDX:0)"]}],"errors":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		jobs, _ := jobsOn("gn2", slurm.ParseJobsJSON, bytes.NewReader(b))
		for _, j := range jobs {
			if !slurm.IsNumber(j.ID) && len(j.ID) < 10 || strings.Contains(j.Name, "\n") {
				t.Errorf("%+v", j)
			}
		}
	})
}

func FuzzParseText(f *testing.F) {
	f.Add([]byte(records(1) + textJob("5", "x", "gn2", "     Nodes=gn2 CPU_IDs=0 Mem=8 GRES=gpu:1(IDX:0)\n", "y")))
	f.Fuzz(func(t *testing.T, b []byte) {
		jobs, _ := jobsOn("gn2", slurm.ParseJobsText, bytes.NewReader(b))
		for _, j := range jobs {
			if !slurm.IsNumber(j.ID) || strings.Contains(j.Name, "\n") {
				t.Errorf("%+v", j)
			}
		}
	})
}
