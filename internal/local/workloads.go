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

// Workloads configures how the owners of devices are found.
type Workloads struct {
	Off bool // no source is queried

	KubeletSocket string            // pod-resources socket; empty: the kubelet's default
	Kubeconfig    string            // how to reach the API server; empty: as a pod does
	Node          string            // name of this node in the cluster; empty: the host name
	PodLabels     []string          // keys of the pod labels that become attributes
	TeamLabel     string            // key of the pod label that names the team
	Teams         map[string]string // by namespace, for pods without a team label
	StaleFor      time.Duration     // how long the kubelet's last answer is used while it does not respond; 0: 5 minutes

	Slurm Slurm // Root, Host, Minors and Drivers are overridden with those of the machine and its vendors
}

// Slurm configures how Slurm jobs are found.
type Slurm = slurm.Config

// DefaultTeamLabel is the default key of the pod label that names the team.
const DefaultTeamLabel = "team"

// owners are the workload sources, best first, and their background work.
type owners struct {
	workload.Resolver
	background []func(context.Context) error
	ask        func()                   // makes the kubelet source refresh; nil: not needed
	place      func() map[string]string // location of this machine, nil while unknown; nil func: no source
}

// owners returns every source that may know this machine's workloads.
func (c Config) owners() *owners {
	w, root := c.Workloads, cmp.Or(c.Root, "/")
	proc := filepath.Join(root, "proc")
	var o owners
	cgroups := cgroup.NewReader(proc)
	socket := cmp.Or(w.KubeletSocket, filepath.Join(root, "var/lib/kubelet/pod-resources/kubelet.sock"))
	kl := kubelet.New(socket)
	// A new owner should show one interval later, but the kubelet must not be queried more
	// than once a second.
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

// place returns the location of a node according to the API server.
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

// run runs the background work of all sources until ctx ends.
func (o *owners) run(ctx context.Context) {
	done := make(chan struct{})
	for _, f := range o.background {
		go func() {
			_ = f(ctx) // failures are reported in the statuses
			done <- struct{}{}
		}()
	}
	for range o.background {
		<-done
	}
}

// diagnose reports which sources answer and which do not. It gives them a moment to
// connect.
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

// fixes maps source and reason to a fix.
var fixes = map[string]string{
	"kubelet permission_denied":          "mount /var/lib/kubelet/pod-resources into the container and run as root",
	"kubelet failed":                     "see the kubelet's own log",
	"kubernetes_api permission_denied":   "give the agent's service account the ClusterRole of docs/workloads.md",
	"kubernetes_api failed":              "check --kubeconfig and --node-name, and that the API server can be reached from here",
	"cgroup no_host_pid_namespace":       "run with hostPID: true, or docker run --pid=host",
	"process no_host_pid_namespace":      "run with hostPID: true, or docker run --pid=host",
	"slurm permission_denied":            "run as root, or give the agent CAP_SYS_PTRACE to read the GPU list in a job's environment",
	"slurm resource_unknown":             "name each GPU with File= in gres.conf, or use AutoDetect",
	"slurm_controller failed":            "check that squeue works here as this user, or configure the address of slurmrestd",
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
