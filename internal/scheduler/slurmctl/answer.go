package slurmctl

import (
	"encoding/json"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// anyNodes are the nodes of a partition: a list of hosts up to 22.05, then an object.
type anyNodes struct {
	names string
	total int64
}

// UnmarshalJSON implements json.Unmarshaler. What it does not know costs nothing else.
func (n *anyNodes) UnmarshalJSON(b []byte) error {
	*n = anyNodes{}
	var line slurm.Line
	if len(b) > 0 && b[0] == '"' && json.Unmarshal(b, &line) == nil {
		n.names = string(line)
		return nil
	}
	var o struct {
		Configured slurm.Line   `json:"configured"`
		Total      slurm.Number `json:"total"`
	}
	if json.Unmarshal(b, &o) == nil {
		n.names, n.total = string(o.Configured), o.Total.Int()
	}
	return nil
}

// anyTRES are the resources of a partition: text up to 22.05, then an object with it.
type anyTRES string

// UnmarshalJSON implements json.Unmarshaler.
func (t *anyTRES) UnmarshalJSON(b []byte) error {
	*t = ""
	var line slurm.Line
	if len(b) > 0 && b[0] == '"' && json.Unmarshal(b, &line) == nil {
		*t = anyTRES(line)
		return nil
	}
	var o struct {
		Configured slurm.Line `json:"configured"`
	}
	if json.Unmarshal(b, &o) == nil {
		*t = anyTRES(o.Configured)
	}
	return nil
}
