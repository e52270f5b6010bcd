package device

import "github.com/gpumeter/gpumeter/internal/optional"

// Value is a reading the device may not have. Absent is never exported as 0.
type Value = optional.Float

// Of returns a present Value.
func Of(v float64) Value { return optional.Of(v) }

// Flag returns a present Value of 1 or 0.
func Flag(on bool) Value { return optional.Flag(on) }
