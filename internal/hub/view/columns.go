package view

import (
	"math"
	"strconv"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// absent is a missing value. It is encoded as null.
var absent = math.NaN()

// float converts an optional value to a column value.
func float(v optional.Float) float64 {
	if f, ok := v.Get(); ok {
		return f
	}
	return absent
}

// number is a value that may be absent.
type number float64

// MarshalJSON encodes an absent value as null.
func (n number) MarshalJSON() ([]byte, error) { return appendNumber(nil, float64(n)), nil }

// column is a list of values that may be absent.
type column []float64

// MarshalJSON encodes absent values as null and all others with four significant digits: a
// tile shows no more, and columns make up most of the response.
func (c column) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 2+8*len(c))
	b = append(b, '[')
	for i, v := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendShort(b, v)
	}
	return append(b, ']'), nil
}

func appendNumber(b []byte, v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

func appendShort(b []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1e6 {
		return strconv.AppendInt(b, int64(v), 10)
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, v, 'g', 4, 64)
}

// dictionary interns texts, so that a name that 10,000 GPUs share is sent once.
type dictionary struct {
	Texts []string
	index map[string]int
}

func (d *dictionary) of(text string) int {
	i, ok := d.index[text]
	if !ok {
		if d.index == nil {
			d.index = map[string]int{}
		}
		i = len(d.Texts)
		d.index[text] = i
		d.Texts = append(d.Texts, text)
	}
	return i
}
