// Package optional provides a number that may be absent. An absent number is never 0.
package optional

import "encoding/json"

// Float is a number that may be absent. The zero Float is absent.
type Float struct {
	v  float64
	ok bool
}

// Of returns a present Float.
func Of(v float64) Float { return Float{v, true} }

// Flag returns a present Float: 1 if on, else 0.
func Flag(on bool) Float {
	if on {
		return Of(1)
	}
	return Of(0)
}

// Get returns the number and whether it is present.
func (f Float) Get() (float64, bool) { return f.v, f.ok }

// OK reports whether the number is present.
func (f Float) OK() bool { return f.ok }

// Default returns the number, or d if it is absent.
func (f Float) Default(d float64) float64 {
	if f.ok {
		return f.v
	}
	return d
}

// Or returns f if it is present, else g.
func (f Float) Or(g Float) Float {
	if f.ok {
		return f
	}
	return g
}

// Scale returns the number multiplied by x. Readers use it to convert units.
func (f Float) Scale(x float64) Float { return Float{f.v * x, f.ok} }

// Div returns the number divided by d. Unlike Scale(1/d) it is exactly rounded: 14.25/100 is
// 0.1425, but 14.25*0.01 is not.
func (f Float) Div(d float64) Float { return Float{f.v / d, f.ok} }

// Ratio returns f divided by g. It is absent unless both are present and g is positive.
func (f Float) Ratio(g Float) Float {
	if !f.ok || !g.ok || g.v <= 0 {
		return Float{}
	}
	return Of(f.v / g.v)
}

// Since returns the increase of a counter since before. It is absent if either is absent, and
// after a counter reset.
func (f Float) Since(before Float) Float {
	if !f.ok || !before.ok || f.v < before.v {
		return Float{}
	}
	return Of(f.v - before.v)
}

// Equal lets go-cmp compare Floats.
func (f Float) Equal(g Float) bool { return f == g }

// IsZero reports whether the number is absent, so that the JSON option omitzero omits it.
func (f Float) IsZero() bool { return !f.ok }

// MarshalJSON encodes an absent number as null.
func (f Float) MarshalJSON() ([]byte, error) {
	if !f.ok {
		return []byte("null"), nil
	}
	return json.Marshal(f.v)
}

// UnmarshalJSON reads null as an absent number.
func (f *Float) UnmarshalJSON(b []byte) error {
	var p *float64
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	*f = Float{}
	if p != nil {
		*f = Of(*p)
	}
	return nil
}
