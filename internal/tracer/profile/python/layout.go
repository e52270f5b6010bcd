// Package python reads the objects of a CPython interpreter from the memory of its process: where its
// threads keep their frames, and the name, file and line of a frame.
//
// From 3.13 on an interpreter publishes where its fields are. Those of older ones are in a table, by
// release. An interpreter that is in neither is refused with the reason: a wrong offset reads nonsense.
//
// The memory belongs to a process that may be hostile: each length is bounded, no pointer is followed more
// than once for a value, and texts are made printable. Only code objects are read: no locals, no arguments.
package python

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Layout says where CPython keeps things, in bytes from the beginning of an object.
type Layout struct {
	Minor int // of version 3

	Interpreters                       uint64 // of the runtime: the first interpreter
	InterpreterNext, InterpreterThread uint64
	ThreadNext, ThreadID               uint64
	ThreadFrame                        uint64
	FrameOf                            uint64 // ThreadFrame points to a struct with the frame there; see Indirect
	Indirect                           bool
	FrameCode, FramePrevious           uint64
	FrameInstr                         uint64 // up to 3.10 a number, later the address of an instruction

	CodeStart                                                uint64 // of the instructions; 0 up to 3.10
	CodeName, CodeQualname, CodeFile, CodeFirstLine, CodeMap uint64 // CodeQualname: 0 up to 3.10

	ObjectType                 uint64
	BytesSize, BytesData       uint64
	StringLength, StringState  uint64
	StringASCII, StringCompact uint64
	TypeName                   uint64
}

// common is what all builds without Py_TRACE_REFS share.
var common = Layout{ObjectType: 8, BytesSize: 16, BytesData: 32, StringLength: 16, StringState: 32, TypeName: 24}

// releases has the offsets of 64-bit builds, computed by offsetof from the headers that each release
// installs (Include/internal); TestHeaders does it again.
var releases = map[int]Layout{
	8: {
		Interpreters: 32, InterpreterNext: 0, InterpreterThread: 8, ThreadNext: 8, ThreadID: 176, ThreadFrame: 24,
		FrameCode: 32, FramePrevious: 24, FrameInstr: 104,
		CodeName: 112, CodeFile: 104, CodeFirstLine: 40, CodeMap: 120, StringASCII: 48, StringCompact: 72,
	},
	9: {
		Interpreters: 32, InterpreterNext: 0, InterpreterThread: 8, ThreadNext: 8, ThreadID: 176, ThreadFrame: 24,
		FrameCode: 32, FramePrevious: 24, FrameInstr: 104,
		CodeName: 112, CodeFile: 104, CodeFirstLine: 40, CodeMap: 120, StringASCII: 48, StringCompact: 72,
	},
	10: {
		Interpreters: 32, InterpreterNext: 0, InterpreterThread: 8, ThreadNext: 8, ThreadID: 176, ThreadFrame: 24,
		FrameCode: 32, FramePrevious: 24, FrameInstr: 96,
		CodeName: 112, CodeFile: 104, CodeFirstLine: 40, CodeMap: 120, StringASCII: 48, StringCompact: 72,
	},
	11: {
		Interpreters: 40, InterpreterNext: 0, InterpreterThread: 16, ThreadNext: 8, ThreadID: 152, ThreadFrame: 56, Indirect: true, FrameOf: 8,
		FrameCode: 32, FramePrevious: 48, FrameInstr: 56,
		CodeStart: 184, CodeName: 120, CodeQualname: 128, CodeFile: 112, CodeFirstLine: 72, CodeMap: 136, StringASCII: 48, StringCompact: 72,
	},
	12: {
		Interpreters: 40, InterpreterNext: 0, InterpreterThread: 72, ThreadNext: 8, ThreadID: 136, ThreadFrame: 56, Indirect: true, FrameOf: 0,
		FrameCode: 0, FramePrevious: 8, FrameInstr: 56,
		CodeStart: 192, CodeName: 120, CodeQualname: 128, CodeFile: 112, CodeFirstLine: 68, CodeMap: 136, StringASCII: 40, StringCompact: 56,
	},
}

// published says where in the words of _Py_DebugOffsets the offsets are. The struct is at the beginning of
// the runtime. It grew in 3.14.
type published struct {
	interpreters, interpreterNext, interpreterThread         int
	threadNext, threadID, threadFrame                        int
	framePrevious, frameCode, frameInstr                     int
	codeFile, codeName, codeQualname, codeMap, codeFirstLine int
	codeStart, objectType, typeName                          int
	bytesSize, bytesData                                     int
	stringState, stringLength, stringASCII                   int
}

const cookie = "xdebugpy"

// words of 3.13: three of the header, 3 of the runtime, 13 of an interpreter, 9 of a thread, 6 of a frame,
// 10 of a code object, 2 of an object, 4 of a type, 3 each of tuples, lists and dicts, 2 of a float, 3 each of longs and bytes, 4 of a string; 3.14 has sets, too.
var publications = map[int]published{
	13: sections([]int{3, 3, 13, 9, 6, 10, 2, 4, 3, 3, 3, 2, 3, 3, 4}),
	14: sections([]int{3, 3, 16, 9, 8, 11, 2, 4, 3, 3, 4, 3, 2, 3, 3, 4}),
}

