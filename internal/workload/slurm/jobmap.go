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
	maxMaps = 1024    // files in the directory
	maxMap  = 1 << 16 // bytes per file
)

// mapped is a job on a device, as written by a prolog.
type mapped struct {
	Job   Job
	Index int    // position of the device in gres.conf
	ID    string // or the name of the device
}

// readMaps reads a directory of files that prologs write and epilogs remove: one per device
// in use, named by its number or name. For dcgm-exporter a file holds job ids, one per
// line; for jobstats each is followed by the user id; for AMD's device-metrics-exporter it
// holds variables as JSON. The devices listed in the latter are not used: in some versions
// they are relative, while the file name is not.
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
			if !errors.Is(err, fs.ErrNotExist) { // removed by an epilog meanwhile
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

// mapName parses the name of a file: 0, 0.3 (GPU instance 3 of GPU 0), GPU-<uuid>,
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

// parseMap returns the jobs in a file.
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
