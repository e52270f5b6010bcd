//go:build linux

package sampler

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/python"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// process is one that is profiled. It is a new one after exec.
type process struct {
	target.Process
	proc     string
	memory   io.ReaderAt // nil: cannot be read
	close    func() error
	mappings []target.Mapping
	python   *python.Layout // nil: none, or not understood
	runtime  uint64         // address of Python's runtime
	codeType uint64
	image    string // path of the file that has the interpreter
	problem  string

	codes  map[codeKey]function
	images map[string]*image // by path
}

type codeKey struct {
	code  uint64
	check uint32
}

// function is a code object, or the reason why it cannot be known.
type function struct {
	python.Code
	err error
}

// maxCodes bounds the code objects that are kept of a process: a hostile one may invent them.
const maxCodes = 65536

// meet begins with a process that has mapped the driver's library.
func meet(proc string, id target.Process, mappings []target.Mapping) *process {
	p := &process{Process: id, proc: proc, mappings: mappings, codes: map[codeKey]function{}, images: map[string]*image{}, close: func() error { return nil }}
	f, err := os.Open(filepath.Join(proc, strconv.FormatUint(uint64(id.PID), 10), "mem"))
	if err != nil {
		p.problem = fmt.Sprintf("its memory cannot be read: %v", err)
		return p
	}
	p.memory, p.close = f, f.Close
	if err := p.findPython(); err != nil {
		p.problem = err.Error()
	}
	return p
}

// versioned finds the version of CPython in the names of its own files: those of up to 3.10 do not say it.
var versioned = regexp.MustCompile(`(?:libpython3\.|/python3\.|\.cpython-3)(\d{1,2})(?:\D|$)`)

// findPython finds the interpreter in a process. No error if there is none.
func (p *process) findPython() error {
	minor := 0
	for _, m := range p.mappings {
		if v := versioned.FindStringSubmatch(m.Path); v != nil && minor == 0 {
			minor, _ = strconv.Atoi(v[1])
		}
	}
	exe := target.Executable(p.proc, p.PID) // may have any name, and the interpreter in it
	for _, m := range p.mappings {
		base := path.Base(m.Path)
		if !strings.HasPrefix(base, "libpython3") && !strings.HasPrefix(base, "python") && m.Path != exe {
			continue
		}
		found, err := p.interpreter(m, minor)
		if found {
			p.image = m.Path
			return err
		}
	}
	return nil
}

// interpreter reads where a mapped file has the interpreter.
func (p *process) interpreter(m target.Mapping, minor int) (found bool, err error) {
	file, err := target.Open(p.proc, p.PID, m)
	if err != nil {
		return false, err
	}
	defer file.Close()
	b, err := target.OpenBinary(file)
	if err != nil {
		return false, err
	}
	values, err := b.Values(map[string]bool{"_PyRuntime": true, "PyCode_Type": true, "Py_Version": true})
	bias, ok := b.Bias(m)
	if err != nil || values["_PyRuntime"] == 0 || values["PyCode_Type"] == 0 || !ok {
		return false, err
	}
	if at := values["Py_Version"]; at != 0 { // since 3.11
		var version [8]byte
		if _, err := p.memory.ReadAt(version[:], int64(at+bias)); err == nil {
			minor = int(binary.LittleEndian.Uint64(version[:]) >> 16 & 0xff)
		}
	}
	p.runtime, p.codeType = values["_PyRuntime"]+bias, values["PyCode_Type"]+bias
	layout, err := python.Read(p.memory, p.runtime, minor)
	if err == nil {
		err = layout.Check(p.memory, p.codeType)
	}
	if err != nil {
		return true, err
	}
	p.python = &layout
	return true, nil
}

// target is what the kernel needs to know of the process.
func (p *process) target() kernelProfileTarget {
	if p.python == nil {
		return kernelProfileTarget{}
	}
	l := p.python
	t := kernelProfileTarget{
		Heads: p.runtime + l.Interpreters, Code: p.codeType,
		InterpNext: uint32(l.InterpreterNext), InterpThreads: uint32(l.InterpreterThread),
		ThreadNext: uint32(l.ThreadNext), ThreadId: uint32(l.ThreadID), ThreadFrame: uint32(l.ThreadFrame),
		FrameCode: uint32(l.FrameCode), FramePrevious: uint32(l.FramePrevious), FrameInstr: uint32(l.FrameInstr),
		CodeStart: uint32(l.CodeStart), CodeName: uint32(l.NameOf()), ObjectType: uint32(l.ObjectType),
	}
	if l.Indirect {
		t.FrameOf = uint32(l.FrameOf) + 1
	}
	return t
}