// sections turns the number of words of each section into the positions of what is needed.
func sections(sizes []int) published {
	at := make([]int, len(sizes))
	for i := 1; i < len(sizes); i++ {
		at[i] = at[i-1] + sizes[i-1]
	}
	runtime, interpreter, thread, frame, code, object, typ := at[1], at[2], at[3], at[4], at[5], at[6], at[7]
	bytes, unicode := at[len(at)-2], at[len(at)-1]
	return published{
		interpreters: runtime + 2, interpreterNext: interpreter + 2, interpreterThread: interpreter + 3,
		threadNext: thread + 2, threadFrame: thread + 4, threadID: thread + 5,
		framePrevious: frame + 1, frameCode: frame + 2, frameInstr: frame + 3,
		codeFile: code + 1, codeName: code + 2, codeQualname: code + 3, codeMap: code + 4, codeFirstLine: code + 5, codeStart: code + 9,
		objectType: object + 1, typeName: typ + 1,
		bytesSize: bytes + 1, bytesData: bytes + 2,
		stringState: unicode + 1, stringLength: unicode + 2, stringASCII: unicode + 3,
	}
}

const (
	offsetsBytes = 1024      // more than any _Py_DebugOffsets
	maxOffset    = 256 << 10 // an interpreter has some hundred KiB
)

// Read returns the layout of an interpreter from its runtime. minor is what its file says; 0: unknown.
func Read(memory io.ReaderAt, runtime uint64, minor int) (Layout, error) {
	head := make([]byte, offsetsBytes)
	if _, err := memory.ReadAt(head, int64(runtime)); err != nil {
		return Layout{}, fmt.Errorf("cannot read Python's runtime: %w", err)
	}
	return parse(head, minor)
}

func parse(head []byte, minor int) (Layout, error) {
	if len(head) < offsetsBytes || string(head[:8]) != cookie {
		l, ok := releases[minor]
		switch {
		case minor == 0:
			return Layout{}, errors.New("version of Python is unknown")
		case !ok:
			return Layout{}, fmt.Errorf("frames of Python 3.%d are unknown", minor)
		}
		l.Minor = minor
		l.ObjectType, l.TypeName = common.ObjectType, common.TypeName
		l.BytesSize, l.BytesData = common.BytesSize, common.BytesData
		l.StringLength, l.StringState = common.StringLength, common.StringState
		return l, nil
	}
	word := func(n int) uint64 { return binary.LittleEndian.Uint64(head[8*n:]) }
	version := word(1) // as PY_VERSION_HEX
	if version>>24 != 3 {
		return Layout{}, fmt.Errorf("version of Python is %#x", version)
	}
	minor = int(version >> 16 & 0xff)
	at, ok := publications[minor]
	switch {
	case !ok:
		return Layout{}, fmt.Errorf("frames of Python 3.%d are unknown", minor)
	case word(2) != 0:
		return Layout{}, fmt.Errorf("frames of Python 3.%d without the global lock are unknown", minor)
	}
	l := Layout{
		Minor:        minor,
		Interpreters: word(at.interpreters), InterpreterNext: word(at.interpreterNext), InterpreterThread: word(at.interpreterThread),
		ThreadNext: word(at.threadNext), ThreadID: word(at.threadID), ThreadFrame: word(at.threadFrame),
		FrameCode: word(at.frameCode), FramePrevious: word(at.framePrevious), FrameInstr: word(at.frameInstr),
		CodeStart: word(at.codeStart), CodeName: word(at.codeName), CodeQualname: word(at.codeQualname),
		CodeFile: word(at.codeFile), CodeFirstLine: word(at.codeFirstLine), CodeMap: word(at.codeMap),
		ObjectType: word(at.objectType), TypeName: word(at.typeName), BytesSize: word(at.bytesSize), BytesData: word(at.bytesData),
		StringLength: word(at.stringLength), StringState: word(at.stringState), StringASCII: word(at.stringASCII),
	}
	l.StringCompact = l.StringASCII + 16 // two words follow, for the text as UTF-8
	for _, offset := range []uint64{
		l.Interpreters, l.InterpreterNext, l.InterpreterThread, l.ThreadNext, l.ThreadID, l.ThreadFrame, l.FrameCode, l.FramePrevious, l.FrameInstr,
		l.CodeStart, l.CodeName, l.CodeQualname, l.CodeFile, l.CodeFirstLine, l.CodeMap, l.ObjectType, l.TypeName, l.BytesSize, l.BytesData,
		l.StringLength, l.StringState, l.StringASCII,
	} {
		if offset > maxOffset {
			return Layout{}, fmt.Errorf("offset of %d published by Python 3.%d is too large", offset, minor)
		}
	}
	if l.CodeStart == 0 || l.FrameInstr == 0 {
		return Layout{}, fmt.Errorf("no place of instructions is published by Python 3.%d", minor)
	}
	return l, nil
}

// Check tests a layout on the type of code objects, whose name is known.
func (l *Layout) Check(memory io.ReaderAt, codeType uint64) error {
	name, err := pointer(memory, codeType+l.TypeName)
	if err != nil {
		return err
	}
	var b [5]byte
	if _, err := memory.ReadAt(b[:], int64(name)); err != nil || string(b[:]) != "code\x00" {
		return fmt.Errorf("objects of this Python 3.%d are not where a release has them", l.Minor)
	}
	return nil
}

func pointer(memory io.ReaderAt, at uint64) (uint64, error) {
	var b [8]byte
	_, err := memory.ReadAt(b[:], int64(at))
	return binary.LittleEndian.Uint64(b[:]), err
}
