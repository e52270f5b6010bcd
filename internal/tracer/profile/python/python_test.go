package python

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// dump prints the tables of all functions of some modules of the standard library, and the line of each
// instruction as the interpreter says it.
const dump = `
import dis, json, sys, types
import argparse, ast, dataclasses, inspect, tarfile, typing
out = []
def visit(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    if sys.version_info >= (3, 10):
        lines = [[s, e, l or 0] for s, e, l in code.co_lines() if e > s]
    else:
        starts = list(dis.findlinestarts(code))
        ends = [s for s, _ in starts[1:]] + [len(code.co_code)]
        lines = [[s, e, l] for (s, l), e in zip(starts, ends)]
    out.append([code.co_firstlineno, table.hex(), lines])
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            visit(c)
for m in (argparse, ast, dataclasses, inspect, tarfile, typing):
    with open(m.__file__, "rb") as f:
        visit(compile(f.read(), m.__file__, "exec"))
print(json.dumps({"minor": sys.version_info[1], "codes": out}))
`

// Defects: a table of another release, a line one instruction early or late. The interpreters of this machine
// are the judges.
func TestLines(t *testing.T) {
	t.Parallel()
	home, _ := os.UserHomeDir()
	var found []string
	for _, pattern := range []string{"/usr/bin/python3.[0-9]*", filepath.Join(home, ".pyenv/versions/3.*/bin/python3.[0-9]*"), os.Getenv("GPUMETER_PYTHONS")} {
		paths, _ := filepath.Glob(pattern)
		found = append(found, paths...)
	}
	tried := 0
	for _, path := range found {
		version := strings.TrimPrefix(filepath.Base(path), "python3.")
		if minor, err := strconv.Atoi(version); err != nil || minor < 8 {
			continue
		}
		out, err := exec.Command(path, "-c", dump).Output()
		if err != nil {
			t.Logf("%s does not run: %v", path, err)
			continue
		}
		tried++
		var got struct {
			Minor int     `json:"minor"`
			Codes [][]any `json:"codes"`
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		wrong, places := 0, 0
		for _, x := range got.Codes {
			table, _ := hex.DecodeString(x[1].(string))
			c := Code{FirstLine: int(x[0].(float64)), lines: table, minor: got.Minor}
			for _, r := range x[2].([]any) {
				r := r.([]any)
				from, to, want := int(r[0].(float64)), int(r[1].(float64)), int(r[2].(float64))
				for at := from; at < to; at += 2 {
					instr := uint32(at)
					if got.Minor == 10 {
						instr /= 2
					}
					places++
					if line := c.Line(instr); line != want {
						if wrong++; wrong < 5 {
							t.Errorf("3.%d: byte %d is of line %d, want %d", got.Minor, at, line, want)
						}
					}
				}
			}
		}
		if places < 10000 {
			t.Errorf("3.%d: only %d instructions", got.Minor, places)
		}
	}
	if tried == 0 {
		t.Skip("needs python3: no interpreter runs")
	}
}

// text lays out a string of 3.11.
func text(s string) []byte {
	b := make([]byte, 48, 48+len(s))
	binary.LittleEndian.PutUint64(b[16:], uint64(len(s)))
	b[32] = 1<<2 | 1<<5 | 1<<6
	return append(b, s...)
}

// memory is a process with a code object of 3.11 at 4096.
func memory() []byte {
	m := make([]byte, 16384)
	code := m[4096:]
	binary.LittleEndian.PutUint64(code[128:], 8192)
	binary.LittleEndian.PutUint64(code[112:], 9216)
	binary.LittleEndian.PutUint64(code[136:], 10240)
	binary.LittleEndian.PutUint32(code[72:], 10)
	copy(m[8192:], text("Model.forward"))
	copy(m[9216:], text("/app/\x1b[2J.py"))
	binary.LittleEndian.PutUint64(m[10240+16:], 2)
	copy(m[10240+32:], []byte{0x80 | 11<<3 | 1, 0}) // two units of the next line
	return m
}

func layout(t testing.TB) *Layout {
	t.Helper()
	l, err := parse(make([]byte, offsetsBytes), 11)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func TestReadCode(t *testing.T) {
	t.Parallel()
	l, m := layout(t), memory()
	c, err := l.ReadCode(bytes.NewReader(m), 4096, check(8192))
	if err != nil || c.Name != "Model.forward" || c.File != "/app/?[2J.py" || c.Line(2) != 11 || c.Line(4) != 0 {
		t.Errorf("%+v, lines %d and %d, %v", c, c.Line(2), c.Line(4), err)
	}
	if _, err := l.ReadCode(bytes.NewReader(m), 4096, check(8200)); !errors.Is(err, ErrStale) {
		t.Errorf("a code object with another name: %v", err)
	}
}

// What is unknown is refused by name, not read with the offsets of something else.
func TestRefused(t *testing.T) {
	t.Parallel()
	head := func(version, free, offset uint64) []byte {
		b := make([]byte, offsetsBytes)
		copy(b, cookie)
		binary.LittleEndian.PutUint64(b[8:], version)
		binary.LittleEndian.PutUint64(b[16:], free)
		for i := 24; i < len(b); i += 8 {
			binary.LittleEndian.PutUint64(b[i:], offset)
		}
		return b
	}
	f := func(b []byte, minor int, want string) {
		t.Helper()
		if _, err := parse(b, minor); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	none := make([]byte, offsetsBytes)
	f(none, 0, "version of Python is unknown")
	f(none, 7, "frames of Python 3.7 are unknown")
	f(none, 13, "frames of Python 3.13 are unknown") // without the cookie it is none
	f(head(0x030f00f0, 0, 8), 15, "frames of Python 3.15 are unknown")
	f(head(0x030d00f0, 1, 8), 13, "without the global lock")
	f(head(0x030d00f0, 0, 1<<40), 13, "offset")
	f(head(0x020700f0, 0, 8), 13, "version")
	if _, err := parse(head(0x030d00f0, 0, 8), 13); err != nil {
		t.Error(err)
	}
}

func FuzzReadCode(f *testing.F) {
	f.Add(memory(), byte(11))
	f.Fuzz(func(t *testing.T, m []byte, minor byte) {
		l, err := parse(append(make([]byte, 0, offsetsBytes), make([]byte, offsetsBytes)...), int(minor))
		if err != nil {
			return
		}
		var name uint64
		if len(m) >= 4096+256 {
			name = binary.LittleEndian.Uint64(m[4096+l.NameOf():])
		}
		c, err := l.ReadCode(bytes.NewReader(m), 4096, check(name))
		if err != nil {
			return
		}
		for _, instr := range []uint32{0, 2, 100, 1 << 31, 1<<32 - 1} {
			_ = c.Line(instr)
		}
		if len(c.Name) > 4*maxText+3 || strings.ContainsAny(c.Name+c.File, "\x1b\n") {
			t.Errorf("a name of %d bytes: %.80q", len(c.Name), c.Name)
		}
	})
}

func FuzzLayout(f *testing.F) {
	b := make([]byte, offsetsBytes)
	copy(b, cookie)
	f.Add(b, 13)
	f.Fuzz(func(t *testing.T, b []byte, minor int) {
		if l, err := parse(b, minor); err == nil && l.Minor == 0 {
			t.Error("a layout of no version")
		}
	})
}
