//go:build linux

// Package dlopen calls C libraries without cgo. It knows nothing of any library: a
// symbol is looked up by name and may be absent, and arguments are plain words, never
// structs by value.
package dlopen

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// Library is an open shared library.
type Library struct {
	path   string
	handle uintptr
}

// Open loads the shared library at path. The file is checked first: the loader maps
// what the headers promise, and a truncated file then kills the process with SIGBUS.
func Open(path string) (*Library, error) {
	if err := CheckFile(path); err != nil {
		return nil, err
	}
	// NOW: an unresolved symbol is an error here and not a crash at the first call.
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("cannot load %s: %w", path, err)
	}
	return &Library{path, h}, nil
}

// Path returns the file the library was loaded from.
func (l *Library) Path() string { return l.path }

// Lookup returns the function called name, or the zero Func if there is none.
func (l *Library) Lookup(name string) Func {
	addr, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return Func{}
	}
	return Func{addr}
}

// Close unloads the library. No call may be in progress, and its Funcs are dead after.
func (l *Library) Close() error {
	if err := purego.Dlclose(l.handle); err != nil {
		return fmt.Errorf("cannot unload %s: %w", l.path, err)
	}
	return nil
}

// Func is a C function. The zero Func is one the library lacks.
type Func struct{ addr uintptr }

// OK reports whether the library has the function.
func (f Func) OK() bool { return f.addr != 0 }

// Call runs the function and returns its result. Pointers are passed as
// uintptr(unsafe.Pointer(p)), converted in the argument list itself: only then does
// the compiler move what they point to to the heap and keep it alive for as long as
// the call lasts, which may be for ever if the driver hangs.
//
//go:uintptrescapes
func (f Func) Call(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(f.addr, args...)
	return r
}

// String returns the text of a NUL-terminated C string in buf.
func String(buf []byte) string {
	for i, c := range buf {
		if c == 0 {
			return string(buf[:i])
		}
	}
	return string(buf)
}
