package slurm

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

const (
	maxMaps = 1024    // files in the folder
	maxMap  = 1 << 16 // bytes of one
)

// mapped is a job on a device, as a prolog wrote it.
type mapped struct {
	Job   Job
	Index int    // the device by its place in gres.conf
	ID    string // or by its name
}

// readMaps reads a folder of files that prologs write and epilogs remove: one for each
// device that is in use, called by its number or name. dcgm-exporter has the numbers of
// jobs in it, one a line; jobstats has the number of the user after it; AMD's
// device-metrics-exporter has variables as JSON. The devices that the latter names are
// not read: they are relative in some versions, the name of the file is not.
func readMaps(dir string) ([]mapped, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []mapped
	var errs []error
	for _, e := range entries[:min(len(entries), maxMaps)] {
		m, ok := mapName(e.Name())
		if !ok || !e.Type().IsRegular() {
			continue
		}
		b, err := slurm.ReadFile(filepath.Join(dir, e.Name()), maxMap)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // an epilog was quicker
				errs = append(errs, err)
			}
			continue
		}
		for _, j := range parseMap(b) {
			m.Job = j
			out = append(out, m)
		}
	}
	return out, errors.Join(errs...)
}

// mapName parses the name of a file: 0, 0.3 (the third GPU instance of GPU 0), GPU-<uuid>,
// MIG-<uuid>.
func mapName(name string) (mapped, bool) {
	if n, err := slurm.ParseIndex(name); err == nil {
		return mapped{Index: n}, true
	}
	if gpu, gi, ok := strings.Cut(name, "."); ok && slurm.IsNumber(gpu) && slurm.IsNumber(gi) {
		return mapped{Index: -1, ID: "nvidia" + gpu + "/gi" + gi}, true
	}
	if strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
		return mapped{Index: -1, ID: name}, true
	}
	return mapped{}, false
}

// parseMap returns the jobs of a file.
func parseMap(b []byte) []Job {
	if b = bytes.TrimSpace(b); bytes.HasPrefix(b, []byte("{")) {
		var v struct {
			ID        slurm.Line `json:"SLURM_JOB_ID"`
			User      slurm.Line `json:"SLURM_JOB_USER"`
			Partition slurm.Line `json:"SLURM_JOB_PARTITION"`
			Cluster   slurm.Line `json:"SLURM_CLUSTER_NAME"`
		}
		if json.Unmarshal(b, &v) != nil || !slurm.IsNumber(string(v.ID)) {
			return nil
		}
		return []Job{{Job: slurm.Job{ID: string(v.ID), User: string(v.User), Partition: string(v.Partition), Cluster: string(v.Cluster)}}}
	}
	var out []Job
	for line := range bytes.Lines(b) {
		words := bytes.Fields(line)
		if len(words) == 0 || !slurm.IsNumber(string(words[0])) {
			continue
		}
		id := string(words[0])
		if !slices.ContainsFunc(out, func(j Job) bool { return j.ID == id }) {
			out = append(out, Job{Job: slurm.Job{ID: id}})
		}
	}
	return out
}
