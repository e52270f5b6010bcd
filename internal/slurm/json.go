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

// DecodeList reads an answer of Slurm's tools or of slurmrestd, an object, and calls each
// with the members of the list that is called key. It keeps one member at a time: a job
// of a newer version has every core of every one of its nodes. A field of a member that
// is of another type than expected costs itself. An answer whose list of errors has some
// is one.
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
		return fmt.Errorf("the answer has no %s", key)
	}
	return err
}

func notJSON(err error) error {
	if err == nil {
		err = errors.New("no object")
	}
	return fmt.Errorf("the answer is no JSON: %w", err)
}

func members[T any](d *json.Decoder, key string, each func(T) error) error {
	t, err := d.Token()
	switch {
	case err != nil:
		return notJSON(err)
	case t == nil:
		return nil
	case t != json.Delim('['):
		return fmt.Errorf("the %s are no list", key)
	}
	for d.More() {
		var v T
		if err := d.Decode(&v); err != nil {
			if _, odd := errors.AsType[*json.UnmarshalTypeError](err); !odd { // of one field: the rest is there
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

// Number is a whole number that may not be set. It is bare up to 22.05, and
// {"set":true,"infinite":false,"number":7} since 23.02. A negative one is not set.
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

// bare returns the text of a number, empty if it is not set. A number that cannot be read is
// not set, and costs nothing else.
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

// String returns the number, or nothing.
func (n Number) String() string {
	if !n.set {
		return ""
	}
	return strconv.FormatUint(n.n, 10)
}

// Positive returns the number, or nothing: 0 is Slurm's word for none in places.
func (n Number) Positive() string {
	if n.n == 0 {
		return ""
	}
	return n.String()
}

// Int returns what is set, 0 else: of 32 and 64 bits the two highest are Slurm's words for no
// value and for no limit.
func (n Number) Int() int64 {
	if !n.set || n.n == 0xfffffffe || n.n == 0xffffffff || n.n > 1<<62 {
		return 0
	}
	return int64(n.n)
}

// Time returns the time of a number of seconds, zero if there is none.
func (n Number) Time() time.Time {
	if s := n.Int(); s > 0 && s < 1<<40 {
		return time.Unix(s, 0)
	}
	return time.Time{}
}

// Decimal is a number with a fraction, bare or as Number is.
type Decimal optional.Float

// UnmarshalJSON implements json.Unmarshaler.
func (d *Decimal) UnmarshalJSON(b []byte) error {
	*d = Decimal(ParseFloat(string(bare(b))))
	return nil
}

// ParseFloat returns the number in a text. Text that is no number, not finite or beyond 1e18
// is absent.
func ParseFloat(s string) optional.Float {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != f || f > 1e18 || f < -1e18 {
		return optional.Float{}
	}
	return optional.Of(f)
}

// Words is a word, or since 23.11 a list of them.
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

// Line is one line of text.
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

// maxLine bounds a text of the controller; a list of nodes is the longest.
const maxLine = 1 << 18
