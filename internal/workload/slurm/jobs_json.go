package slurm

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

const maxJobs = 4096 // on one node

// parseJSON parses the output of squeue --json, scontrol --json and slurmrestd, and returns
// the jobs that hold resources on a node. gres_detail has one entry per node, in the order
// of the node list.
func parseJSON(r io.Reader, node string) (jobs []Job, err error) {
	err = slurm.DecodeList(r, "jobs", func(j jsonJob) error {
		job, ok := j.job(node)
		switch {
		case ok && len(jobs) >= maxJobs:
			return fmt.Errorf("more than %d jobs on a node", maxJobs)
		case ok:
			jobs = append(jobs, job)
		}
		return nil
	})
	return jobs, err
}

// jsonJob is a part of job_info in Slurm's OpenAPI.
type jsonJob struct {
	ID         slurm.Number `json:"job_id"`
	ArrayJobID slurm.Number `json:"array_job_id"`
	ArrayTask  slurm.Number `json:"array_task_id"`
	HetJobID   slurm.Number `json:"het_job_id"`
	Name       slurm.Line   `json:"name"`
	User       slurm.Line   `json:"user_name"`
	Account    slurm.Line   `json:"account"`
	Partition  slurm.Line   `json:"partition"`
	QOS        slurm.Line   `json:"qos"`
	Cluster    slurm.Line   `json:"cluster"`
	State      slurm.Words  `json:"job_state"`
	Nodes      slurm.Line   `json:"nodes"`
	GRES       []string     `json:"gres_detail"`
	TRES       slurm.Line   `json:"tres_alloc_str"`
}

func (j jsonJob) job(node string) (Job, bool) {
	out := Job{
		ID: j.ID.String(), HetJobID: j.HetJobID.Positive(), Name: string(j.Name), User: string(j.User), Account: string(j.Account),
		Partition: string(j.Partition), QOS: string(j.QOS), Cluster: string(j.Cluster), States: j.State,
	}
	if out.ArrayJobID = j.ArrayJobID.Positive(); out.ArrayJobID != "" {
		out.ArrayTaskID = j.ArrayTask.String()
	}
	if out.ID == "" || !out.holds() {
		return Job{}, false
	}
	at := slurm.HostIndex(string(j.Nodes), node)
	if at < 0 {
		return Job{}, false
	}
	switch {
	case at < len(j.GRES):
		out.GRES, out.unreadable = slurm.ParseGRES(j.GRES[at])
	case len(j.GRES) == 0 && strings.Contains(string(j.TRES), "gres/"):
		out.unreadable = fmt.Errorf("job %s has %.100q without details", out.ID, string(j.TRES))
	}
	return out, true
}
