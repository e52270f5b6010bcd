//go:build linux

// Package dlopen calls functions of C libraries without cgo, by way of purego. It needs
// Linux and a dynamically linked glibc at run time.
//
// The package has no knowledge of any particular library: a symbol is looked up by name and
// may be absent, and arguments are machine words, never structs by value. It checks that a
// file is a whole ELF library for this architecture before it loads the file, but it cannot
// make a call return that hangs inside the library.
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

// Open loads the shared library at path. It validates the file first: the dynamic loader
// maps what the headers promise, and a truncated file would kill the process with SIGBUS.
func Open(path string) (*Library, error) {
	if err := CheckFile(path); err != nil {
		return nil, err
	}
	// RTLD_NOW makes an unresolved symbol an error here instead of a crash at the first
	// call.
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("cannot load %s: %w", path, err)
	}
	return &Library{path, h}, nil
}

// Path returns the file the library was loaded from.
func (l *Library) Path() string { return l.path }

// Lookup returns the function called name, or the zero Func if the library does not have
// it.
func (l *Library) Lookup(name string) Func {
	addr, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return Func{}
	}
	return Func{addr}
}

// Close unloads the library. No call may be in progress, and its Funcs must not be called
// afterwards.
func (l *Library) Close() error {
	if err := purego.Dlclose(l.handle); err != nil {
		return fmt.Errorf("cannot unload %s: %w", l.path, err)
	}
	return nil
}

// Func is a C function. The zero Func is a function that the library does not have.
type Func struct{ addr uintptr }

// OK reports whether the library has the function.
func (f Func) OK() bool { return f.addr != 0 }

// Call runs the function and returns its result. Pointers are passed as
// uintptr(unsafe.Pointer(p)), converted in the argument list itself: only then does the
// compiler move the pointed-to memory to the heap and keep it alive until the call returns,
// which is never if the driver hangs.
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
