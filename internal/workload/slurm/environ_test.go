package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func env(vars ...string) []byte { return []byte(strings.Join(vars, "\x00") + "\x00") }

// The environment of a process contains passwords. Variables that are not selected must not
// be kept, logged, or be part of an error.
func TestEnvironKeepsNothingElse(t *testing.T) {
	const secret = "hunter2"
	b := env(
		"AWS_SECRET_ACCESS_KEY="+secret, "WANDB_API_KEY=a="+secret, secret, "="+secret, "SLURM_JOB_ID=7",
		"SLURM_JOB_NAME=a=b JobId=9", "XSLURM_JOB_USER="+secret, "SLURM_JOB_USERX="+secret, "SLURM_JWT="+secret,
		"CUDA_VISIBLE_DEVICES=0", "SLURM_JOB_GPUS=7", "BASH_FUNC_x%%=() { echo\n"+secret+"\n}", "SLURM_JOB_ID=8",
		"SLURM_JOB_ACCOUNT=ml", "SLURM_JOB_USER=", "SLURM_JOB_USER=root", "SLURM_JOB_QOS=(null)", "SLURM_JOB_PARTITION=g\xffp\nu",
	)
	want := environ{JobID: "7", Name: "a=b JobId=9", JobGPUs: "7", Account: "ml", Partition: "g\ufffdp u"}
	got := parseEnviron(b)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	proc := t.TempDir()
	write(t, filepath.Join(proc, "5/environ"), string(b))
	read, err := readEnviron(proc, 5)
	if err != nil || read != want {
		t.Errorf("from a file: %+v, %v", read, err)
	}
	if err := os.Mkdir(filepath.Join(proc, "6"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(proc, "6/environ"), 0o755); err != nil { // reading fails after opening
		t.Fatal(err)
	}
	_, err6 := readEnviron(proc, 6)
	_, err7 := readEnviron(proc, 7)
	if all := fmt.Sprintf("%+v %+v %v %v", got, read, err6, err7); strings.Contains(all, secret) || err6 == nil || err7 == nil {
		t.Errorf("%s", all)
	}
}

// A long environment has Slurm's variables last.
func TestEnvironLong(t *testing.T) {
	proc := t.TempDir()
	write(t, filepath.Join(proc, "5/environ"), string(env("A="+strings.Repeat("x", 500_000), "SLURM_JOB_ID=7", "SLURM_JOB_NAME="+strings.Repeat("n", 5000))))
	got, err := readEnviron(proc, 5)
	if want := (environ{JobID: "7", Name: strings.Repeat("n", maxValue)}); err != nil || got != want {
		t.Errorf("%d bytes of a name, %v", len(got.Name), err)
	}
}

// SLURM_JOB_GPUS of a step is inherited from the script: on another node it refers to other
// devices, and a step without GPUs has it all the same. Measured on 22.05.
func TestEnvironGPUs(t *testing.T) {
	f := func(step string, e environ, want ...int) {
		t.Helper()
		got, ok := e.gpus(step)
		if diff := cmp.Diff(want, got); diff != "" || ok != (want != nil) {
			t.Errorf("step %s of %+v: %t (-want +got):\n%s", step, e, ok, diff)
		}
	}
	f("batch", environ{JobGPUs: "0,1"}, 0, 1)
	f("interactive", environ{JobGPUs: "3"}, 3)
	f("0", environ{StepGPUs: "0", JobGPUs: "4"}, 0)
	f("0", environ{StepGPUs: "2-3"}, 2, 3)
	f("0", environ{JobGPUs: "4"})
	f("batch", environ{})
	f("batch", environ{JobGPUs: "NoDevFiles"})
	f("batch", environ{JobGPUs: "MIG-1234"})
}

func FuzzParseEnviron(f *testing.F) {
	f.Add(env("SLURM_JOB_ID=7", "SLURM_JOB_GPUS=0-3", "A=b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := parseEnviron(b)
		for _, s := range []string{e.Name, e.User, e.JobID} {
			if len(s) > 3*maxValue || strings.ContainsAny(s, "\n\x00") {
				t.Errorf("%q", s)
			}
		}
		e.gpus("batch")
	})
}

// write creates a file and its directories.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
