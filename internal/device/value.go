package device

import (
	"encoding/json"
)

// Value is a reading the device may not have. The zero Value is absent, and absent
// is never exported as 0.
type Value struct {
	v  float64
	ok bool
}

// Of returns a present Value.
func Of(v float64) Value { return Value{v, true} }

// Flag returns a present Value of 1 or 0.
func Flag(on bool) Value {
	if on {
		return Of(1)
	}
	return Of(0)
}

// Get returns the reading and whether there is one.
func (v Value) Get() (float64, bool) { return v.v, v.ok }

// OK reports whether there is a reading.
func (v Value) OK() bool { return v.ok }

// Scale returns the reading times f, which is how a reader converts units.
func (v Value) Scale(f float64) Value { return Value{v.v * f, v.ok} }

// Div returns the reading divided by d. It is not Scale(1/d): 14.25 % is 0.1425, and
// 14.25 times 0.01 is not.
func (v Value) Div(d float64) Value { return Value{v.v / d, v.ok} }

// Or returns v if it is present, else w.
func (v Value) Or(w Value) Value {
	if v.ok {
		return v
	}
	return w
}

// Ratio returns v divided by w, absent unless both are present and w is above 0.
func (v Value) Ratio(w Value) Value {
	if !v.ok || !w.ok || w.v <= 0 {
		return Value{}
	}
	return Of(v.v / w.v)
}

// Equal makes Value comparable by go-cmp.
func (v Value) Equal(w Value) bool { return v == w }

// IsZero reports absence, so that the JSON option omitzero leaves absent readings out.
func (v Value) IsZero() bool { return !v.ok }

// MarshalJSON writes null for an absent reading.
func (v Value) MarshalJSON() ([]byte, error) {
	if !v.ok {
		return []byte("null"), nil
	}
	return json.Marshal(v.v)
}
