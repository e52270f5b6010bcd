package slurm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// DecodeList reads a JSON object written by Slurm's tools or by slurmrestd and calls each
// for every member of the list named key. Only one member is in memory at a time, because
// newer versions list every core of every node of a job. A field whose type differs from
// the expected one is left unset without voiding the member. If the answer's list of
// errors is not empty, DecodeList returns those errors.
func DecodeList[T any](r io.Reader, key string, each func(T) error) error {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return notJSON(err)
	}
	var errs []error
	seen := false
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return notJSON(err)
		}
		switch name {
		case key:
			seen = true
			if err := members(d, key, each); err != nil {
				return err
			}
		case "errors":
			errs = append(errs, decodeErrors(d))
		default:
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return notJSON(err)
			}
		}
	}
	if _, err := d.Token(); err != nil {
		return notJSON(err)
	}
	err := errors.Join(errs...)
	if !seen && err == nil {
		return fmt.Errorf("answer has no %s", key)
	}
	return err
}

func notJSON(err error) error {
	if err == nil {
		err = errors.New("not an object")
	}
	return fmt.Errorf("answer is not JSON: %w", err)
}

func members[T any](d *json.Decoder, key string, each func(T) error) error {
	t, err := d.Token()
	switch {
	case err != nil:
		return notJSON(err)
	case t == nil:
		return nil
	case t != json.Delim('['):
		return fmt.Errorf("%s is not a list", key)
	}
	for d.More() {
		var v T
		if err := d.Decode(&v); err != nil {
			if _, odd := errors.AsType[*json.UnmarshalTypeError](err); !odd { // one field has another type; the others are decoded
				return notJSON(err)
			}
		}
		if err := each(v); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return notJSON(err)
	}
	return nil
}

func decodeErrors(d *json.Decoder) error {
	var list []struct {
		Error       Line `json:"error"`
		Description Line `json:"description"`
	}
	if err := d.Decode(&list); err != nil {
		return notJSON(err)
	}
	var errs []error
	for _, e := range list[:min(len(list), 4)] {
		errs = append(errs, fmt.Errorf("%.200s %.200s", string(e.Error), string(e.Description)))
	}
	return errors.Join(errs...)
}

// Number is a whole number that may be unset. Slurm writes it bare up to 22.05, and as
// {"set":true,"infinite":false,"number":7} since 23.02. A negative number counts as unset.
type Number struct {
	n   uint64
	set bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(string(bytes.Trim(bare(b), `"`)), 10, 64)
	*n = Number{v, err == nil}
	return nil
}

// bare returns the text of a number, empty if the number is unset. An unreadable number is
// unset and does not void the record.
func bare(b []byte) []byte {
	if len(b) == 0 || b[0] != '{' {
		return b
	}
	var o struct {
		Set, Infinite bool
		Number        json.Number
	}
	if json.Unmarshal(b, &o) != nil || !o.Set || o.Infinite {
		return nil
	}
	return []byte(o.Number)
}

// Get returns the number and whether it is set.
func (n Number) Get() (uint64, bool) { return n.n, n.set }

// String returns the number in decimal, or the empty string if it is unset.
func (n Number) String() string {
	if !n.set {
		return ""
	}
	return strconv.FormatUint(n.n, 10)
}

// Positive returns the number in decimal, or the empty string if it is unset or 0: some
// fields use 0 for none.
func (n Number) Positive() string {
	if n.n == 0 {
		return ""
	}
	return n.String()
}

// Int returns the number if it is set, else 0. The two highest values of 32 and 64 bits are
// Slurm's sentinels for no value and for no limit.
func (n Number) Int() int64 {
	if !n.set || n.n == 0xfffffffe || n.n == 0xffffffff || n.n > 1<<62 {
		return 0
	}
	return int64(n.n)
}

// Time converts Unix seconds to a time; unset and 0 yield the zero time.
func (n Number) Time() time.Time {
	if s := n.Int(); s > 0 && s < 1<<40 {
		return time.Unix(s, 0)
	}
	return time.Time{}
}

// Decimal is a number with a fraction, encoded like Number.
type Decimal optional.Float

// UnmarshalJSON implements json.Unmarshaler.
func (d *Decimal) UnmarshalJSON(b []byte) error {
	*d = Decimal(ParseFloat(string(bare(b))))
	return nil
}

// ParseFloat parses a number. Text that is not a number, infinities and magnitudes above 1e18
// yield an absent number.
func ParseFloat(s string) optional.Float {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != f || f > 1e18 || f < -1e18 {
		return optional.Float{}
	}
	return optional.Of(f)
}

// Words is a list of words. Slurm writes a single word as a string, and a list since 23.11.
type Words []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *Words) UnmarshalJSON(b []byte) error {
	*w = nil
	if len(b) > 0 && b[0] == '[' {
		var list []string
		if json.Unmarshal(b, &list) == nil {
			*w = list
		}
		return nil
	}
	var one string
	if json.Unmarshal(b, &one) == nil && one != "" {
		*w = Words{one}
	}
	return nil
}

// Line is text reduced to one line.
type Line string

// UnmarshalJSON implements json.Unmarshaler.
func (t *Line) UnmarshalJSON(b []byte) error {
	*t = ""
	var s string
	if json.Unmarshal(b, &s) == nil {
		*t = Line(Text(s[:min(len(s), maxLine)]))
	}
	return nil
}

// maxLine bounds one text from the controller; node lists are the longest.
const maxLine = 1 << 18
