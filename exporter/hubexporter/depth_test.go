package hubexporter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

// Prefixes that a decoder skips and a careless check trips over.
var prefixes = map[string][]byte{
	"nothing":                    nil,
	"an empty group":             {0xa3, 0x06, 0xa4, 0x06},
	"a group in a group":         {0xa3, 0x06, 0xa3, 0x06, 0xa4, 0x06, 0xa4, 0x06},
	"a number of ten bytes":      {0xa0, 0x06, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
	"a tag of ten bytes":         {0xa0, 0x86, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7e, 0x01},
	"a length of ten bytes":      {0xa2, 0x06, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7e, 'x'},
	"a number of eight bytes":    {0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8},
	"a number of four bytes":     {0xa5, 0x06, 1, 2, 3, 4},
	"an end without its start":   {0xa4, 0x06},
	"a wire type that is none":   {0xa6, 0x06},
	"a group that does not end":  {0xa3, 0x06},
	"a field without its number": {0x02, 0x00},
}

// wrapped returns bytes as a field of another message.
func wrapped(field byte, b []byte) []byte {
	return append(binary.AppendUvarint([]byte{field<<3 | 2}, uint64(len(b))), b...)
}

// Catches a prefix, in the request or in a nested message, that hides data nested so deeply
// that decoding kills the process.
func TestDeepBehindAnything(t *testing.T) {
	t.Parallel()
	deep := nested(1 << 10)
	inner := deep
	for range 2 { // the ResourceMetrics, then its Resource
		var ok bool
		if _, inner, _, ok = nextField(inner); !ok {
			t.Fatal("the test is wrong")
		}
	}
	for name, prefix := range prefixes {
		top := append(bytes.Clone(prefix), deep...)
		if checkProto(top) == nil {
			t.Errorf("%s hides what is nested at the top", name)
		}
		below := wrapped(1, append(bytes.Clone(prefix), wrapped(1, append(bytes.Clone(prefix), inner...))...))
		// If the decoder rejects the prefix, nothing is hidden.
		if err := pmetricotlp.NewExportRequest().UnmarshalProto(below); err == nil && !errors.Is(checkProto(below), errDeep) {
			t.Errorf("%s hides what is nested below: %v", name, checkProto(below))
		}
	}
	for _, c := range []struct {
		body []byte
		want error
	}{
		{bytes.Repeat([]byte{0x0a, 0x00}, maxFields), nil},
		{bytes.Repeat([]byte{0x0a, 0x00}, maxFields+1), errMany},
		{wrapped(1, bytes.Repeat([]byte{0x12, 0x00}, maxFields)), errMany},
		{[]byte{0x0a}, errField},
		{[]byte{0xa3, 0x06, 0xa4, 0x06}, errField},
	} {
		if err := checkProto(c.body); !errors.Is(err, c.want) {
			t.Errorf("%.8x of %d bytes: %v, want %v", c.body, len(c.body), err, c.want)
		}
	}
	if err := checkJSON(bytes.Repeat([]byte("{},"), maxFields+1)); !errors.Is(err, errMany) {
		t.Errorf("JSON: %v", err)
	}
}

// depth returns the nesting depth of a value.
func depth(v pcommon.Value) int {
	deepest := 0
	switch v.Type() {
	case pcommon.ValueTypeSlice:
		for _, x := range v.Slice().All() {
			deepest = max(deepest, depth(x))
		}
	case pcommon.ValueTypeMap:
		deepest = deepestOf(v.Map())
	default:
	}
	return deepest + 1
}

func deepestOf(m pcommon.Map) (deepest int) {
	for _, v := range m.All() {
		deepest = max(deepest, depth(v))
	}
	return deepest
}

// FuzzCheckDepth looks for an accepted body that decodes into something nested too deeply.
func FuzzCheckDepth(f *testing.F) {
	// Attributes start at level 5, and each nested list takes 2 levels; a low limit keeps fuzz
	// inputs small.
	const limit, deepest = 9, 3
	for _, size := range []int{100, 110, 120, 200} {
		deep := nested(size)
		_, inner, _, _ := nextField(deep)
		for _, prefix := range prefixes {
			f.Add(append(bytes.Clone(prefix), deep...))
			f.Add(wrapped(1, append(bytes.Clone(prefix), inner...)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 || checkDepth(b, limit) != nil {
			return
		}
		m := pmetricotlp.NewExportRequest()
		_ = m.UnmarshalProto(b) // data decoded before an error counts too
		for _, r := range m.Metrics().ResourceMetrics().All() {
			if n := deepestOf(r.Resource().Attributes()); n > deepest {
				t.Errorf("metrics: %d levels", n)
			}
			for _, s := range r.ScopeMetrics().All() {
				if n := deepestOf(s.Scope().Attributes()); n > deepest {
					t.Errorf("scope: %d levels", n)
				}
			}
		}
		l := plogotlp.NewExportRequest()
		_ = l.UnmarshalProto(b)
		for _, r := range l.Logs().ResourceLogs().All() {
			for _, s := range r.ScopeLogs().All() {
				for _, x := range s.LogRecords().All() {
					if n := max(deepestOf(x.Attributes()), depth(x.Body())); n > deepest {
						t.Errorf("logs: %d levels", n)
					}
				}
			}
		}
	})
}
