package slurmctl

import (
	"encoding/json"
	"strconv"

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
		n.names, n.total = string(o.Configured), number(o.Total)
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

// Value is a number that may not be there.
type Value struct {
	v  float64
	ok bool
}

// Of returns v.
func Of(v float64) Value { return Value{v, true} }

// Get returns the number and whether it is there.
func (v Value) Get() (float64, bool) { return v.v, v.ok }

// UnmarshalJSON implements json.Unmarshaler: bare, or {"set":true,"infinite":false,"number":0.5}.
func (v *Value) UnmarshalJSON(b []byte) error {
	*v = Value{}
	if len(b) > 0 && b[0] == '{' {
		var o struct {
			Set, Infinite bool
			Number        json.Number
		}
		if err := json.Unmarshal(b, &o); err != nil || !o.Set || o.Infinite {
			return nil //nolint:nilerr // a number that cannot be read is not there, and costs nothing else
		}
		b = []byte(o.Number)
	}
	*v = parseValue(string(b))
	return nil
}

// parseValue returns the number of a text. What is none, not finite or unbelievable is
// not there.
func parseValue(s string) Value {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != f || f > 1e18 || f < -1e18 {
		return Value{}
	}
	return Of(f)
}
