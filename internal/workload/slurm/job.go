package slurm

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Job is a job and the resources that it holds on this node.
type Job struct {
	slurm.Job

	GRES       []slurm.GRES // on this node
	unreadable error        // why part of GRES, or the whole job, cannot be parsed
}

const maxJobs = 4096 // on one node

// jobsOn returns the jobs in r that hold resources on a node, and those that may. parse is
// slurm.ParseJobsJSON or slurm.ParseJobsText.
func jobsOn(node string, parse func(io.Reader, func(slurm.Job) error) error, r io.Reader) (jobs []Job, err error) {
	err = parse(r, func(from slurm.Job) error {
		j := Job{Job: from}
		if j.ID == "" || !j.holds() && !j.Ambiguous {
			return nil
		}
		var there bool
		if j.GRES, there, j.unreadable = from.On(node); !there && !j.Ambiguous {
			return nil
		}
		if len(jobs) >= maxJobs {
			return fmt.Errorf("more than %d jobs on a node", maxJobs)
		}
		j.Held = nil // also lists other nodes
		jobs = append(jobs, j)
		return nil
	})
	return jobs, err
}

// holding are the states in which a job holds its devices. A suspended job keeps them, and
// a completing one until its epilog is done.
var holding = []string{
	"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "POWER_UP_NODE",
}

func (j Job) holds() bool {
	return slices.ContainsFunc(j.States, func(s string) bool { return slices.Contains(holding, s) })
}

// or returns j with the fields that j lacks filled in from o.
func (j Job) or(o Job) Job {
	j.ArrayJobID, j.ArrayTaskID = cmp.Or(j.ArrayJobID, o.ArrayJobID), cmp.Or(j.ArrayTaskID, o.ArrayTaskID)
	j.HetJobID = cmp.Or(j.HetJobID, o.HetJobID)
	j.Name, j.User, j.Account = cmp.Or(j.Name, o.Name), cmp.Or(j.User, o.User), cmp.Or(j.Account, o.Account)
	j.Partition, j.QOS, j.Cluster = cmp.Or(j.Partition, o.Partition), cmp.Or(j.QOS, o.QOS), cmp.Or(j.Cluster, o.Cluster)
	return j
}

// job returns what an environment says about the job of its process.
func (e environ) job(id string) Job {
	return Job{Job: slurm.Job{
		ID: id, ArrayJobID: e.ArrayJobID, ArrayTaskID: e.ArrayTaskID, HetJobID: e.HetID, Name: e.Name, User: e.User,
		Account: e.Account, Partition: e.Partition, QOS: e.QOS, Cluster: e.Cluster,
	}}
}

// workload returns the job as a workload. Its team is the one that teams has for its
// account, or else the account itself.
func (j Job) workload(cluster string, teams map[string]string) workload.Workload {
	cluster = cmp.Or(cluster, j.Cluster)
	w := workload.Workload{
		ID: "slurm/" + cluster + "/" + j.ID, Kind: "slurm_job", Name: cmp.Or(j.Name, j.ID),
		Team: cmp.Or(teams[j.Account], j.Account), Attributes: map[string]string{},
	}
	for _, a := range []struct{ key, value string }{
		{"slurm.cluster", cluster},
		{"slurm.job.id", j.ID},
		{"slurm.job.name", j.Name},
		{"slurm.user", j.User},
		{"slurm.account", j.Account},
		{"slurm.partition", j.Partition},
		{workload.KeyQueue, j.Partition}, // one word for all schedulers
		{"slurm.qos", j.QOS},
		{"slurm.array.job.id", j.ArrayJobID},
		{"slurm.array.task.id", j.ArrayTaskID},
	} {
		if a.value != "" {
			w.Attributes[a.key] = a.value
		}
	}
	return w
}

// run returns the present run of the job, nil unless the controller said when it began, and on other nodes than the first of
// those that it has: a job counts once.
func (j Job) run(cluster, node string) *workload.Job {
	if j.Start.IsZero() || j.Ambiguous || slurm.HostIndex(j.NodeList, node) != 0 {
		return nil
	}
	cluster = cmp.Or(cluster, j.Cluster)
	since := j.Eligible
	if since.IsZero() {
		since = j.Submit
	}
	return &workload.Job{
		ID: fmt.Sprintf("slurm/%s/%s/%d", cluster, j.ID, j.Start.Unix()), Scheduler: "slurm", Cluster: cluster, Queue: j.Partition, Created: since, Started: j.Start,
	}
}
