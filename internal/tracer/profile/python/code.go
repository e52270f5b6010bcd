package python

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Code is what a code object says of its function.
type Code struct {
	Name      string // with its classes, from 3.11 on
	File      string
	FirstLine int

	lines []byte
	minor int
}

// Bounds of a code object, in characters and bytes.
const (
	maxText  = 512
	maxLines = 1 << 20
)

// ErrStale means that a code object is not the one that was sampled.
var ErrStale = errors.New("another object is at the address of the code")

// Check is what a sample has of a code object to recognize it: the middle bits of the address of its name.
func check(name uint64) uint32 { return uint32(name >> 3) }

// ReadCode reads the code object at an address, which has the check of a sample.
func (l *Layout) ReadCode(memory io.ReaderAt, at uint64, want uint32) (Code, error) {
	size := l.CodeMap + 8
	for _, offset := range []uint64{l.CodeName, l.CodeQualname, l.CodeFile, l.CodeFirstLine} {
		size = max(size, offset+8)
	}
	b := make([]byte, size)
	if _, err := memory.ReadAt(b, int64(at)); err != nil {
		return Code{}, fmt.Errorf("cannot read a code object: %w", err)
	}
	word := func(offset uint64) uint64 { return binary.LittleEndian.Uint64(b[offset:]) }
	if check(word(l.NameOf())) != want {
		return Code{}, ErrStale
	}
	c := Code{FirstLine: int(int32(binary.LittleEndian.Uint32(b[l.CodeFirstLine:]))), minor: l.Minor}
	var errs [3]error
	c.Name, errs[0] = l.text(memory, word(l.NameOf()))
	c.File, errs[1] = l.text(memory, word(l.CodeFile))
	c.lines, errs[2] = l.bytes(memory, word(l.CodeMap))
	if err := errors.Join(errs[:2]...); err != nil { // without the third, only the line is unknown
		return Code{}, err
	}
	return c, nil
}

// NameOf is the offset of the name of a code object.
func (l *Layout) NameOf() uint64 {
	if l.CodeQualname != 0 {
		return l.CodeQualname
	}
	return l.CodeName
}

// text reads a string. Longer ones are cut.
func (l *Layout) text(memory io.ReaderAt, at uint64) (string, error) {
	head := make([]byte, max(l.StringLength, l.StringState)+8)
	if _, err := memory.ReadAt(head, int64(at)); err != nil {
		return "", fmt.Errorf("cannot read a string: %w", err)
	}
	n := int64(binary.LittleEndian.Uint64(head[l.StringLength:]))
	state := binary.LittleEndian.Uint32(head[l.StringState:]) // interned: 2 bits, kind: 3, compact: 1, ascii: 1
	kind, compact, ascii := int64(state>>2&7), state>>5&1 != 0, state>>6&1 != 0
	if n < 0 || !compact || kind != 1 && kind != 2 && kind != 4 {
		return "", errors.New("a string has an unknown form")
	}
	cut := n > maxText
	b := make([]byte, min(n, maxText)*kind)
	data := l.StringCompact
	if ascii {
		data = l.StringASCII
	}
	if _, err := memory.ReadAt(b, int64(at+data)); err != nil {
		return "", fmt.Errorf("cannot read a string: %w", err)
	}
	s := printable(decode(b, kind))
	if cut {
		s += "..."
	}
	return s, nil
}

func decode(b []byte, kind int64) string {
	var runes []rune
	switch kind {
	case 1: // Latin 1
		for _, c := range b {
			runes = append(runes, rune(c))
		}
	case 2:
		for ; len(b) > 1; b = b[2:] {
			runes = append(runes, rune(binary.LittleEndian.Uint16(b)))
		}
	case 4:
		for ; len(b) > 3; b = b[4:] {
			runes = append(runes, rune(binary.LittleEndian.Uint32(b)&0x1fffff))
		}
	}
	for i, r := range runes {
		if utf16.IsSurrogate(r) || r > unicode.MaxRune {
			runes[i] = unicode.ReplacementChar // a file name that is not UTF-8
		}
	}
	return string(runes)
}

// printable keeps a text on one line of a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func (l *Layout) bytes(memory io.ReaderAt, at uint64) ([]byte, error) {
	n, err := pointer(memory, at+l.BytesSize)
	if err != nil || n > maxLines {
		return nil, fmt.Errorf("cannot read %d bytes: %w", n, err)
	}
	b := make([]byte, n)
	_, err = memory.ReadAt(b, int64(at+l.BytesData))
	return b, err
}

// Line returns the line of an instruction as it was sampled; 0: unknown.
func (c *Code) Line(instr uint32) int {
	switch {
	case c.lines == nil:
		return 0
	case c.minor >= 11:
		return c.locations(int(int32(instr)))
	case c.minor == 10: // counts instructions, of two bytes
		return c.ranges(int(int32(instr)) * 2)
	}
	return c.steps(int(int32(instr)))
}

// steps reads the table of 3.8 and 3.9: pairs of increments of the byte and the line.
func (c *Code) steps(at int) int {
	line, end := c.FirstLine, 0
	for b := c.lines; len(b) > 1; b = b[2:] {
		if end += int(b[0]); end > at {
			break
		}
		line += int(int8(b[1]))
	}
	return line
}

// ranges reads the table of 3.10 (PEP 626): lengths in bytes, and increments of the line.
func (c *Code) ranges(at int) int {
	line, end := c.FirstLine, 0
	for b := c.lines; len(b) > 1; b = b[2:] {
		none := int8(b[1]) == -128
		if !none {
			line += int(int8(b[1]))
		}
		if end += int(b[0]); end > at {
			if none {
				return 0
			}
			return line
		}
	}
	return 0
}

// locations reads the table since 3.11 (PEP 657): entries that begin with a byte whose highest bit is set.
func (c *Code) locations(at int) int {
	at = max(at, 0)
	line, end := c.FirstLine, 0
	for b := c.lines; len(b) > 0; {
		first := b[0]
		n := 1
		for n < len(b) && b[n]&0x80 == 0 {
			n++
		}
		form := first >> 3 & 15
		switch form {
		case 13, 14: // without columns; long
			line += signed(b[1:n])
		case 10, 11, 12:
			line += int(form) - 10
		}
		if end += 2 * (int(first&7) + 1); end > at {
			if form == 15 {
				return 0
			}
			return line
		}
		b = b[n:]
	}
	return 0
}

// signed reads a number in groups of six bits, the lowest first, whose lowest bit is the sign.
func signed(b []byte) int {
	var v uint
	for i, c := range b {
		if i > 5 {
			break
		}
		v |= uint(c&0x3f) << (6 * i)
		if c&0x40 == 0 {
			break
		}
	}
	if v&1 != 0 {
		return -int(v >> 1)
	}
	return int(v >> 1)
}
