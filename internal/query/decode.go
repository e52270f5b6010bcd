package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// element is one series of an answer: Value for a vector, Values for a matrix. Native
// histograms have neither.
type element struct {
	Metric Labels  `json:"metric"`
	Value  *point  `json:"value"`
	Raw    []point `json:"values"`

	Values []Point `json:"-"`
}

// storeError is an error reported by a store.
type storeError struct{ text string }

func (e storeError) Error() string { return e.text }

// decode parses an answer and calls each for every series, without keeping the whole.
func decode(r io.Reader, each func(*element)) error {
	d := json.NewDecoder(r)
	var status, kind, said string
	var partial bool
	err := object(d, func(key string) error {
		switch key {
		case "status":
			return d.Decode(&status)
		case "errorType":
			return d.Decode(&kind)
		case "error":
			return d.Decode(&said)
		case "isPartial": // set by VictoriaMetrics
			return d.Decode(&partial)
		case "data":
			return data(d, each)
		}
		return skip(d)
	})
	switch {
	case err != nil:
		return fmt.Errorf("cannot parse answer: %w", err)
	case status == "success" && partial:
		return storeError{"partial answer: some storage nodes are unavailable"}
	case status == "success":
		return nil
	case status == "error":
		return storeError{strings.TrimPrefix(line(kind, 40)+": ", ": ") + line(said, 300)}
	}
	return errors.New("answer has no status: is this the address of a Prometheus API?")
}

// data parses the result. Its type may precede or follow the series.
func data(d *json.Decoder, each func(*element)) error {
	return object(d, func(key string) error {
		switch key {
		case "resultType":
			var t string
			if err := d.Decode(&t); err != nil {
				return err
			}
			if t != "vector" && t != "matrix" {
				return fmt.Errorf("unexpected result type %.20q", t)
			}
			return nil
		case "result":
			return list(d, func() error {
				var e element
				if err := d.Decode(&e); err != nil {
					return err
				}
				if e.Raw != nil {
					e.Values = make([]Point, len(e.Raw))
					for i, p := range e.Raw {
						e.Values[i] = Point(p)
					}
					// A hostile or merged answer may be out of order or contain a timestamp twice.
					slices.SortStableFunc(e.Values, func(a, b Point) int { return a.Time.Compare(b.Time) })
					e.Raw = nil
				}
				each(&e)
				return nil
			})
		}
		return skip(d)
	})
}

var errShape = errors.New("answer does not match the API")

// object reads { and calls f for each key; f reads the value. null is empty.
func object(d *json.Decoder, f func(key string) error) error {
	return between(d, '{', func() error {
		key, err := d.Token()
		if err != nil {
			return err
		}
		return f(key.(string)) // the decoder only accepts string keys
	})
}

// list reads [ and calls f for each element; f reads the element. null is empty.
func list(d *json.Decoder, f func() error) error { return between(d, '[', f) }

func between(d *json.Decoder, open json.Delim, f func() error) error {
	t, err := d.Token()
	if t == nil && err == nil {
		return nil
	}
	if err != nil {
		return err
	}
	if t != open {
		return errShape
	}
	for d.More() {
		if err := f(); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

func skip(d *json.Decoder) error {
	var v json.RawMessage
	return d.Decode(&v)
}

// point is a Point in the API's form, [seconds, "value"].
type point Point

// UnmarshalJSON implements json.Unmarshaler.
func (p *point) UnmarshalJSON(text []byte) error {
	inner := bytes.TrimSpace(text)
	if len(inner) < 2 || inner[0] != '[' {
		return errShape
	}
	at, value, ok := bytes.Cut(inner[1:len(inner)-1], []byte(","))
	value = bytes.TrimSpace(value)
	if !ok || len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return errShape
	}
	s, err := strconv.ParseFloat(string(bytes.TrimSpace(at)), 64)
	if err != nil || math.Abs(s) > 1e11 { // after the year 5000
		return errShape
	}
	v, err := strconv.ParseFloat(string(value[1:len(value)-1]), 64)
	if err != nil {
		return errShape
	}
	p.Time, p.Value = time.UnixMilli(int64(math.Round(s*1000))).UTC(), v
	return nil
}

// line returns s as one line of at most n bytes.
func line(s string, n int) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "..."
	}
	return s
}
