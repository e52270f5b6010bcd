package host

import "encoding/json"

// Value is a number that may be unknown. The zero Value is absent, and absent is not 0.
type Value struct {
	v  float64
	ok bool
}

// Of returns a known Value.
func Of(v float64) Value { return Value{v, true} }

// Get returns the number and whether it is known.
func (v Value) Get() (float64, bool) { return v.v, v.ok }

// OK reports whether the number is known.
func (v Value) OK() bool { return v.ok }

// Or returns the number, or d if it is unknown.
func (v Value) Or(d float64) float64 {
	if v.ok {
		return v.v
	}
	return d
}

// Since returns the increase of a counter since before. It is absent unless both values are
// known and the counter did not decrease.
func (v Value) Since(before Value) Value {
	if !v.ok || !before.ok || v.v < before.v {
		return Value{}
	}
	return Of(v.v - before.v)
}

// Equal makes Value comparable by go-cmp.
func (v Value) Equal(w Value) bool { return v == w }

// IsZero reports whether the value is absent, so that the JSON option omitzero omits it.
func (v Value) IsZero() bool { return !v.ok }

// MarshalJSON writes null for an absent value.
func (v Value) MarshalJSON() ([]byte, error) {
	if !v.ok {
		return []byte("null"), nil
	}
	return json.Marshal(v.v)
}

// UnmarshalJSON reads null as an absent value.
func (v *Value) UnmarshalJSON(b []byte) error {
	var p *float64
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	*v = Value{}
	if p != nil {
		*v = Of(*p)
	}
	return nil
}
