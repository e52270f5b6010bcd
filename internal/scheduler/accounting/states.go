package accounting

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// stateCodes maps the short forms of job states in Slurm's tools to their names.
func stateCodes() map[string]string {
	return map[string]string{
		"PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "CD": "COMPLETED", "F": "FAILED", "CA": "CANCELLED", "TO": "TIMEOUT", "NF": "NODE_FAIL",
		"PR": "PREEMPTED", "OOM": "OUT_OF_MEMORY", "BF": "BOOT_FAIL", "DL": "DEADLINE", "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED",
	}
}

// ParseStates returns the named states as Job has them. It accepts names and short forms in any
// case.
func ParseStates(list []string) ([]string, error) {
	codes := stateCodes()
	var out []string
	for _, s := range list {
		name := strings.ToUpper(s)
		if name == "CANCELED" {
			name = "CANCELLED"
		}
		if long, ok := codes[name]; ok {
			name = long
		}
		if !slices.Contains(slices.Collect(maps.Values(codes)), name) {
			return nil, fmt.Errorf("%q is not a job state such as running, pending, completed, failed, cancelled, timeout, node_fail, preempted, out_of_memory or requeued", s)
		}
		out = append(out, name)
	}
	return out, nil
}
