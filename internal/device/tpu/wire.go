//go:build linux

package tpu

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of the service are parsed field by field, by the numbers in
// tpu_metric_service.proto. Fields that are unknown or of an unexpected type are ignored,
// so a new version of libtpu does not cost the values of the current one.

// Limits of a service's answers. A host has at most 8 chips.
const (
	maxEntries = 1024
	maxNames   = 1024
	maxText    = 64 // bytes of a label
	maxBuckets = 256
)

var errTooMany = errors.New("the answer is too large")

// field is one field of a message: number for a varint or fixed type, else data.
type field struct {
	id     protowire.Number
	typ    protowire.Type
	number uint64
	data   []byte
}

func (f field) double() (float64, bool) {
	switch f.typ {
	case protowire.Fixed64Type:
		return math.Float64frombits(f.number), true
	case protowire.Fixed32Type:
		return float64(math.Float32frombits(uint32(f.number))), true
	}
	return 0, false
}

func (f field) integer() (int64, bool) { return int64(f.number), f.typ == protowire.VarintType }

func (f field) message() ([]byte, bool) { return f.data, f.typ == protowire.BytesType }

// eachField calls visit with the fields of a message, in order.
func eachField(b []byte, visit func(field) error) error {
	for len(b) > 0 {
		id, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("cannot parse the answer: %w", protowire.ParseError(n))
		}
		b = b[n:]
		f := field{id: id, typ: typ}
		switch typ {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.number, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			f.number = uint64(v)
		case protowire.BytesType:
			f.data, n = protowire.ConsumeBytes(b)
		default: // groups, which are obsolete
			n = protowire.ConsumeFieldValue(id, typ, b)
		}
		if n < 0 {
			return fmt.Errorf("cannot parse the answer: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

// eachMessage calls visit with each message in field id of b.
func eachMessage(b []byte, id protowire.Number, visit func([]byte) error) error {
	return eachField(b, func(f field) error {
		if m, ok := f.message(); ok && f.id == id {
			return visit(m)
		}
		return nil
	})
}

// parseSupported returns the names in a ListSupportedMetricsResponse.
func parseSupported(b []byte) ([]string, error) {
	var names []string
	err := eachMessage(b, 1, func(m []byte) error {
		return eachMessage(m, 1, func(name []byte) error {
			if len(names) == maxNames {
				return errTooMany
			}
			names = append(names, label(string(name), 128))
			return nil
		})
	})
	return names, err
}

// entry is one Metric in a TPUMetric: the device, and its value.
type entry struct {
	id     int64 // device id
	hasID  bool
	detail string // core type, or buffer size

	value    float64
	hasValue bool
	dist     *distribution
}

// parseMetric returns the entries in a MetricResponse.
func parseMetric(b []byte) ([]entry, error) {
	var entries []entry
	err := eachMessage(b, 1, func(metric []byte) error {
		return eachMessage(metric, 3, func(m []byte) error {
			if len(entries) == maxEntries {
				return errTooMany
			}
			e, err := parseEntry(m)
			entries = append(entries, e)
			return err
		})
	})
	return entries, err
}

func parseEntry(b []byte) (e entry, err error) {
	err = eachField(b, func(f field) error {
		m, ok := f.message()
		if !ok {
			return nil
		}
		switch f.id {
		case 1:
			return e.parseAttribute(m)
		case 3:
			return e.parseNumber(m, false)
		case 4:
			return e.parseNumber(m, true)
		case 5:
			e.dist = &distribution{}
			return e.dist.parse(m)
		}
		return nil
	})
	return e, err
}

// parseNumber parses a Gauge, or a Counter, whose integer is unsigned.
func (e *entry) parseNumber(b []byte, unsigned bool) error {
	return eachField(b, func(f field) error {
		switch f.id {
		case 1:
			if v, ok := f.double(); ok {
				e.value, e.hasValue = v, true
			}
		case 2:
			if v, ok := f.integer(); ok {
				e.value, e.hasValue = float64(v), true
				if unsigned {
					e.value = float64(f.number)
				}
			}
		}
		return nil
	})
}

// parseAttribute parses the device that a value belongs to. Simple metrics have the device
// as the attribute's value, whatever its key; others have a list of keys and values.
func (e *entry) parseAttribute(b []byte) error {
	return eachMessage(b, 2, func(value []byte) error {
		return eachField(value, func(f field) error {
			switch f.id {
			case 1, 3:
				e.setID(f)
			case 6:
				m, _ := f.message()
				return eachMessage(m, 1, e.parsePair)
			}
			return nil
		})
	})
}

func (e *entry) parsePair(b []byte) error {
	var key string
	var value field
	err := eachField(b, func(f field) error {
		m, ok := f.message()
		switch {
		case ok && f.id == 1:
			key = string(m)
		case ok && f.id == 2:
			return eachField(m, func(v field) error {
				value = v
				return nil
			})
		}
		return nil
	})
	switch key {
	case "device_ordinal":
		e.setID(value)
	case "core_type", "buffer-size", "buffer_size":
		if m, ok := value.message(); ok && value.id == 1 {
			e.detail = label(string(m), maxText)
		}
		if v, ok := value.integer(); ok && value.id == 3 {
			e.detail = strconv.FormatInt(v, 10)
		}
	}
	return err
}

// setID parses an AttrValue that is a number, or a string of a number.
func (e *entry) setID(f field) {
	if v, ok := f.integer(); ok && f.id == 3 {
		e.id, e.hasID = v, true
	}
	if m, ok := f.message(); ok && f.id == 1 && len(m) < 20 {
		if v, err := strconv.ParseInt(string(m), 10, 64); err == nil {
			e.id, e.hasID = v, true
		}
	}
}

// label returns s made safe to display: short, and printable ASCII.
func label(s string, limit int) string {
	b := []byte(s[:min(len(s), limit)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}
