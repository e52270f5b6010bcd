package slurmctl

import (
	"io"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Partition is a queue.
type Partition struct {
	Name  string
	State string // up, down, drain, inactive
	Nodes string
	QOS   string
	// CPUs and GPUs are those of its nodes, of which others may have some, too.
	CPUs, GPUs, NodeCount int64
	Default               bool
}

type partitionList struct{ list []Partition }

type jsonPartition struct {
	Name  slurm.Line  `json:"name"`
	State slurm.Words `json:"state"` // up to 22.05
	Part  struct {
		State slurm.Words `json:"state"`
	} `json:"partition"`
	Flags      slurm.Words  `json:"flags"`
	Nodes      anyNodes     `json:"nodes"`
	TRES       anyTRES      `json:"tres"`
	TotalCPUs  slurm.Number `json:"total_cpus"`
	TotalNodes slurm.Number `json:"total_nodes"`
}

func (l *partitionList) json(r io.Reader) error {
	l.list = []Partition{}
	return slurm.DecodeList(r, "partitions", func(p jsonPartition) error {
		words := slices.Concat(p.State, p.Part.State)
		if p.Name == "" || len(words) == 0 {
			return nil
		}
		out := Partition{
			Name: string(p.Name), State: partitionState(words), Nodes: p.Nodes.names, NodeCount: max(p.TotalNodes.Int(), p.Nodes.total), CPUs: p.TotalCPUs.Int(),
			Default: slices.ContainsFunc(p.Flags, func(s string) bool { return strings.EqualFold(s, "default") }),
		}
		out.GPUs, _ = slurm.CountGPUs(string(p.TRES))
		l.list = append(l.list, out)
		return nil
	})
}

func (l *partitionList) text(r io.Reader) error {
	l.list = []Partition{}
	return slurm.Records(r, "PartitionName=", func(lines []string) {
		f := map[string]string{}
		for _, line := range lines {
			slurm.Fields(f, line)
		}
		p := Partition{
			Name: slurm.Text(f["PartitionName"]), State: partitionState([]string{f["State"]}), Nodes: slurm.Text(f["Nodes"]), QOS: slurm.Text(f["QoS"]),
			NodeCount: slurm.Count(f["TotalNodes"]), CPUs: slurm.Count(f["TotalCPUs"]), Default: f["Default"] == "YES",
		}
		p.GPUs, _ = slurm.CountGPUs(f["TRES"])
		l.list = append(l.list, p)
	})
}

// partitionState returns up if jobs may start, else why not.
func partitionState(words []string) string {
	state := "unknown"
	for _, w := range words {
		switch w = strings.ToLower(w); w {
		case "up":
			if state == "unknown" {
				state = w
			}
		case "down", "drain", "inactive":
			state = w
		}
	}
	return state
}
