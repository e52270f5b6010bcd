package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Owner is a workload as its users know it: a deployment, a job, a notebook. All its pods and
// containers are one owner.
type Owner struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Team      string `json:"team,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Cluster   string `json:"cluster,omitempty"`
	Job       string `json:"job,omitempty"` // Slurm job ID
	User      string `json:"user,omitempty"`
	Account   string `json:"account,omitempty"`
}

// ownerLabels are the labels that OwnerOf reads.
var ownerLabels = strings.Join([]string{
	LabelKind, LabelWorkload, LabelTeam, LabelNamespace, LabelCluster, LabelSlurmCluster, LabelSlurmJob, LabelSlurmUser, LabelSlurmAccount, LabelUser,
}, ", ")

// OwnerLabels returns the labels that OwnerOf reads, separated by commas.
func OwnerLabels() string { return ownerLabels }

// TeamOf returns the team to which a series is charged: its team, else its Slurm account, else
// its namespace.
func TeamOf(l query.Labels) string {
	return cmp.Or(l[LabelTeam], l[LabelSlurmAccount], l[LabelNamespace])
}

// QueueOf returns the queue of a series. Agents before the label reported a Slurm job's partition only.
func QueueOf(l query.Labels) string { return cmp.Or(l[LabelWorkloadQueue], l[LabelSlurmPartition]) }

// UserOf returns the user of a series.
func UserOf(l query.Labels) string { return cmp.Or(l[LabelSlurmUser], l[LabelUser]) }

// OwnerOf returns the owner of a series, and false if the series has no owner.
func OwnerOf(l query.Labels) (Owner, bool) {
	o := Owner{
		Kind: l[LabelKind], Name: l[LabelWorkload], Team: TeamOf(l), Namespace: l[LabelNamespace], Cluster: l[LabelCluster],
		Job: l[LabelSlurmJob], User: UserOf(l), Account: l[LabelSlurmAccount],
	}
	if o.Kind == "" || o.Kind == KindUnallocated {
		return Owner{}, false
	}
	if o.Kind == KindSlurmJob {
		o.Cluster = l[LabelSlurmCluster]
	}
	o.ID = o.identity()
	return o, true
}

// Label returns the display name of a workload: its namespace, account or user, and its own name.
// Holders that are not workloads have their kind in parentheses.
func (o Owner) Label() string {
	switch place := cmp.Or(o.Namespace, o.Account, o.User); {
	case !IsWorkload(o.Kind):
		return "(" + o.Kind + ")"
	case o.Name == "":
		return o.Kind
	case place != "":
		return place + "/" + o.Name
	}
	return o.Name
}

// InCluster returns the display name of a workload where workloads of several clusters have the
// same name.
func InCluster(name, cluster string) string {
	if cluster == "" {
		return name
	}
	return name + " @" + cluster
}

// identity returns a URL-safe key that distinguishes owners.
func (o Owner) identity() string {
	parts := []string{o.Kind, o.Cluster, o.Namespace, o.Name, o.Job}
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// ErrOwner is returned for a text that is not the ID of an owner.
var ErrOwner = errors.New("not the ID of a workload")

// ParseOwner returns the kind and name in the ID of an owner and the matchers that select its
// series.
func ParseOwner(id string) (kind, name string, matchers []string, err error) {
	parts := strings.Split(id, "/")
	if len(parts) != 5 {
		return "", "", nil, fmt.Errorf("%w: %q", ErrOwner, id)
	}
	for i, p := range parts {
		if parts[i], err = url.PathUnescape(p); err != nil {
			return "", "", nil, fmt.Errorf("%w: %q: %w", ErrOwner, id, err)
		}
	}
	labels := []string{LabelKind, LabelCluster, LabelNamespace, LabelWorkload, LabelSlurmJob}
	if parts[0] == KindSlurmJob {
		labels[1] = LabelSlurmCluster
	}
	for i, p := range parts {
		matchers = append(matchers, Equals(labels[i], p))
	}
	return parts[0], parts[3], matchers, nil
}
