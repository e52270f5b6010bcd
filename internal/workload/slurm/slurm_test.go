package slurm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload"
)

const secret = "hunter2"

// host is a machine with the node gn1, four GPUs in an order of its own, and jobs.
type host struct {
	*testing.T
	root string
	asks script // what its controller answers
	src  *Source
}

func newHost(t *testing.T, change ...func(*Config)) *host {
	h := &host{T: t, root: t.TempDir()}
	write(t, filepath.Join(h.root, "etc/slurm/slurm.conf"), "ClusterName=hpc\nNodeName=gn1 NodeHostname=h1 Gres=gpu:4,shard:16\n")
	write(t, filepath.Join(h.root, "etc/slurm/gres.conf"), "Name=gpu File=/dev/nvidia2\nName=gpu File=/dev/nvidia[0-1,3]\n")
	cfg := Config{Root: h.root, Host: "h1.example.org", Offline: true, Minors: []string{"nvidia"}}
	for _, f := range change {
		f(&cfg)
	}
	h.src = New(cfg)
	h.src.settle()
	return h
}

// group is the control group of a step.
func (h *host) group(job, step string) string {
	return filepath.Join(h.root, "sys/fs/cgroup/freezer/slurm/uid_1000/job_"+job, "step_"+step)
}

// start starts a process in a step.
func (h *host) start(pid int, job, step string, vars ...string) {
	h.Helper()
	proc := filepath.Join(h.root, "proc", fmt.Sprint(pid))
	write(h.T, filepath.Join(proc, "stat"), fmt.Sprintf("%d (python) S 1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, 1000+pid))
	write(h.T, filepath.Join(proc, "cgroup"), "6:freezer:/slurm/uid_1000/job_"+job+"/step_"+step+"\n")
	write(h.T, filepath.Join(proc, "environ"), string(env(append(vars, "PASSWORD="+secret, "CUDA_VISIBLE_DEVICES=0,1")...)))
	procs := filepath.Join(h.group(job, step), "cgroup.procs")
	old, _ := os.ReadFile(procs) // the first has none
	write(h.T, procs, string(old)+fmt.Sprintln(pid))
}

func (h *host) end(job string) {
	if err := os.RemoveAll(filepath.Dir(h.group(job, "x"))); err != nil {
		h.Fatal(err)
	}
}

// controller makes the controller answer h.asks.
func (h *host) controller() {
	if h.src.ctl == nil {
		h.src.cfg.Offline = false
		h.src.ctl = newController(&h.asks, h.src.cfg.Refresh, h.src.cfg.StaleFor)
	}
	h.src.ctl.once(context.Background())
	h.src.rebuild()
}

// want checks who holds what: "7 nvidia2", "4 nvidia0 2/4", "9 nvidia1 stale".
func (h *host) want(name string, want ...string) {
	h.Helper()
	var got []string
	for _, g := range h.src.Grants() {
		s := g.Workload.Attributes["slurm.job.id"] + " " + g.Device.IDs[0]
		if g.Replicas != 1 || g.Held != 1 {
			s += fmt.Sprintf(" %d/%d", g.Held, g.Replicas)
		}
		if g.Stale {
			s += " stale"
		}
		got = append(got, s)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		h.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func vars(job, gpus string) []string {
	return []string{
		"SLURM_JOB_ID=" + job, "SLURM_JOB_GPUS=" + gpus, "SLURM_JOB_NAME=train", "SLURM_JOB_USER=alice", "SLURM_JOB_ACCOUNT=ml",
		"SLURM_JOB_PARTITION=gpu", "SLURM_JOB_QOS=normal", "SLURM_CLUSTER_NAME=hpc", "SLURM_ARRAY_JOB_ID=4", "SLURM_ARRAY_TASK_ID=2",
	}
}

// A process must resolve to the same workload as the grant, with all attributes, also
// before and without the controller; nothing else of an environment is exported.
func TestSource(t *testing.T) {
	h := newHost(t)
	h.start(50, "7", "extern")
	h.start(60, "7", "batch", vars("7", "0,3")...)
	h.start(70, "8", "0", "SLURM_JOB_ID=8", "SLURM_STEP_GPUS=1", "SLURM_JOB_GPUS=0,3")
	h.src.scan()
	job := workload.Workload{ID: "slurm/hpc/7", Kind: "slurm_job", Name: "train", Team: "ml", Attributes: map[string]string{
		"slurm.cluster": "hpc", "slurm.job.id": "7", "slurm.job.name": "train", "slurm.user": "alice", "slurm.account": "ml",
		"gpu.workload.queue": "gpu", "slurm.partition": "gpu", "slurm.qos": "normal", "slurm.array.job.id": "4", "slurm.array.task.id": "2",
	}}
	bare := workload.Workload{ID: "slurm/hpc/8", Kind: "slurm_job", Name: "8", Attributes: map[string]string{"slurm.cluster": "hpc", "slurm.job.id": "8"}}
	grant := func(w workload.Workload, id string) workload.Grant {
		return workload.Grant{Workload: w, Device: workload.Ref{Resource: "gres/gpu", IDs: []string{id}}, Held: 1, Replicas: 1}
	}
	want := []workload.Grant{grant(job, "nvidia2"), grant(job, "nvidia3"), grant(bare, "nvidia0")}
	if diff := cmp.Diff(want, h.src.Grants()); diff != "" {
		t.Errorf("grants (-want +got):\n%s", diff)
	}
	for pid, want := range map[uint32]workload.Workload{50: job, 60: job, 70: bare, 80: {}} {
		got, ok := h.src.Process(pid)
		if diff := cmp.Diff(want, got); diff != "" || ok != (pid != 80) {
			t.Errorf("process %d: %t (-want +got):\n%s", pid, ok, diff)
		}
	}
	all, err := json.Marshal([]any{h.src.Grants(), h.src.Statuses(), fmt.Sprintf("%+v", h.src.here), fmt.Sprintf("%+v", h.src.view)})
	if err != nil || strings.Contains(string(all), secret) || strings.Contains(string(all), "PASSWORD") {
		t.Errorf("%v: the secret is in %s", err, all)
	}
	h.end("7")
	h.src.scan()
	h.want("after the job", "8 nvidia0")
}

func TestSourceOptions(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Steps, c.Teams = true, map[string]string{"ml": "research"} })
	h.start(60, "7", "batch", vars("7", "0")...)
	h.src.scan()
	w, _ := h.src.Process(60)
	if w.Team != "research" || w.Attributes["slurm.step.id"] != "batch" {
		t.Errorf("%+v", w)
	}
	if g := h.src.Grants()[0].Workload; g.Attributes["slurm.step.id"] != "" {
		t.Errorf("the step of a process was added to the job: %+v", g)
	}
}

// The environment is under the user's control: it can name another job, account and device.
// The control group decides the job, and the controller takes precedence for the rest.
func TestSourceLies(t *testing.T) {
	h := newHost(t)
	h.start(59, "7", "batch", "SLURM_JOB_ID=99", "SLURM_JOB_GPUS=3", "SLURM_JOB_ACCOUNT=free")
	h.start(60, "7", "batch", vars("7", "0")...)
	h.src.scan()
	h.want("another job's", "7 nvidia2")
	h.asks.jobs = []Job{{Job: slurm.Job{ID: "7", Account: "real", States: []string{"RUNNING"}}, GRES: gpu(1)}}
	h.controller()
	h.want("by the controller", "7 nvidia0")
	if w, _ := h.src.Process(60); w.Team != "real" || w.Attributes["slurm.user"] != "alice" {
		t.Errorf("%+v", w)
	}
	h.asks.jobs[0].GRES = nil
	h.controller()
	h.want("a job without any")
}

// Several jobs on a GPU share it: the last does not take it from the others.
func TestSourceShared(t *testing.T) {
	h := newHost(t)
	h.start(60, "4", "batch", append(vars("4", "1"), "SLURM_SHARDS_ON_NODE=2")...)
	h.start(61, "5", "batch", append(vars("5", "1"), "SLURM_SHARDS_ON_NODE=1")...)
	h.start(62, "6", "batch", append(vars("6", "2,3"), "SLURM_SHARDS_ON_NODE=6")...)
	h.src.scan()
	h.want("by the node", "4 nvidia0 2/4", "5 nvidia0 1/4", "6 nvidia1 6/8", "6 nvidia3 6/8")
	parts := func(s string) []slurm.GRES {
		g, err := slurm.ParseGRES(s)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	h.asks.jobs = []Job{
		{Job: slurm.Job{ID: "4"}, GRES: parts("shard:2(IDX:1)")}, // 22.05
		{Job: slurm.Job{ID: "5"}, GRES: parts("shard:1(0/4,1/4,0/4,0/4)")},
		{Job: slurm.Job{ID: "6"}, GRES: parts("shard:6(0/4,0/4,4/4,2/4),nic:1(IDX:0)")},
		{Job: slurm.Job{ID: "10"}, GRES: parts("mps:50(50/100,0/100,0/100,0/100)")},
		{Job: slurm.Job{ID: "11"}, GRES: parts("gpu:2(CNT:2)")},
		{Job: slurm.Job{ID: "12"}, GRES: parts("gpu:1(IDX:9)")},
	}
	h.controller()
	h.want("by the controller", "4 nvidia0 2/4", "5 nvidia0 1/4", "6 nvidia1", "6 nvidia3 2/4", "10 nvidia2 50/100")
	want := workload.Status{Source: "slurm", Reason: workload.ResourceUnknown, Detail: "1 devices are neither in gres.conf nor known to a driver, " +
		"such as one of job 12; 1 jobs hold GPUs that Slurm only counts: gres.conf has no File= for them"}
	if diff := cmp.Diff(want, h.src.Statuses()[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a job with one GPU per task that gets only the first task's. With ConstrainDevices,
// Slurm tells every task about the same GPU: the rest is known only from the controller's last
// answer, however old, or not at all, and then a status says so.
func TestSourceTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		task := func(pid int, job, gpu string) {
			h.start(pid, job, "0", "SLURM_JOB_ID="+job, "SLURM_STEP_ID=0", "SLURM_STEP_GPUS="+gpu, "SLURM_GPUS_ON_NODE=3")
		}
		task(60, "7", "0")
		h.src.scan()
		h.want("one task has started", "7 nvidia2")
		task(61, "7", "1")
		task(62, "7", "3")
		h.src.scan()
		h.want("all have", "7 nvidia2", "7 nvidia0", "7 nvidia3")
		h.end("7")
		for pid := range 3 {
			task(70+pid, "8", "1")
		}
		h.src.scan()
		h.want("all name the same", "8 nvidia0")
		short := workload.Status{
			Source: "slurm", Reason: workload.ResourceUnknown,
			Detail: "1 jobs have more GPUs than their tasks are told about, such as job 8: only the controller or a prolog knows the others",
		}
		if diff := cmp.Diff(short, h.src.Statuses()[0]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		h.asks.jobs = []Job{{Job: slurm.Job{ID: "8"}, GRES: gpu(1, 2, 3)}}
		h.controller()
		h.want("by the controller", "8 nvidia0", "8 nvidia1", "8 nvidia3")
		h.asks.err = errors.New("away")
		time.Sleep(time.Hour)
		h.controller()
		h.want("an hour later", "8 nvidia0 stale", "8 nvidia1 stale", "8 nvidia3 stale")
		h.end("8")
		h.src.scan()
		h.want("after the job")
	})
}

// A job that only holds devices is known through the controller or a prolog.
func TestSourceIdle(t *testing.T) {
	maps := t.TempDir()
	h := newHost(t, func(c *Config) { c.JobMaps = maps })
	h.start(50, "9", "extern")
	h.src.scan()
	h.want("nobody knows")
	write(t, filepath.Join(maps, "0"), "9\n")
	write(t, filepath.Join(maps, "1"), "9\n10\n")
	write(t, filepath.Join(maps, "GPU-1"), "10\n")
	h.src.scan()
	h.want("by a prolog", "9 nvidia2", "9 nvidia0 1/2", "10 nvidia0 1/2", "10 GPU-1")
	h.asks.jobs = []Job{{Job: slurm.Job{ID: "9"}, GRES: gpu(3)}}
	h.controller()
	h.want("by the controller", "9 nvidia3", "10 nvidia0 1/2", "10 GPU-1")
	h.src.ctl = nil
	h.start(62, "10", "batch", append(vars("10", "1"), "SLURM_SHARDS_ON_NODE=1")...)
	if err := os.Remove(filepath.Join(maps, "GPU-1")); err != nil {
		t.Fatal(err)
	}
	h.src.scan()
	h.want("the job says which part", "9 nvidia2", "9 nvidia0 1/2", "10 nvidia0 1/4")
	h.end("9")
	h.src.scan()
	h.want("an epilog failed", "10 nvidia0 1/4")
}

// The controller's answer about a job that has ended here meanwhile is not used, also if
// the controller never answers again; a later answer is.
func TestSourceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.start(60, "7", "batch", vars("7", "0")...)
		h.asks.jobs = []Job{{Job: slurm.Job{ID: "7"}, GRES: gpu(0)}, {Job: slurm.Job{ID: "9"}, GRES: gpu(1)}}
		h.src.scan()
		h.controller()
		h.want("both run", "7 nvidia2", "9 nvidia0")
		time.Sleep(time.Second)
		h.end("7")
		h.src.scan()
		h.want("one has ended", "9 nvidia0")
		h.asks.err = errors.New("away")
		time.Sleep(30 * time.Second)
		h.controller()
		h.want("the controller is away", "9 nvidia0 stale")
		if s := h.src.Statuses(); s[1].Reason != workload.Stale || s[0].Reason != workload.OK {
			t.Errorf("%v", s)
		}
		h.start(61, "12", "batch", vars("12", "3")...)
		h.src.scan()
		h.want("a job starts without it", "9 nvidia0 stale", "12 nvidia3")
		time.Sleep(15 * time.Minute)
		h.want("for too long", "12 nvidia3")
		h.asks.err = nil
		h.controller()
		h.want("it is back, and 7 runs again", "7 nvidia2", "9 nvidia0", "12 nvidia3")
	})
}

// A machine without Slurm costs checks of a few paths, and runs nothing.
func TestSourceAbsent(t *testing.T) {
	dir := fake(t, oneJob, oneText)
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		write(t, filepath.Join(root, "proc/1/stat"), "1 (init) S 0 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0\n")
		write(t, filepath.Join(root, "proc/1/cgroup"), "0::/init.scope\n")
		s := New(Config{Root: root, Host: "h1", Scontrol: filepath.Join(dir, "scontrol")})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		want := []workload.Status{{Source: "slurm", Reason: workload.Absent, Detail: "no slurmd, no slurm.conf, no slurm cgroup"}}
		if diff := cmp.Diff(want, s.Statuses()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if _, ok := s.Process(1); ok || s.Grants() != nil {
			t.Error("the source knows something, or searched for it")
		}
		cancel()
		<-done
	})
	if _, err := os.Stat(filepath.Join(dir, "runs")); err == nil {
		t.Errorf("the source ran %v", runs(t, dir))
	}
}
