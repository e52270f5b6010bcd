package slurm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// An unknown layout would leave all jobs of a site without a name. The layouts of version 2
// are from Slurm's source and were not observed live: its plugin rejects hybrid machines.
func TestParseCgroup(t *testing.T) {
	f := func(file string, want Place) {
		t.Helper()
		got, ok := ParseCgroup([]byte(file))
		if diff := cmp.Diff(want, got); diff != "" || ok != (want != Place{}) {
			t.Errorf("%q: %t (-want +got):\n%s", file, ok, diff)
		}
	}
	// The freezer knows the step, devices the task, and the memory path is unrelated.
	f("6:freezer:/slurm_gn1/uid_29002/job_7/step_batch\n5:devices:/slurm_gn1/uid_29002/job_7/step_batch/task_0\n4:memory:/x/y\n0::/\n",
		Place{Job: "7", Step: "batch", Task: "0", Node: "gn1"})
	f("5:devices:/slurm/uid_1000/job_7/step_0/task_12\n", Place{Job: "7", Step: "0", Task: "12"})
	f("6:freezer:/slurm/uid_1000/job_7\n", Place{Job: "7"}) // slurmstepd itself
	f("6:freezer:/slurm/uid_1000/job_7/step_extern\n", Place{Job: "7", Step: "extern"})
	f("0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0\n", Place{Job: "7", Step: "batch", Task: "0"})
	f("0::/system.slice/gn1_slurmstepd.scope/job_7/step_interactive/user/task_0\n", Place{Job: "7", Step: "interactive", Task: "0", Node: "gn1"})
	f("0::/system.slice/slurmstepd.scope/job_7/step_extern/user/task_special\n", Place{Job: "7", Step: "extern", Task: "special"})
	f("0::/system.slice/slurmstepd.scope/job_7/step_0/slurm\n", Place{Job: "7", Step: "0"})
	f("0::/system.slice/my_node_slurmstepd.scope/job_7/step_0/user/task_1\n", Place{Job: "7", Step: "0", Task: "1", Node: "my_node"})
	// A machine that is itself a container, and a container that the job started.
	f("0::/lxc/a/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", Place{Job: "7", Step: "0", Task: "0"})
	f("5:devices:/slurm/uid_1/job_7/step_0/task_0/docker/0123\n", Place{Job: "7", Step: "0", Task: "0"})
	f("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0 (deleted)\n", Place{Job: "7", Step: "0", Task: "0"})
	// Not Slurm's.
	f("0::/user.slice/job_7/step_0\n", Place{})
	f("0::/system.slice/slurmd.service\n", Place{})
	f("0::/system.slice/slurmstepd.scope/system\n", Place{})
	f("5:devices:/slurm/uid_1/job_7x/step_0\n", Place{})
	f("5:devices:/slurm/uid_1/job_99999999999/step_0\n", Place{})
	f("5:devices:/slurm\n:::\n", Place{})
	f("", Place{})
}

func FuzzParseCgroup(f *testing.F) {
	f.Add([]byte("6:freezer:/slurm_gn1/uid_29002/job_7/step_batch\n0::/system.slice/a_slurmstepd.scope/job_7/step_0/user/task_0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := ParseCgroup(b)
		if ok != slurm.IsNumber(p.Job) || strings.ContainsAny(p.Step+p.Task, "/\n ") {
			t.Errorf("%+v, %t", p, ok)
		}
	})
}
