// Package device is the vendor-neutral model of an accelerator: what it is, what
// it measured, and the contract a vendor package fulfils. It imports the standard
// library only.
package device

import (
	"context"
	"errors"
)

// Reader finds the accelerators of one vendor.
type Reader interface {
	// Devices returns every device and partition in a stable order. Those it could
	// reach are returned even when err is non-nil. A device that is still there is
	// returned as the same Device, so that its state lives on; a different Device for
	// a known ID tells the caller to start over with it.
	//
	// A reader that lost touch with its driver re-initialises it here.
	Devices(ctx context.Context) ([]Device, error)
	// Close releases the driver and every open device file. No Read may be running.
	Close() error
}

// Device is one accelerator, or one partition of it. Its methods are called by one
// goroutine at a time, except Busy of those that have it.
type Device interface {
	ID() ID
	// Read refreshes the values of tier and of the tiers before it, and returns the
	// whole Sample, older slow values included. Values that were read are returned
	// even when err is non-nil; only ErrLost and ErrNeedsReset void the Sample.
	Read(ctx context.Context, tier Tier) (Sample, error)
}

// Busy is implemented by devices that can say, from another goroutine, which driver
// call is in progress. It is how a hung call gets its name into a log line.
type Busy interface {
	Busy() string
}

// Tier says how much of a Sample one Read refreshes. Each tier includes those before.
type Tier int

// The tiers, by the cost of what they read.
const (
	Fast   Tier = iota // every tick: microseconds to 2 ms a device
	Slow               // every slow interval: values that cost milliseconds or rarely change
	Static             // once per discovery: identity, versions, limits
)

var (
	// ErrAbsent means that the machine has no hardware or driver of this vendor,
	// which is a normal state.
	ErrAbsent = errors.New("not present")
	// ErrLost means that the device no longer answers and needs a new discovery.
	ErrLost = errors.New("device is lost")
	// ErrNeedsReset means that the driver refuses the device until it is reset.
	ErrNeedsReset = errors.New("device needs a reset")
)

// ID identifies a device, or a partition of one, for its lifetime.
type ID struct {
	Vendor string `json:"vendor"` // nvidia, amd, ...
	// UUID is the vendor's stable identifier, of the partition if this is one.
	UUID string `json:"uuid"`
	// Parent is the UUID of the physical device a partition is cut from.
	Parent string `json:"parent,omitempty"`
	// Index is the driver's enumeration order, the parent's for a partition. It is
	// what people call the GPU by, and it is not stable over hot-plug.
	Index   int    `json:"index"`
	Model   string `json:"model"`
	PCI     string `json:"pci,omitempty"`     // domain:bus:device.function, lower case
	Profile string `json:"profile,omitempty"` // of a partition, such as 1g.18gb
}

// Physical returns the UUID of the physical device.
func (id ID) Physical() string {
	if id.Parent != "" {
		return id.Parent
	}
	return id.UUID
}

// Check is one line of a diagnosis: what was looked at, what was found, and what
// would mend it.
type Check struct {
	Subject string     `json:"subject"`
	State   CheckState `json:"state"`
	Detail  string     `json:"detail"`
	Fix     string     `json:"fix,omitempty"`
}

// CheckState grades a Check.
type CheckState string

// The grades of a Check.
const (
	CheckOK      CheckState = "ok"
	CheckAbsent  CheckState = "absent"  // not there, and that may be fine
	CheckLimited CheckState = "limited" // works, with something missing
	CheckFailed  CheckState = "failed"
)
