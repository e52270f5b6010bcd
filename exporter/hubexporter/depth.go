package hubexporter

import (
	"errors"
	"fmt"
)

const (
	// maxDepth is how deep messages may lie in each other. OTLP needs ten; what decodes
	// it goes as deep as the sender says, and a stack has an end at which the process dies.
	maxDepth = 64
	// maxFields bounds the messages and texts of one request: an empty one takes two bytes
	// here and a hundred times that once it is decoded.
	maxFields = 2_000_000
)

var (
	errDeep  = errors.New("it is nested too deeply")
	errMany  = fmt.Errorf("it has more than %d parts", maxFields)
	errField = errors.New("it has a field that cannot be read")
)

// checkProto refuses what may be nested deeper than maxDepth, or has more than maxFields.
// It does not know which bytes are messages and looks into all of them, in the same way
// as what decodes them later, and never stops before that would. Bytes that only look like
// messages, such as text, end soon.
func checkProto(b []byte) error { return checkDepth(b, maxDepth) }

// checkDepth is checkProto with a limit of levels, maxDepth at most.
func checkDepth(b []byte, limit int) error {
	var stack [maxDepth][]byte
	stack[0] = b
	count := 0
	for depth := 0; depth >= 0; {
		if len(stack[depth]) == 0 {
			depth--
			continue
		}
		kind, inner, rest, ok := nextField(stack[depth])
		if depth == 0 && (!ok || kind == startGroup || kind == endGroup) {
			return errField // of the one that must be a message; OTLP has no groups
		}
		if !ok { // the decoder ends here, too, or it is no message at all
			depth--
			continue
		}
		stack[depth] = rest
		if kind != bytesKind {
			continue
		}
		if count++; count > maxFields {
			return errMany
		}
		if len(inner) == 0 {
			continue
		}
		if depth++; depth == limit {
			return errDeep
		}
		stack[depth] = inner
	}
	return nil
}

// Wire types of protobuf.
const (
	varintKind = iota
	fixed64
	bytesKind
	startGroup
	endGroup
	fixed32
)

// nextField returns the wire type of the first field of b, its content if that is bytes,
// and what follows it. What a group has in it follows its start, as other fields do. It is
// not ok only where pdata ends with an error.
func nextField(b []byte) (kind int, inner, rest []byte, ok bool) {
	tag, b, ok := varint(b)
	if !ok || int32(tag>>3) <= 0 { //nolint:gosec // cut off as pdata does
		return 0, nil, nil, false
	}
	var size uint64
	switch kind = int(tag & 7); kind {
	case varintKind:
		_, rest, ok = varint(b)
		return kind, nil, rest, ok
	case fixed64:
		size = 8
	case fixed32:
		size = 4
	case startGroup, endGroup:
		return kind, nil, b, true
	case bytesKind:
		if size, b, ok = varint(b); !ok || size > uint64(len(b)) {
			return 0, nil, nil, false
		}
		return kind, b[:size], b[size:], true
	default:
		return 0, nil, nil, false
	}
	if uint64(len(b)) < size {
		return 0, nil, nil, false
	}
	return kind, nil, b[size:], true
}

// varint reads a number as pdata does, which takes ten bytes whatever is in the last.
func varint(b []byte) (v uint64, rest []byte, ok bool) {
	for i := 0; i < len(b) && i < 10; i++ {
		v |= uint64(b[i]&0x7f) << (7 * i)
		if b[i] < 0x80 {
			return v, b[i+1:], true
		}
	}
	return 0, nil, false
}

// checkJSON refuses what is nested deeper than maxDepth times the levels that JSON has
// for one of protobuf, or has more than maxFields.
func checkJSON(b []byte) error {
	depth, count, quoted := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > 3*maxDepth {
				return errDeep
			}
			if count++; count > maxFields {
				return errMany
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
