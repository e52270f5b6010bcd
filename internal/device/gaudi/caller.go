//go:build linux

package gaudi

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/dlopen"
)

// caller makes HLML calls for one device and remembers the results: a query that the device
// does not support is not repeated, a failure is reported once per Read, and after a call
// reports the device as lost no other call is made.
type caller struct {
	lib    *library
	handle uintptr // 0: there is no library, or it does not know the device

	busy  atomic.Pointer[symbol]
	never map[query]bool
	errs  []error
	fatal error
}

// query is a function together with its selector (a sensor, a clock, a port).
type query struct {
	sym string
	sel uint64
}

// Busy implements device.Busy.
func (c *caller) Busy() string {
	if s := c.busy.Load(); s != nil {
		return s.name
	}
	return ""
}

// do calls sym and reports whether it succeeded. sel distinguishes queries that share the
// same function. Pointers among args must be converted in the argument list.
//
//go:uintptrescapes
func (c *caller) do(sym string, sel uint64, args ...uintptr) bool {
	return c.try(sym, sel, args...) == success
}

// try is do for callers that need the return code.
//
//go:uintptrescapes
func (c *caller) try(sym string, sel uint64, args ...uintptr) ret {
	if c.fatal != nil {
		return errLost
	}
	q := query{sym, sel}
	if c.never[q] {
		return errNotSupported
	}
	s := c.lib.get(sym)
	if !s.fn.OK() {
		c.judge(q, errMissing)
		return errMissing
	}
	c.busy.Store(s)
	r := ret(s.fn.Call(args...))
	c.busy.Store(nil)
	c.judge(q, r)
	return r
}

// judge classifies a return code as fatal, permanent, an error or nothing.
func (c *caller) judge(q query, r ret) {
	switch {
	case r == success:
	case errors.Is(r, device.ErrLost):
		c.fatal = fmt.Errorf("%s: %w", q.sym, r)
	case r.never():
		if c.never == nil {
			c.never = map[query]bool{}
		}
		c.never[q] = true
	case !r.quiet():
		c.errs = append(c.errs, fmt.Errorf("%s: %w", q.sym, r))
	}
}

// u32 calls sym(device, &value).
func (c *caller) u32(sym string) device.Value {
	var v uint32
	if !c.do(sym, 0, c.handle, uintptr(unsafe.Pointer(&v))) {
		return device.Value{}
	}
	return device.Of(float64(v))
}

// u32of calls sym(device, what, &value).
func (c *caller) u32of(sym string, what uint32) device.Value {
	var v uint32
	if !c.do(sym, uint64(what), c.handle, uintptr(what), uintptr(unsafe.Pointer(&v))) {
		return device.Value{}
	}
	return device.Of(float64(v))
}

// u64 calls sym(device, &value).
func (c *caller) u64(sym string) (uint64, bool) {
	var v uint64
	ok := c.do(sym, 0, c.handle, uintptr(unsafe.Pointer(&v)))
	return v, ok
}

// text calls sym(device, buffer, length). HLML's longest string is 128 bytes.
func (c *caller) text(sym string) string {
	buf := make([]byte, 256)
	if !c.do(sym, 0, c.handle, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf))) {
		return ""
	}
	return dlopen.String(buf)
}
