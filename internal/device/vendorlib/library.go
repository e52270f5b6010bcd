//go:build linux

// Package vendorlib calls a vendor's management library, such as NVML or HLML. It opens the
// first usable file, looks up functions by name at first use, and remembers for each device
// which queries it does not support. The vendor's package defines the functions and the
// meaning of the return codes.
package vendorlib

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/dlopen"
)

// Kind describes one vendor's library.
type Kind struct {
	Name  string // for display: NVIDIA's management library
	File  string // libnvidia-ml.so.1
	Init  string // a function that every version has
	Codes Codes
}

// Codes defines the meaning of the return codes of a library. 0 is success.
type Codes struct {
	// The codes that Try returns without a call: after a call reported the device as lost, for
	// a query that the device does not support, and for a function that the library does not
	// have.
	Lost, NotSupported, Missing uint32
	// Error converts a code to an error, which may be device.ErrLost or device.ErrNeedsReset.
	Error func(code uint32) error
	// Never reports whether the query is unsupported until the device is discovered again.
	Never func(code uint32) bool
	// Quiet reports whether there is no value at the moment, which is not an error.
	Quiet func(code uint32) bool
}

// Library is an open library. Functions are looked up by name at first use.
type Library struct {
	*dlopen.Library

	codes   *Codes
	symbols sync.Map // name -> *Symbol
}

// Symbol is a function of a library. Fn is not OK if the library does not have it.
type Symbol struct {
	Name string
	Fn   dlopen.Func
}

// Open opens the library at file or, if file is empty, the first usable one of candidates. If
// none of them exists, the error is device.ErrAbsent.
//
// The loader never searches by name: it would map a broken file that dlopen.Open rejects.
func (k *Kind) Open(file string, candidates []string) (*Library, error) {
	if file != "" {
		return k.OpenFile(file)
	}
	var errs []error
	for _, file := range candidates {
		lib, err := k.OpenFile(file)
		switch {
		case err == nil:
			return lib, nil
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, fmt.Errorf("no %s found: %w", k.File, device.ErrAbsent)
}

// OpenFile opens the library at file.
func (k *Kind) OpenFile(file string) (*Library, error) {
	l, err := dlopen.Open(file)
	if err != nil {
		return nil, err
	}
	lib := &Library{Library: l, codes: &k.Codes}
	if !lib.Get(k.Init).Fn.OK() {
		return nil, errors.Join(fmt.Errorf("%s is not %s: it has no %s", file, k.Name, k.Init), l.Close())
	}
	return lib, nil
}

// Get returns the function called name.
func (l *Library) Get(name string) *Symbol {
	if s, ok := l.symbols.Load(name); ok {
		return s.(*Symbol)
	}
	s, _ := l.symbols.LoadOrStore(name, &Symbol{name, l.Lookup(name)})
	return s.(*Symbol)
}

// Missing returns the functions that were looked up and not found.
func (l *Library) Missing() []string {
	var names []string
	l.symbols.Range(func(_, v any) bool {
		if s := v.(*Symbol); !s.Fn.OK() {
			names = append(names, s.Name)
		}
		return true
	})
	return names
}
