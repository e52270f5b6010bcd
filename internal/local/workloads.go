//go:build linux

package local

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
	"github.com/gpumeter/gpumeter/internal/workload/kubernetes"
	"github.com/gpumeter/gpumeter/internal/workload/process"
	"github.com/gpumeter/gpumeter/internal/workload/runtime"
	"github.com/gpumeter/gpumeter/internal/workload/slurm"
)

// Workloads configures how the owners of work on the devices are determined.
type Workloads struct {
	Off bool // nobody is asked

	KubeletSocket string            // of pod-resources; empty: where the kubelet has it
	Kubeconfig    string            // how to reach the API server; empty: as a pod does
	Node          string            // name of this node there; empty: of this machine
	PodLabels     []string          // keys of the pod labels that become attributes
	TeamLabel     string            // key of the pod label that names the team
	Teams         map[string]string // by namespace, of pods that name none
	StaleFor      time.Duration     // how long what the kubelet said is used while it does not answer; 0: 5 minutes

	Slurm Slurm // its Root, Host, Minors and Drivers are those of the machine and its vendors
}

// Slurm says how to find out about the jobs of Slurm.
type Slurm = slurm.Config

// DefaultTeamLabel is what a team is named by unless somebody says otherwise.
const DefaultTeamLabel = "team"

// owners are those who know, the best first, and what they do meanwhile.
type owners struct {
	workload.Resolver
	background []func(context.Context) error
	ask        func()                   // nil: there is nobody who must be asked again
	place      func() map[string]string // where this machine is, nil while that is not known; nil: nobody knows
}

// owners returns everyone this machine's workloads may be known by.
func (c Config) owners() *owners {
	w, root := c.Workloads, cmp.Or(c.Root, "/")
	proc := filepath.Join(root, "proc")
	var o owners
	cgroups := cgroup.NewReader(proc)
	socket := cmp.Or(w.KubeletSocket, filepath.Join(root, "var/lib/kubelet/pod-resources/kubelet.sock"))
	kl := kubelet.New(socket)
	// An owner that changed is to be seen one interval later, and the kubelet not to be asked
	// more than once a second.
	if o.ask = kl.Ask; c.Interval < time.Second {
		o.ask, kl = nil, kubelet.New(socket, kubelet.Every(time.Second))
	}
	k := kubernetes.Config{Kubelet: kl, Cgroups: cgroups, Logs: kubelet.NewLogs(root), Teams: w.Teams, Vendors: Vendors(), StaleFor: w.StaleFor}
	o.background = append(o.background, kl.Run)
	api, err := kubeapi.New(kubeapi.Config{
		Node: cmp.Or(w.Node, c.Host), Kubeconfig: w.Kubeconfig, Labels: w.PodLabels, TeamLabel: w.TeamLabel,
	})
	if err != nil {
		k.APIErr = err
	} else {
		k.API = api
		o.background = append(o.background, api.Run)
		o.place = func() map[string]string { return place(api.Node()) }
	}
	pods := kubernetes.New(k)
	o.background = append(o.background, pods.Run)
	w.Slurm.Root, w.Slurm.Host = root, c.Host
	w.Slurm.Minors, w.Slurm.Drivers = k.Vendors.Minors(), drivers(k.Vendors)
	jobs := slurm.New(w.Slurm)
	o.background = append(o.background, jobs.Run)
	o.Sources = []workload.Source{pods, jobs, runtime.New(root, cgroups), process.New(proc, root)}
	return &o
}

// drivers returns the kernel modules of each vendor.
func drivers(vendors device.Vendors) [][]string {
	var list [][]string
	for i := range vendors {
		list = append(list, vendors[i].Modules)
	}
	return list
}

// place returns where the API server says that a node is.
func place(n kubeapi.Node) map[string]string {
	all := map[string]string{}
	if n.Region != "" {
		all["cloud.region"] = n.Region
	}
	if n.Zone != "" {
		all["cloud.availability_zone"] = n.Zone
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// run lets everybody learn until ctx ends.
func (o *owners) run(ctx context.Context) {
	done := make(chan struct{})
	for _, f := range o.background {
		go func() {
			_ = f(ctx) // what failed is in the statuses
			done <- struct{}{}
		}()
	}
	for range o.background {
		<-done
	}
}

// diagnose says who knows of workloads and who does not. It gives them a moment to learn.
func (o *owners) diagnose(ctx context.Context) []device.Check {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	go o.run(ctx)
	var checks []device.Check
	for {
		answer := o.Resolve(workload.Question{})
		checks = checks[:0]
		waiting := false
		for _, s := range answer.Statuses {
			checks = append(checks, check(s))
			waiting = waiting || strings.Contains(s.Detail, "not answered yet")
		}
		if !waiting {
			return checks
		}
		select {
		case <-ctx.Done():
			return checks
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// fixes are what mends a reason, by source and reason.
var fixes = map[string]string{
	"kubelet permission_denied":          "mount /var/lib/kubelet/pod-resources into the container and run as root",
	"kubelet failed":                     "see the kubelet's own log",
	"kubernetes_api permission_denied":   "give the agent's service account the ClusterRole of docs/workloads.md",
	"kubernetes_api failed":              "check --kubeconfig and --node-name, and that the API server can be reached from here",
	"cgroup no_host_pid_namespace":       "run with hostPID: true, or docker run --pid=host",
	"process no_host_pid_namespace":      "run with hostPID: true, or docker run --pid=host",
	"slurm permission_denied":            "run as root, or give the agent CAP_SYS_PTRACE, so that it may read which GPUs a job says it has",
	"slurm resource_unknown":             "name each GPU with File= in gres.conf, or use AutoDetect",
	"slurm_controller failed":            "see whether squeue works here as this user; give the address of slurmrestd otherwise",
	"slurm_controller permission_denied": "let this user see all jobs (PrivateData, Operator), or renew the token of slurmrestd",
}

func check(s workload.Status) device.Check {
	c := device.Check{
		Subject: "workloads by " + strings.ReplaceAll(s.Source, "_", " "),
		State:   device.CheckLimited,
		Detail:  s.Detail,
		Fix:     fixes[fmt.Sprintf("%s %s", s.Source, s.Reason)],
	}
	switch s.Reason {
	case workload.OK:
		c.State = device.CheckOK
		c.Detail = cmp.Or(c.Detail, "answers")
	case workload.Absent:
		c.State = device.CheckAbsent
		c.Detail = cmp.Or(c.Detail, "none on this machine")
	default:
		c.Detail = strings.ReplaceAll(string(s.Reason), "_", " ") + ": " + s.Detail
	}
	return c
}
