package slurm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

func TestReadMaps(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "0"), "7\n")
	write(t, filepath.Join(dir, "1"), "7\n8\n\n8\nx\n") // shared, and listed twice
	write(t, filepath.Join(dir, "2"), "45916256 262563\n")
	write(t, filepath.Join(dir, "3"), `{ "SLURM_JOB_ID": "9", "SLURM_JOB_USER": "u", "SLURM_JOB_PARTITION": "gpu", "SLURM_CLUSTER_NAME": "c",
		"SLURM_JOB_GPUS": "5", "CUDA_VISIBLE_DEVICES": "0", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd" }`)
	write(t, filepath.Join(dir, "4"), "")
	write(t, filepath.Join(dir, "5"), `{"SLURM_JOB_ID": "$(x)"}`)
	write(t, filepath.Join(dir, "6"), `{"SLURM_JOB_ID"`)
	write(t, filepath.Join(dir, "0.3"), "10\n")
	write(t, filepath.Join(dir, "MIG-265a219d-a49f-578a-825d-222c72699c16"), "11 1\n")
	write(t, filepath.Join(dir, "GPU-604ac76c"), "12")
	write(t, filepath.Join(dir, "README"), "13\n")
	if err := os.Mkdir(filepath.Join(dir, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "8")); err != nil {
		t.Fatal(err)
	}
	got, err := readMaps(dir)
	want := []mapped{
		{Job: Job{Job: slurm.Job{ID: "7"}}},
		{Job: Job{Job: slurm.Job{ID: "10"}}, Index: -1, ID: "nvidia0/gi3"},
		{Job: Job{Job: slurm.Job{ID: "7"}}, Index: 1},
		{Job: Job{Job: slurm.Job{ID: "8"}}, Index: 1},
		{Job: Job{Job: slurm.Job{ID: "45916256"}}, Index: 2},
		{Job: Job{Job: slurm.Job{ID: "9", User: "u", Partition: "gpu", Cluster: "c"}}, Index: 3},
		{Job: Job{Job: slurm.Job{ID: "12"}}, Index: -1, ID: "GPU-604ac76c"},
		{Job: Job{Job: slurm.Job{ID: "11"}}, Index: -1, ID: "MIG-265a219d-a49f-578a-825d-222c72699c16"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Job{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func FuzzParseMap(f *testing.F) {
	f.Add([]byte("7\n8 1\n"))
	f.Add([]byte(`{"SLURM_JOB_ID":"7"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, j := range parseMap(b) {
			if !slurm.IsNumber(j.ID) {
				t.Errorf("%+v", j)
			}
		}
	})
}
