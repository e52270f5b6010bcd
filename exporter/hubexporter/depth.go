package hubexporter

import (
	"errors"
	"fmt"
)

const (
	// maxDepth bounds the nesting of messages. OTLP needs ten levels. The decoder recurses as
	// deep as the sender demands, and a stack overflow kills the process.
	maxDepth = 64
	// maxFields bounds the messages and strings of one request: an empty message takes two
	// bytes encoded and a hundred times that decoded.
	maxFields = 2_000_000
)

var (
	errDeep  = errors.New("nested too deeply")
	errMany  = fmt.Errorf("more than %d fields", maxFields)
	errField = errors.New("malformed field")
)

// checkProto rejects requests nested deeper than maxDepth or with more than maxFields fields.
// It does not know which byte fields are messages, so it descends into all of them, parses
// like the decoder, and never stops earlier than the decoder would. Text that happens to look
// like a message ends soon.
func checkProto(b []byte) error { return checkDepth(b, maxDepth) }

// checkDepth is checkProto with a limit of at most maxDepth levels.
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
			return errField // the request itself must be a message; OTLP has no groups
		}
		if !ok { // the decoder stops here too, or this is not a message
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

// Protobuf wire types.
const (
	varintKind = iota
	fixed64
	bytesKind
	startGroup
	endGroup
	fixed32
)

// nextField returns the wire type of the first field of b, its content if it is bytes, and
// the rest. The fields of a group follow its start tag. ok is false only where pdata fails.
func nextField(b []byte) (kind int, inner, rest []byte, ok bool) {
	tag, b, ok := varint(b)
	if !ok || int32(tag>>3) <= 0 { //nolint:gosec // truncated like pdata
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

// varint parses a number like pdata, which accepts ten bytes whatever the last contains.
func varint(b []byte) (v uint64, rest []byte, ok bool) {
	for i := 0; i < len(b) && i < 10; i++ {
		v |= uint64(b[i]&0x7f) << (7 * i)
		if b[i] < 0x80 {
			return v, b[i+1:], true
		}
	}
	return 0, nil, false
}

// checkJSON rejects requests nested deeper than maxDepth, scaled by the number of JSON levels
// per protobuf level, or with more than maxFields fields.
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
