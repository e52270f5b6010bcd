package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

// Every reason for which a label may be missing has its own status, which says what is
// lost.
func TestStatuses(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	refused := errors.New("refused")
	f := func(name string, change func(*node, *Config), want ...workload.Status) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(start))
			n := train()
			cfg := Config{Kubelet: n, API: n, Cgroups: proc{n}}
			change(n, &cfg)
			s := New(cfg)
			s.Process(7)
			all := []workload.Status{{Source: "cgroup", Reason: "ok"}, {Source: "kubelet", Reason: "ok"}, {Source: "kubernetes_api", Reason: "ok"}}
			expect := want
			for _, st := range all {
				found := false
				for _, w := range want {
					found = found || w.Source == st.Source
				}
				if !found {
					expect = append(expect, st)
				}
			}
			got := map[string]string{}
			for _, st := range s.Statuses() {
				key := st.Source + " " + string(st.Reason)
				if _, twice := got[key]; twice {
					t.Errorf("%s: %s is there twice", name, key)
				}
				got[key] = st.Detail
			}
			wanted := map[string]string{}
			for _, w := range expect {
				wanted[w.Source+" "+string(w.Reason)] = w.Detail
			}
			if diff := cmp.Diff(wanted, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		})
	}
	problem := func(list ...kubeapi.Problem) func(*node, *Config) {
		return func(n *node, _ *Config) {
			for i := range list {
				list[i].Since, list[i].Err = start, refused
			}
			n.state.Problems = list
		}
	}
	never := func(err error) func(*node, *Config) {
		return func(n *node, _ *Config) { n.answered, n.err = false, err }
	}
	f("all is well", func(*node, *Config) {})
	f("no socket", never(&fs.PathError{Op: "dial", Path: "s", Err: fs.ErrNotExist}), workload.Status{Source: "kubelet", Reason: "absent", Detail: "dial s: file does not exist"})
	f("not allowed", never(fs.ErrPermission), workload.Status{Source: "kubelet", Reason: "permission_denied", Detail: "permission denied"})
	f("hangs", never(context.DeadlineExceeded), workload.Status{Source: "kubelet", Reason: "failed", Detail: "context deadline exceeded"})
	f("just started", never(nil), workload.Status{Source: "kubelet", Reason: "absent", Detail: "has not answered yet"})
	f("stopped", func(n *node, _ *Config) { n.err = refused },
		workload.Status{Source: "kubelet", Reason: "stale", Detail: "its last answer is used until 03:09:05Z: refused"})
	f("too much", func(n *node, _ *Config) { n.Refused = 3 },
		workload.Status{Source: "kubelet", Reason: "failed", Detail: "3 containers and devices exceed the limit"})
	f("nothing is asked", func(_ *node, c *Config) { *c = Config{} },
		workload.Status{Source: "kubelet", Reason: "absent", Detail: "the kubelet is not queried"},
		workload.Status{Source: "kubernetes_api", Reason: "absent", Detail: "the API server is not queried"},
		workload.Status{Source: "cgroup", Reason: "absent", Detail: "processes are not inspected"})
	f("no cluster", func(_ *node, c *Config) { c.API, c.APIErr = nil, fmt.Errorf("kubeapi: %w", kubeapi.ErrNotInCluster) },
		workload.Status{Source: "kubernetes_api", Reason: "absent", Detail: "kubeapi: " + kubeapi.ErrNotInCluster.Error()})
	f("a bad kubeconfig", func(_ *node, c *Config) { c.API, c.APIErr = nil, refused },
		workload.Status{Source: "kubernetes_api", Reason: "failed", Detail: "refused"})
	f("pods and owners denied", problem(kubeapi.Problem{Part: kubeapi.Owners, Denied: true}, kubeapi.Problem{Part: kubeapi.Pods, Denied: true}),
		workload.Status{Source: "kubernetes_api", Reason: "permission_denied", Detail: "owners; unknown: the owners of pods' owners: refused; " +
			"pods; unknown: owners, labels, teams, UIDs and ended pods: refused"})
	f("unreachable", problem(kubeapi.Problem{Part: kubeapi.Pods}, kubeapi.Problem{Part: kubeapi.Slices}),
		workload.Status{Source: "kubernetes_api", Reason: "stale", Detail: "its last answer is used until 03:34:05Z: refused"},
		workload.Status{Source: "kubernetes_api", Reason: "failed", Detail: "resourceslices; unknown: which device a claim refers to: refused"})
	f("not synced", func(n *node, _ *Config) { n.state = kubeapi.State{} },
		workload.Status{Source: "kubernetes_api", Reason: "absent", Detail: "has not answered yet"})
	f("own PID namespace", func(n *node, _ *Config) { n.nested = true },
		workload.Status{Source: "cgroup", Reason: "no_host_pid_namespace", Detail: "the processes of other containers are not visible"})
	f("hidden processes", func(n *node, _ *Config) { n.unread = map[uint32]error{7: fs.ErrPermission} },
		workload.Status{Source: "cgroup", Reason: "permission_denied", Detail: "permission denied"})
	f("a process that ended", func(n *node, _ *Config) { n.unread = map[uint32]error{7: fs.ErrNotExist} })
}

