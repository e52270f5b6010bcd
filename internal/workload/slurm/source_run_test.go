package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Everything together: configuration, control groups and Slurm's tools, which run once.
func TestRun(t *testing.T) {
	dir := fake(t, `echo '{"jobs":[{"job_id":9,"nodes":"gn1","job_state":"RUNNING","gres_detail":["gpu:1(IDX:1)"]}]}'`, oneText)
	h := newHost(t, func(c *Config) { c.Scontrol = filepath.Join(dir, "scontrol") })
	h.start(60, "9", "extern")
	cfg := h.src.cfg
	cfg.Offline = false
	h.src = New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.src.Run(ctx) }()
	want := []workload.Status{
		{Source: "slurm", Reason: workload.OK, Detail: "node gn1, 1 jobs"},
		{Source: "slurm_controller", Reason: workload.OK, Detail: "1 jobs on this node"},
	}
	await.NoError(t, func() error { // control groups and the controller are asked one after the other
		if diff := cmp.Diff(want, h.src.Statuses()); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
	h.want("all of it", "9 nvidia0")
	for range 1000 { // looking it up forks nothing
		h.src.Process(60)
		h.src.Grants()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{jsonRun}, runs(t, dir)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// Every gap is reported, and affects nothing else.
func TestStatuses(t *testing.T) {
	f := func(name string, do func(h *host), want ...workload.Status) {
		t.Helper()
		h := newHost(t)
		h.start(60, "7", "batch", vars("7", "0")...)
		do(h)
		if diff := cmp.Diff(want, h.src.Statuses()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	offline := workload.Status{Source: "slurm_controller", Reason: workload.Absent, Detail: "the controller is not queried"}
	one := workload.Status{Source: "slurm", Reason: workload.OK, Detail: "node gn1, 1 jobs"}
	f("all is well", func(h *host) { h.src.scan() }, one, offline)
	f("the environment may not be read", func(h *host) {
		h.src.node.environ = func(uint32) (environ, error) { return environ{}, os.ErrPermission }
		h.src.scan()
	}, workload.Status{Source: "slurm", Reason: workload.PermissionDenied, Detail: "permission denied"}, offline)
	f("a process hangs", func(h *host) {
		h.src.node.environ = func(uint32) (environ, error) { select {} }
		h.src.scan()
	}, workload.Status{Source: "slurm", Reason: workload.Failed, Detail: errSlow.Error()}, offline)
	f("the controller fails", func(h *host) {
		h.src.scan()
		h.asks.err = errors.New("connection refused")
		h.controller()
	}, one, workload.Status{Source: "slurm_controller", Reason: workload.Failed, Detail: "connection refused"})
	f("the controller hides jobs", func(h *host) {
		h.controller()
		h.src.scan()
		h.controller()
	}, one, workload.Status{
		Source: "slurm_controller", Reason: workload.PermissionDenied,
		Detail: "reports none of the 1 jobs on this node: PrivateData may hide them from this user",
	})
	f("no node", func(h *host) {
		h.src.cfg.Host, h.src.cfg.Offline = "login", false
		if err := os.RemoveAll(filepath.Join(h.root, "sys")); err != nil {
			t.Fatal(err)
		}
		h.src.settle()
		h.src.scan()
	}, workload.Status{Source: "slurm", Reason: workload.OK, Detail: "node unknown, 0 jobs"},
		workload.Status{Source: "slurm_controller", Reason: workload.Absent, Detail: "this machine is not a node of the cluster"})
}

// Control groups of version 2, and those of another node on the same machine.
func TestRoots(t *testing.T) {
	h := newHost(t)
	v2 := "sys/fs/cgroup/system.slice/gn1_slurmstepd.scope/job_7/step_0/user/task_0"
	write(t, filepath.Join(h.root, v2, "cgroup.procs"), "60\n")
	write(t, filepath.Join(h.root, "sys/fs/cgroup/system.slice/gn2_slurmstepd.scope/job_8/step_0/user/task_0/cgroup.procs"), "61\n")
	write(t, filepath.Join(h.root, "proc/60/environ"), string(env("SLURM_JOB_ID=7", "SLURM_STEP_GPUS=1")))
	write(t, filepath.Join(h.root, "proc/61/environ"), string(env("SLURM_JOB_ID=8", "SLURM_STEP_GPUS=2")))
	h.src.scan()
	h.want("version 2", "7 nvidia0")
}

// Catches GPUs of this node that are given to a job of another node on the same machine, because somebody asked for the
// job of a process that is on no device.
func TestProcessOfAnotherNode(t *testing.T) {
	h := newHost(t)
	h.start(60, "7", "batch", vars("7", "0")...)
	write(t, filepath.Join(h.root, "proc/60/cgroup"), "6:freezer:/slurm_gn2/uid_1000/job_7/step_batch\n")
	if err := os.RemoveAll(filepath.Join(h.root, "sys")); err != nil {
		t.Fatal(err)
	}
	if w, ok := h.src.Process(60); !ok || w.Attributes["slurm.job.id"] != "7" {
		t.Errorf("the process is of %+v, want job 7", w)
	}
	h.src.scan()
	h.want("a process of another node")
}

// Catches a job that is on a device before the next scan, and until then is another workload: named by its number, without
// its user and team.
func TestProcessOfNewJob(t *testing.T) {
	h := newHost(t)
	h.src.scan()
	h.start(60, "7", "batch", vars("7", "0")...)
	first, _ := h.src.Process(60)
	h.src.scan()
	later, ok := h.src.Process(60)
	if diff := cmp.Diff(later, first); diff != "" || !ok || first.Team != "ml" {
		t.Errorf("%+v, a job before it was scanned (-later +first):\n%s", first, diff)
	}
	if n := len(h.src.new); n > 0 {
		t.Errorf("%d jobs are remembered as new", n)
	}

	// A job that was started from within another has that one's environment.
	h.start(61, "8", "0", vars("7", "1")...)
	if w, ok := h.src.Process(61); !ok || w.Attributes["slurm.job.id"] != "8" || w.Team != "" {
		t.Errorf("%+v, a job with the environment of another", w)
	}
}

// In a container the host's control groups may be invisible. The processes on a device
// still tell their jobs.
func TestNoControlGroups(t *testing.T) {
	h := newHost(t)
	h.start(60, "7", "batch", vars("7", "0")...)
	h.start(61, "8", "0", vars("99", "1")...)
	if err := os.RemoveAll(filepath.Join(h.root, "sys")); err != nil {
		t.Fatal(err)
	}
	h.src.scan()
	h.want("before anybody asks")
	for _, pid := range []uint32{60, 61} {
		if _, ok := h.src.Process(pid); !ok {
			t.Errorf("process %d is unknown", pid)
		}
	}
	h.src.scan()
	h.want("a process was on a device", "7 nvidia2")
	if w, _ := h.src.Process(60); w.Team != "ml" {
		t.Errorf("%+v", w)
	}
	if w, _ := h.src.Process(61); w.Team != "" {
		t.Errorf("the process has the team of another job: %+v", w)
	}
	if err := os.RemoveAll(filepath.Join(h.root, "proc/60")); err != nil {
		t.Fatal(err)
	}
	h.src.scan()
	h.want("it has ended")
}

// The name of the node decides which jobs the controller is queried for.
func TestReadSite(t *testing.T) {
	root := newHost(t).root
	empty := t.TempDir()
	joined := t.TempDir()
	write(t, filepath.Join(joined, "sys/fs/cgroup/system.slice/slurmstepd.scope/x"), "")
	f := func(name string, cfg Config, want string) {
		t.Helper()
		if here := readSite(cfg); here.node != want || here.err != nil {
			t.Errorf("%s: %q, %v; want %q", name, here.node, here.err, want)
		}
	}
	f("as slurm.conf says", Config{Root: root, Host: "h1.example.org"}, "gn1")
	f("as somebody says", Config{Root: root, Host: "h1", Node: "gn9"}, "gn9")
	f("where users log in", Config{Root: root, Host: "login", REST: "http://h"}, "")
	f("in a container", Config{Root: empty, Host: "h1.example.org", REST: "http://h"}, "h1")
	f("without Slurm", Config{Root: empty, Host: "h1"}, "")
	f("a node that joins by itself", Config{Root: joined, Host: "h1.example.org"}, "h1")
}
