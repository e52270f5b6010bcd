//go:build linux

package vendorlib

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/dlopen"
)

// Caller makes calls for one device and remembers the results: a query that the device does
// not support is not repeated, a failure is reported once per Read, and after a call reports
// the device as lost no other call is made.
type Caller struct {
	Lib    *Library
	Handle uintptr // of the device; 0: the library does not list the device, or there is no library

	busy  atomic.Pointer[Symbol]
	never map[query]bool
	errs  []error
	fatal error
}

// query is a function together with its selector (a sensor, a clock, a port, a field).
type query struct {
	sym string
	sel uint64
}

// Busy implements device.Busy.
func (c *Caller) Busy() string {
	if s := c.busy.Load(); s != nil {
		return s.Name
	}
	return ""
}

// Begin discards the errors of the previous Read.
func (c *Caller) Begin() { c.errs, c.fatal = nil, nil }

// Fail adds an error to those that End returns.
func (c *Caller) Fail(err error) { c.errs = append(c.errs, err) }

// Fatal returns the error after which no further call is made, or nil.
func (c *Caller) Fatal() error { return c.fatal }

// End returns the errors collected since Begin.
func (c *Caller) End() error {
	if c.fatal != nil {
		return c.fatal
	}
	return errors.Join(c.errs...)
}

// Forget makes the Caller repeat queries that were not supported before.
func (c *Caller) Forget() { c.never = nil }

// Never reports whether the query is known to be unsupported and is not repeated.
func (c *Caller) Never(sym string, sel uint64) bool { return c.never[query{sym, sel}] }

// GiveUp marks the query as unsupported: the Caller does not repeat it.
func (c *Caller) GiveUp(sym string, sel uint64) {
	if c.never == nil {
		c.never = map[query]bool{}
	}
	c.never[query{sym, sel}] = true
}

// Do calls sym and reports whether it succeeded. sel distinguishes queries that share the
// same function. Pointers among args must be converted in the argument list.
//
//go:uintptrescapes
func (c *Caller) Do(sym string, sel uint64, args ...uintptr) bool {
	return c.Try(sym, sel, args...) == 0
}

// Try is like Do and returns the return code.
//
//go:uintptrescapes
func (c *Caller) Try(sym string, sel uint64, args ...uintptr) uint32 {
	codes := c.Lib.codes
	if c.fatal != nil {
		return codes.Lost
	}
	if c.Never(sym, sel) {
		return codes.NotSupported
	}
	s := c.Lib.Get(sym)
	if !s.Fn.OK() {
		c.GiveUp(sym, sel)
		return codes.Missing
	}
	c.busy.Store(s)
	code := uint32(s.Fn.Call(args...))
	c.busy.Store(nil)
	c.Judge(sym, sel, code)
	return code
}

// Judge classifies a return code as fatal, permanent, an error or nothing. Try judges the
// code that it returns. The caller of a function that runs several queries judges the code of
// each.
func (c *Caller) Judge(sym string, sel uint64, code uint32) {
	if code == 0 {
		return
	}
	codes := c.Lib.codes
	switch err := codes.Error(code); {
	case errors.Is(err, device.ErrLost) || errors.Is(err, device.ErrNeedsReset):
		c.fatal = fmt.Errorf("%s: %w", sym, err)
	case codes.Never(code):
		c.GiveUp(sym, sel)
	case !codes.Quiet(code):
		c.Fail(fmt.Errorf("%s: %w", sym, err))
	}
}

// U32 calls sym(device, &value).
func (c *Caller) U32(sym string) device.Value {
	var v uint32
	if !c.Do(sym, 0, c.Handle, uintptr(unsafe.Pointer(&v))) {
		return device.Value{}
	}
	return device.Of(float64(v))
}

// U32Of calls sym(device, what, &value).
func (c *Caller) U32Of(sym string, what uint32) device.Value {
	var v uint32
	if !c.Do(sym, uint64(what), c.Handle, uintptr(what), uintptr(unsafe.Pointer(&v))) {
		return device.Value{}
	}
	return device.Of(float64(v))
}

// U64 calls sym(device, &value).
func (c *Caller) U64(sym string) (uint64, bool) {
	var v uint64
	ok := c.Do(sym, 0, c.Handle, uintptr(unsafe.Pointer(&v)))
	return v, ok
}

// Text calls sym(device, buffer, length). No library's strings are longer than 128 bytes.
func (c *Caller) Text(sym string) string {
	buf := make([]byte, 256)
	if !c.Do(sym, 0, c.Handle, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf))) {
		return ""
	}
	return dlopen.String(buf)
}