// frames returns the frames of a stack, the outermost first, without the kernel.
func (p *process) frames(s *kernelProfileStack) []profile.Frame {
	pythons := min(int(s.Pythons), len(s.Python))
	turn := min(int(s.Turn), pythons)
	flag := func(f kernelProfileFlag) bool { return kernelProfileFlag(s.Flags)&f != 0 }
	var out []profile.Frame // the innermost first
	native, whole := p.natives(s.Native[:min(int(s.Natives), len(s.Native))])
	out = append(out, native...)
	if !whole {
		out = append(out, note(profile.NativeCut))
	}
	backward := flag(kernelProfileFlagSTACK_BACKWARD)
	for i := range pythons {
		if backward && i == turn {
			out = append(out, note(profile.Backward))
		}
		if f := p.function(s.Python[i].Code, s.Python[i].Check, s.Python[i].Instr); f.File != entryFile {
			out = append(out, f)
		}
	}
	switch {
	case flag(kernelProfileFlagSTACK_PYTHON_CUT):
		out = append(out, note(profile.Cut))
	case flag(kernelProfileFlagSTACK_PYTHON_BROKEN):
		out = append(out, note(profile.Broken))
	case flag(kernelProfileFlagSTACK_NO_THREAD) && pythons == 0:
		out = append(out, note(profile.NoPython))
	}
	slices.Reverse(out)
	return out
}

// entryFile is the file of what 3.12 has in the place of a frame where C calls Python.
const entryFile = "<shim>"

func note(text string) profile.Frame { return profile.Frame{Kind: profile.Note, Function: text} }

// function returns a frame of Python.
func (p *process) function(code uint64, check, instr uint32) profile.Frame {
	key := codeKey{code, check}
	f, ok := p.codes[key]
	if !ok {
		if p.python == nil || p.memory == nil {
			f.err = errors.New("unknown")
		} else {
			f.Code, f.err = p.python.ReadCode(p.memory, code, check)
		}
		if len(p.codes) < maxCodes {
			p.codes[key] = f
		}
	}
	if f.err != nil {
		return note(profile.Unresolved)
	}
	return profile.Frame{Kind: profile.Python, Function: f.Name, File: f.File, Line: f.Line(instr)}
}

// natives returns the native frames of a stack, the innermost first, up to the interpreter, and whether
// there are no others: the chain of frame pointers may end early, or lead nowhere.
func (p *process) natives(addrs []uint64) (frames []profile.Frame, whole bool) {
	if len(addrs) > 1 { // the second is the probed function itself, which kernels report first
		addrs = slices.Delete(slices.Clone(addrs), 1, 2)
	}
	if len(addrs) > 1 && addrs[1] == addrs[0] { // newer kernels know the caller at the entry of a function
		addrs = slices.Delete(addrs, 1, 2)
	}
	for i, addr := range addrs {
		m := p.mapping(addr)
		if m == nil {
			if i == 0 {
				frames = append(frames, note(profile.UnknownImage))
			}
			return frames, false
		}
		if p.image != "" && m.Path == p.image {
			return frames, true
		}
		if i > 0 && !p.follows(addr) {
			return frames, false
		}
		name := p.symbol(m, addr-1) // in the call, not behind it
		if name == "start_thread" || name == "__libc_start_main" || name == "__libc_start_call_main" || name == "clone3" || name == "_start" {
			return frames, true
		}
		f := profile.Frame{Kind: profile.Native, Function: name, File: path.Base(m.Path)}
		if name == "" {
			f.Function = fmt.Sprintf("%s+%#x", f.File, addr-m.Start+m.Offset)
		}
		frames = append(frames, f)
	}
	return frames, false
}

func (p *process) mapping(addr uint64) *target.Mapping {
	i, found := slices.BinarySearchFunc(p.mappings, addr, func(m target.Mapping, a uint64) int {
		switch {
		case m.End <= a:
			return -1
		case m.Start > a:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &p.mappings[i]
}

// follows reports whether an address is behind a call, as a return address is.
func (p *process) follows(addr uint64) bool {
	var b [8]byte
	if p.memory == nil {
		return false
	}
	if _, err := p.memory.ReadAt(b[:], int64(addr-8)); err != nil {
		return false
	}
	return isCall(b[:])
}

// isCall reports whether code ends with a call. Other architectures keep frame pointers.
func isCall(b []byte) bool {
	if !amd64 {
		return true
	}
	n := len(b)
	if b[n-5] == 0xe8 {
		return true
	}
	for length := 2; length <= 7; length++ { // call of a register or of memory
		i := n - length
		if b[i] == 0xff && b[i+1]>>3&7 == 2 {
			return true
		}
	}
	return bytes.HasSuffix(b, []byte{0x0f, 0x05}) // system call
}
