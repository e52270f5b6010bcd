package view

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Owner is a workload as people know it: a deployment, a job, a notebook. Its pods and
// containers are not told apart.
type Owner struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Team      string `json:"team,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Cluster   string `json:"cluster,omitempty"`
	Job       string `json:"job,omitempty"` // Slurm's number of it
	User      string `json:"user,omitempty"`
	Account   string `json:"account,omitempty"`
}

const kindSlurm = "slurm_job"

// ownerLabels are what ownerOf reads.
const ownerLabels = "gpu_workload_kind, gpu_workload_name, gpu_workload_team, k8s_namespace_name, k8s_cluster_name, " +
	"slurm_cluster, slurm_job_id, slurm_user, slurm_account, user_name"

// ownerOf returns the workload of a series, and whether it has one.
func ownerOf(l query.Labels) (Owner, bool) {
	o := Owner{
		Kind: l["gpu_workload_kind"], Name: l["gpu_workload_name"],
		Team:      cmp.Or(l["gpu_workload_team"], l["slurm_account"], l["k8s_namespace_name"]), // as a report has it
		Namespace: l["k8s_namespace_name"], Cluster: l["k8s_cluster_name"],
		Job: l["slurm_job_id"], User: cmp.Or(l["slurm_user"], l["user_name"]), Account: l["slurm_account"],
	}
	if o.Kind == "" || o.Kind == "unallocated" {
		return Owner{}, false
	}
	if o.Kind == kindSlurm {
		o.Cluster = l["slurm_cluster"]
	}
	o.ID = identify(o)
	return o, true
}

// identify returns what tells workloads apart, in a form that fits into an address.
func identify(o Owner) string {
	parts := []string{o.Kind, o.Cluster, o.Namespace, o.Name, o.Job}
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// unpack returns the parts of an ID: kind, cluster, namespace, name and job.
func unpack(id string) ([]string, error) {
	parts := strings.Split(id, "/")
	if len(parts) != 5 {
		return nil, fmt.Errorf("%w: %q is not the id of a workload", errBad, id)
	}
	for i, p := range parts {
		text, err := url.PathUnescape(p)
		if err != nil {
			return nil, fmt.Errorf("%w: %q is not the id of a workload: %w", errBad, id, err)
		}
		parts[i] = text
	}
	return parts, nil
}

// selects returns the matchers of the series of the workload with an ID, without braces.
func selects(id string) (string, error) {
	parts, err := unpack(id)
	if err != nil {
		return "", err
	}
	labels := []string{"gpu_workload_kind", "k8s_cluster_name", "k8s_namespace_name", "gpu_workload_name", "slurm_job_id"}
	if parts[0] == kindSlurm {
		labels[1] = "slurm_cluster"
	}
	for i, p := range parts {
		parts[i] = labels[i] + "=" + strconv.Quote(p)
	}
	return strings.Join(parts, ","), nil
}
