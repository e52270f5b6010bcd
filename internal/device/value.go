package device

import (
	"encoding/json"
)

// Value is a reading that the device may not provide. The zero Value is absent, and an
// absent Value is never exported as 0.
type Value struct {
	v  float64
	ok bool
}

// Of returns a present Value.
func Of(v float64) Value { return Value{v, true} }

// Flag returns a present Value: 1 if on, else 0.
func Flag(on bool) Value {
	if on {
		return Of(1)
	}
	return Of(0)
}

// Get returns the reading and whether it is present.
func (v Value) Get() (float64, bool) { return v.v, v.ok }

// OK reports whether the reading is present.
func (v Value) OK() bool { return v.ok }

// Scale returns the reading multiplied by f. Readers use it to convert units.
func (v Value) Scale(f float64) Value { return Value{v.v * f, v.ok} }

// Div returns the reading divided by d. Unlike Scale(1/d) it is exactly rounded: 14.25/100
// is 0.1425, but 14.25*0.01 is not.
func (v Value) Div(d float64) Value { return Value{v.v / d, v.ok} }

// Or returns v if it is present, else w.
func (v Value) Or(w Value) Value {
	if v.ok {
		return v
	}
	return w
}

// Ratio returns v divided by w. It is absent unless both are present and w is positive.
func (v Value) Ratio(w Value) Value {
	if !v.ok || !w.ok || w.v <= 0 {
		return Value{}
	}
	return Of(v.v / w.v)
}

// Equal lets go-cmp compare Values.
func (v Value) Equal(w Value) bool { return v == w }

// IsZero reports whether the reading is absent, so that the JSON option omitzero omits it.
func (v Value) IsZero() bool { return !v.ok }

// MarshalJSON writes null for an absent reading.
func (v Value) MarshalJSON() ([]byte, error) {
	if !v.ok {
		return []byte("null"), nil
	}
	return json.Marshal(v.v)
}
