//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

const jobSetAPI = "/apis/jobset.x-k8s.io/v1alpha2"

// replicated is the status of one of the replicated jobs of a JobSet.
type replicated struct {
	Name                                        string
	Ready, Succeeded, Failed, Active, Suspended int
}

type jobSetStatus struct{ ReplicatedJobsStatus []replicated }

// Catches a JobSet whose pods count as jobs of their own, in groups or to owners, a group that only has the pods with GPUs, and members that
// are running or done for us and not for the JobSet.
func TestJobSet(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("jobset")
	if err != nil {
		skip(t, "jobset", fmt.Errorf("tools/deps.sh jobset did not build it: %w", err))
	}
	q := newSetTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "")
	q.pod(blue, "before", 4, "1", "")
	q.operator(folderOf(t, path), "jobset", "config.jobset.x-k8s.io/v1alpha1", "jobset.x-k8s.io")
	a := q.agent("agent")

	q.jobSet(red, "train", 2, 2, 4)
	says := func(driver, workers replicated) {
		t.Helper()
		driver.Name, workers.Name = "driver", "workers"
		statusOf(q, jobSetAPI+"/namespaces/"+red+"/jobsets/train", jobSetStatus{[]replicated{driver, workers}},
			cmpopts.SortSlices(func(a, b replicated) bool { return a.Name < b.Name })) // it has none
	}
	q.shows(a, map[string]float64{
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:                                           12,
		`scheduler_gpu_pending{queue="team-red",reason="gpu",type="H100"}`:                                4,
		`scheduler_group_count{queue="team-red",state="waiting",system="jobset"}`:                         1,
		`scheduler_group_member_count{member="placed",queue="team-red",state="waiting",system="jobset"}`:  4,
		`scheduler_group_member_count{member="waiting",queue="team-red",state="waiting",system="jobset"}`: 1,
	})
	says(replicated{Active: 1}, replicated{Active: 2})
	q.explains(red, "Its group train (jobset) needs 5 pods: all exist, 4 have a place. Those that wait ask for 4 GPUs, and 0 are free.")
	q.owned([]string{"gn1", "gn2"}, map[kubeapi.Owner]int{{Kind: "jobset", Name: "train"}: 4, {Kind: "pod", Name: "before"}: 1})

	q.api.remove("/api/v1/namespaces/" + blue + "/pods/before?gracePeriodSeconds=0")
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="placed",system="jobset"}`:                        1,
		`scheduler_group_member_count{member="placed",queue="team-red",state="placed",system="jobset"}`: 5,
	})
	q.run("train-")
	says(replicated{Ready: 1, Active: 1}, replicated{Ready: 2, Active: 2})
	q.finish("train-workers-1-")
	says(replicated{Ready: 1, Active: 1}, replicated{Ready: 1, Succeeded: 1, Active: 1})
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="running",system="jobset"}`:                         1,
		`scheduler_group_count{queue="team-red",state="waiting",system="jobset"}`:                         absent,
		`scheduler_group_member_count{member="running",queue="team-red",state="running",system="jobset"}`: 3,
		`scheduler_group_member_count{member="done",queue="team-red",state="running",system="jobset"}`:    2,
	})
	q.owned([]string{"gn1", "gn2"}, map[kubeapi.Owner]int{{Kind: "jobset", Name: "train"}: 5})
	q.compare(a)
}

// jobSet creates a JobSet: a driver without GPUs, and jobs of workers with some.
func (q *queueTest) jobSet(namespace, name string, jobs, pods, gpus int) {
	q.t.Helper()
	job := func(name string, jobs, pods int, limits string) string {
		return fmt.Sprintf(`{name: %s, replicas: %d, template: {spec: {parallelism: %[3]d, completions: %[3]d, backoffLimit: 0, template: {spec: {containers: [
{name: main, image: none, resources: {limits: {%[4]s}, requests: {cpu: "1", memory: 8Gi}}}]}}}}}`, name, jobs, pods, limits)
	}
	q.api.create(jobSetAPI+"/namespaces/"+namespace+"/jobsets", fmt.Sprintf("{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: %s}, spec: {replicatedJobs: [%s, %s]}}",
		name, job("driver", 1, 1, ""), job("workers", jobs, pods, fmt.Sprintf("nvidia.com/gpu: %d", gpus))))
}
