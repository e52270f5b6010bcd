package slurm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// capture reads a capture from a real machine. Captures are not part of this repository.
func capture(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../../../shared/fixtures", name))
	if err != nil {
		t.Skipf("no captures found: %v", err)
	}
	return b
}

// line formats the main fields of a job in one line.
func line(j Job) string {
	s := fmt.Sprintf("%s %s %s %s %s %s", j.ID, j.Name, j.User, j.Account, j.Partition, j.QOS)
	if j.ArrayJobID != "" {
		s += " " + j.ArrayJobID + "_" + j.ArrayTaskID
	}
	for _, g := range j.GRES {
		s += fmt.Sprintf(" %s:%d%v", g.Name, g.Count, g.Index)
		for i, p := range g.Parts {
			if p.Held > 0 {
				s += fmt.Sprintf("{%d:%d/%d}", i, p.Held, p.Of)
			}
		}
	}
	return s
}

// verbose returns a capture of scontrol as --verbose would have written it.
func verbose(b []byte) []byte {
	return append([]byte(records(bytes.Count(b, []byte("JobId="))-bytes.Count(b, []byte("ArrayJobId=")))), b...)
}

// Each capture of scontrol show job, squeue and slurmrestd, with the expected result.
func TestCapturedJobs(t *testing.T) {
	f := func(name, node string, want ...string) {
		t.Helper()
		t.Run(name+"@"+node, func(t *testing.T) {
			parse := slurm.ParseJobsText
			if strings.HasSuffix(name, ".json") {
				parse = slurm.ParseJobsJSON
			}
			b := capture(t, name)
			if strings.HasSuffix(name, ".txt") {
				b = verbose(b)
			}
			jobs, err := jobsOn(node, parse, bytes.NewReader(b))
			var got []string
			for _, j := range jobs {
				got = append(got, line(j))
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	const gcm = "slurm/gcm_scontrol_show_job/scontrol_out_"
	ods := "30214 demo_ods test_username test_account learn normal 30185_28"
	ods2 := "31214 demo_ods2 test_username_2 test_account test dev 31185_128 gpu:8[5 6 7]"
	f(gcm+"all_gpus.txt", "node1751", ods+" gpu:8[0 1 2 3 4 5 6 7]")
	f(gcm+"some_gpus.txt", "node1751", ods+" gpu:8[0 1 2 3]")
	f(gcm+"no_gpus.txt", "node1751", ods)
	f(gcm+"repeated_entry.txt", "node1751", ods, ods)
	f(gcm+"unique_entries.txt", "node1751", strings.Replace(ods, "test_a", "test2_a", 1)+" gpu:8[0 1 2 3]", ods2)
	f(gcm+"main_array_job.txt", "node1751", strings.Replace(strings.Replace(ods, "test_a", "test2_a", 1), "_28", "_", 1)+" gpu:8[0 1 2 3]", ods2)
	for _, node := range []string{"node1433", "node1890", "node1969"} {
		f(gcm+"multi_node.txt", node, "8401413 slurm_job_name test_username test_account learn test_qos gpu:8[0 1 2 3 4 5 6 7]")
	}
	f(gcm+"multi_node.txt", "node1888")
	alice := func(id, name, gres string) string { return id + " " + name + " gpu_alice ml gpu normal " + gres }
	bob := func(id, name, gres string) string { return id + " " + name + " gpu_bob bio gpu normal " + gres }
	for _, v := range []struct{ files, shard string }{
		{"22.05/scontrol-show-job-d.txt 22.05/squeue_json.json 22.05/rest-slurm_v0.0.38_jobs.json", "shard:2[6]"},
		{"24.11/scontrol-show-job-d.txt 24.11/squeue_json.json 24.11/scontrol_show_jobs_json.json 24.11/rest-slurm_v0.0.41_jobs.json", "shard:2[]{6:2/4}"},
	} {
		for name := range strings.FieldsSeq(v.files) {
			gn2 := []string{
				alice("3", "ddp", "gpu:2[0 1]"), alice("4", "pertask", "gpu:2[2 3]"), bob("5", "sweep", "5_2 gpu:1[5]"),
				bob("9", "sweep", "5_1 gpu:1[4]"), bob("6", "shardjob", v.shard),
			}
			if strings.HasSuffix(name, ".json") { // in another order
				gn2 = []string{gn2[0], gn2[1], gn2[4], gn2[3], gn2[2]}
			}
			f("slurm-real/"+name, "gn1", alice("1", "train-llm", "gpu:2[0 1]"), bob("2", "fold", "gpu:3[2 3 4]"),
				alice("3", "ddp", "gpu:2[5 6]"), bob("8", "sweep", "5_0 gpu:1[7]"))
			f("slurm-real/"+name, "gn2", gn2...)
		}
	}
	f("slurm-real/rest-slurm_v0.0.37_jobs.json", "gn2", alice("3", "ddp", "gpu:2[0 1]"), bob("5", "shardjob", "shard:2[4]"),
		bob("8", "sweep", "4_1 gpu:1[2]"), bob("4", "sweep", "4_2 gpu:1[3]"))
	f("slurm/slurmrestd_telegraf_gather/jobs.json", "naboo222", "20464 gridjob atl001  atlas ", "20468 gridjob atl001  atlas ")
}

// Every process of a captured job is in the job that its own environment names, and has the
// devices that the controller reports, on both nodes.
func TestCapturedProcesses(t *testing.T) {
	for _, dir := range []string{"slurm-real", "slurm-real/22.05", "slurm-real/24.11"} {
		t.Run(dir, func(t *testing.T) {
			devices := map[string]map[string][]int{} // by node and job
			for _, node := range []string{"gn1", "gn2"} {
				jobs, err := jobsOn(node, slurm.ParseJobsText, bytes.NewReader(verbose(capture(t, dir+"/scontrol-show-job-d.txt"))))
				if err != nil {
					t.Fatal(err)
				}
				devices[node] = map[string][]int{}
				for _, j := range jobs {
					for _, g := range j.GRES {
						list := g.Index
						for i, p := range g.Parts {
							if p.Held > 0 {
								list = append(list, i)
							}
						}
						devices[node][j.ID] = list
					}
				}
			}
			n := 0
			for one := range strings.SplitSeq(string(capture(t, dir+"/proc-cgroup-environ.txt")), "### pid ") {
				group, vars, ok := strings.Cut(one, "--- environ\n")
				if !ok {
					continue
				}
				p, ok := ParseCgroup([]byte(group))
				e := parseEnviron([]byte(strings.ReplaceAll(vars, "\n", "\x00")))
				index, found := e.gpus(p.Step)
				if !ok || p.Job != e.JobID || !found {
					t.Errorf("%+v, %t: %+v, %v", p, ok, e, index)
				}
				want := devices[p.Node][p.Job]
				if p.Task != "" && slurm.IsNumber(p.Step) && len(index) < len(want) { // a task has a part of them
					want = index
				}
				if diff := cmp.Diff(want, index); diff != "" {
					t.Errorf("job %s on %s, step %s (-controller +environment):\n%s", p.Job, p.Node, p.Step, diff)
				}
				n++
			}
			if n < 5 {
				t.Errorf("%d processes", n)
			}
		})
	}
}

// Every GRES and host list in the captures can be parsed.
func TestCapturedGrammar(t *testing.T) {
	gres := regexp.MustCompile(`(?:GRES|Gres|GresUsed|TresPerNode)=(\S+)|"gres(?:_used)?": "([^"]+)"`)
	hosts := regexp.MustCompile(`(?:NodeList|Nodes)=(\S+)`)
	for _, name := range []string{
		"slurm-real/22.05/scontrol-show-node-d.txt", "slurm-real/24.11/scontrol-show-node-d.txt", "slurm-real/22.05/scontrol-show-job-d.txt",
		"slurm-real/24.11/scontrol_show_nodes_json.json", "slurm/datadog/scontrol.txt", "slurm/gcm/sample-scontrol-output-large.txt",
	} {
		b := bytes.ReplaceAll(capture(t, name), []byte(`\/`), []byte("/")) // as JSON has it
		for _, m := range gres.FindAllSubmatch(b, -1) {
			if _, err := slurm.ParseGRES(string(m[1]) + string(m[2])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, m := range hosts.FindAllSubmatch(b, -1) {
			if err := slurm.Hosts(string(m[1]), func(string) bool { return true }); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
