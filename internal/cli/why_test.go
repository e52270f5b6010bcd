//go:build linux

package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// queue returns an API server with a pod that waits for 8 GPUs in front of 11 free ones.
func queueOf() *kubeapitest.Server {
	type object = kubeapitest.Object
	s := kubeapitest.New()
	offers := func(cpu string) object {
		return object{"status": object{"allocatable": object{"nvidia.com/gpu": "8", "cpu": cpu, "memory": "500Gi", "pods": "110"}}}
	}
	asks := func(gpus, cpu string) object {
		return object{"spec": object{"containers": []object{{"name": "main", "resources": object{"requests": object{"nvidia.com/gpu": gpus, "cpu": cpu}}}}}}
	}
	s.PutNode(kubeapitest.Node("gn1", offers("64")))
	s.PutNode(kubeapitest.Node("gn3", offers("4")))
	s.PutNode(kubeapitest.Node("plain"))
	s.PutPod(kubeapitest.Pod("gn1", "ml", "train-1", "u1", asks("5", "8")))
	s.PutPod(kubeapitest.Pod("plain", "kube-system", "dns", "u2"))
	s.PutPod(kubeapitest.Pod("", "ml", "train-3", "u3", asks("8", "8"), object{
		"metadata": object{"creationTimestamp": "2026-11-19T12:00:00Z"},
		"status": object{"phase": "Pending", "conditions": []object{{
			"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
			"message": "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu.",
		}}},
	}))
	return s
}

// Catches an answer that names the wrong node, a permission whose absence empties the cluster, and an error that does
// not say what to do.
func TestWhy(t *testing.T) {
	s := queueOf()
	url, stop := s.Serve()
	defer stop()
	file, err := kubeapitest.Kubeconfig(t.TempDir(), url)
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newRoot("test")
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"why"}, args...))
		err := cmd.ExecuteContext(t.Context())
		// How long ago the pod was created depends on the day of the test.
		_, rest, ok := strings.Cut(out.String(), " for ")
		if ok {
			return rest, err
		}
		return out.String(), err
	}
	f := func(name, want string) {
		t.Helper()
		got, err := run("ml/train-3", "--kubeconfig", file)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	const says = "The scheduler says: 1 node: Insufficient cpu; 2 nodes: Insufficient nvidia.com/gpu.\n"
	f("all permissions", "8 nvidia.com/gpu and 8 CPUs: the nodes with enough of them free have too little CPU.\n"+
		"11 of 16 nvidia.com/gpu are free: gn3 (8 free) has 4 of 8 CPUs free; gn1 (3 free) has 3 of 8 nvidia.com/gpu free.\n"+says)
	s.Fail("/api/v1/nodes", kubeapitest.Fault{Status: 403})
	f("no nodes", "8 nvidia.com/gpu and 8 CPUs: no node where it may run has that many free.\n"+says+
		"What is free is not known: cannot list the nodes: the test says 403.\n")
	s.Heal()
	s.Fail("/api/v1/pods", kubeapitest.Fault{Status: 403})
	f("no pods of others", "8 nvidia.com/gpu and 8 CPUs: no node where it may run has that many free.\n"+says+
		"What is free is not known: cannot list the pods: the test says 403.\n")
	s.Heal()
	bad := func(want string, args ...string) {
		t.Helper()
		if _, err := run(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	bad("cannot get the pod ml/nobody: the test says 404", "ml/nobody", "--kubeconfig", file)
	bad("asks for no accelerator", "kube-system/dns", "--kubeconfig", file)
	bad("NAMESPACE/NAME", "train-3")
	bad("NAMESPACE/NAME", "a/b/c")
	bad("no such file", "ml/train-3", "--kubeconfig", file+"x")
	t.Setenv("KUBECONFIG", file)
	if _, err := run("ml/train-3"); err != nil {
		t.Error(err)
	}
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	bad("set --kubeconfig", "ml/train-3")
}

// Catches a job that is asked about and not found, and an option that does not reach Slurm's programs.
func TestWhyJob(t *testing.T) {
	data, err := filepath.Abs("../scheduler/slurmctl/testdata/22.05")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, script := range map[string]string{
		"squeue":   "cat " + data + "/jobs.json",
		"scontrol": `case "$*" in *--json*) echo "unrecognized option" >&2; exit 1;; *partitions*) cat ` + data + `/partitions.txt;; esac; cat ` + data + "/nodes.txt",
		"sdiag":    `case "$*" in *--json*) echo "unrecognized option" >&2; exit 1;; esac; cat ` + data + "/diag.txt",
	} {
		programtest.Write(t, filepath.Join(dir, name), "#!/bin/sh\nPATH=/usr/bin:/bin\n"+script+"\n")
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newRoot("test")
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"why", "--slurm-tools", dir}, args...))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	got, err := run("--job", "5")
	if !strings.HasPrefix(got, "Job 5 of ") || strings.Count(got, "\n") != 3 || !strings.Contains(got, "\nSlurm says: ") || err != nil {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := run("--job", "999999"); err == nil || err.Error() != "job 999999 is not in the queue" {
		t.Errorf("no such job: %v", err)
	}
	if _, err := run("--job", "7", "ml/train-3"); err == nil || !strings.Contains(err.Error(), "or a Slurm job as --job ID") {
		t.Errorf("both: %v", err)
	}
}
