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

// Caller makes calls for one device and keeps what they taught: what the device never
// answers is not asked again, what failed in this Read is reported once, and after a call
// that says the device is gone no other is made.
type Caller struct {
	Lib    *Library
	Handle uintptr // of the device; 0: the library does not know the device, or is not there

	busy  atomic.Pointer[Symbol]
	never map[query]bool
	errs  []error
	fatal error
}

// query is a function and what of it was asked (a sensor, a clock, a port).
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

// Begin forgets what went wrong in the Read before.
func (c *Caller) Begin() { c.errs, c.fatal = nil, nil }

// Fail adds an error to what End returns.
func (c *Caller) Fail(err error) { c.errs = append(c.errs, err) }

// Fatal returns the error after which no call is made, nil if there is none.
func (c *Caller) Fatal() error { return c.fatal }

// End returns what went wrong since Begin.
func (c *Caller) End() error {
	if c.fatal != nil {
		return c.fatal
	}
	return errors.Join(c.errs...)
}

// Forget makes the Caller ask again for what the device did not answer.
func (c *Caller) Forget() { c.never = nil }

// Never reports whether the device is not asked any more for sel of sym.
func (c *Caller) Never(sym string, sel uint64) bool { return c.never[query{sym, sel}] }

// GiveUp makes the Caller not ask any more for sel of sym.
func (c *Caller) GiveUp(sym string, sel uint64) {
	if c.never == nil {
		c.never = map[query]bool{}
	}
	c.never[query{sym, sel}] = true
}

// Do calls sym, for which sel tells apart what is asked of it, and reports whether it
// succeeded. Pointers among args must be converted in the argument list.
//
//go:uintptrescapes
func (c *Caller) Do(sym string, sel uint64, args ...uintptr) bool {
	return c.Try(sym, sel, args...) == 0
}

// Try is Do for callers that need the return code.
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

// Judge draws the consequence of a return code for sel of sym. Try has done so for its own;
// a call that asks for several things has a code for each.
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

// Text calls sym(device, buffer, length). The longest text of any library is 128 bytes.
func (c *Caller) Text(sym string) string {
	buf := make([]byte, 256)
	if !c.Do(sym, 0, c.Handle, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf))) {
		return ""
	}
	return dlopen.String(buf)
}
