package device

import "github.com/gpumeter/gpumeter/internal/optional"

// Value is a reading that the device may not provide. An absent Value is never exported as 0.
type Value = optional.Float

// Of returns a present Value.
func Of(v float64) Value { return optional.Of(v) }

// Flag returns a present Value: 1 if on, else 0.
func Flag(on bool) Value { return optional.Flag(on) }
