package slurmctl

import (
	"encoding/json"
	"strconv"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// anyNodes are the nodes of a partition: a host list up to 22.05, an object since then.
type anyNodes struct {
	names string
	total int64
}

// UnmarshalJSON implements json.Unmarshaler. An unknown form is ignored.
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

// anyTRES are the resources of a partition: text up to 22.05, since then an object with
// that text.
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

// Value is a number that may be absent. The zero Value is absent.
type Value struct {
	v  float64
	ok bool
}

// Of returns a Value that holds v.
func Of(v float64) Value { return Value{v, true} }

// Get returns the number and whether it is present.
func (v Value) Get() (float64, bool) { return v.v, v.ok }

// UnmarshalJSON implements json.Unmarshaler. It accepts a bare number and
// {"set":true,"infinite":false,"number":0.5}.
func (v *Value) UnmarshalJSON(b []byte) error {
	*v = Value{}
	if len(b) > 0 && b[0] == '{' {
		var o struct {
			Set, Infinite bool
			Number        json.Number
		}
		if err := json.Unmarshal(b, &o); err != nil || !o.Set || o.Infinite {
			return nil //nolint:nilerr // an unreadable number is absent and does not void the record
		}
		b = []byte(o.Number)
	}
	*v = parseValue(string(b))
	return nil
}

// parseValue parses a number. Text that is not a number, infinities and magnitudes above
// 1e18 yield an absent Value.
func parseValue(s string) Value {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != f || f > 1e18 || f < -1e18 {
		return Value{}
	}
	return Of(f)
}