func TestReady(t *testing.T) {
	f := func(want bool, change func(*node)) {
		t.Helper()
		n := train()
		change(n)
		if got := n.source().Ready(); got != want {
			t.Errorf("ready = %v, want %v", got, want)
		}
	}
	f(true, func(*node) {})
	f(false, func(n *node) { n.answered = false })
	f(true, func(n *node) { n.answered, n.err = false, fs.ErrNotExist })
	f(false, func(n *node) { n.state.Synced = false })
	f(true, func(n *node) { n.state = kubeapi.State{Problems: []kubeapi.Problem{{Part: kubeapi.Pods}}} })
}

// The real components work together: an API server, logs on disk, control groups in /proc.
func TestRealParts(t *testing.T) {
	s := kubeapitest.New()
	const id = "7aa3298e6c87d3e9149507c6c9d693607fad2698bded8294e1641d6d12d3e9e1"
	const uid = "f122e19c-717b-4f18-acfe-99d122025a72"
	s.PutPod(kubeapitest.Pod("node1", "ml", "web-5d-x", uid, kubeapitest.Containers("main", id), kubeapitest.Object{"metadata": kubeapitest.Object{
		"labels":          kubeapitest.Object{"pod-template-hash": "5d"},
		"ownerReferences": kubeapitest.Owned("apps/v1", "ReplicaSet", "web-5d", "rs")["ownerReferences"],
	}}))
	url, stop := s.Serve()
	defer stop()
	root := t.TempDir()
	file, err := kubeapitest.Kubeconfig(root, url)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubeapi.New(kubeapi.Config{Node: "node1", Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- api.Run(ctx) }()
	defer func() { cancel(); <-done }()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/7/stat", "7 (python) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0")
	write("proc/7/cgroup", "0::/kubepods.slice/kubepods-podf122e19c_717b_4f18_acfe_99d122025a72.slice/cri-containerd-"+id+".scope\n")
	n := train()
	n.Allocations = []kubelet.Allocation{gave("ml", "web-5d-x", "main", "GPU-1")}
	src := New(Config{Kubelet: n, API: api, Cgroups: cgroup.NewReader(filepath.Join(root, "proc")), Logs: kubelet.NewLogs(root)})
	await.NoError(t, func() error {
		if !src.Ready() {
			return fmt.Errorf("not ready: %v", src.Statuses())
		}
		return nil
	})
	want := workload.Workload{ID: "pod/" + uid + "/main", Kind: "deployment", Name: "web", Attributes: map[string]string{
		"k8s.namespace.name": "ml", "k8s.pod.name": "web-5d-x", "k8s.pod.uid": uid, "k8s.container.name": "main", "k8s.deployment.name": "web",
	}}
	got, ok := src.Process(7)
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("process (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, src.Grants()[0].Workload); diff != "" {
		t.Errorf("grant (-want +got):\n%s", diff)
	}
}
