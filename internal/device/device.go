// Package device is the vendor-neutral model of an accelerator: its identity (ID), one set
// of readings (Sample), events between readings (Event), and the Reader and Device
// interfaces that each vendor package implements.
//
// Readings are in SI base units and carry absence explicitly: a Value that the device did
// not report is absent, never 0. The package reads nothing itself, imports only the
// standard library, and knows neither metric names nor workloads.
package device

import (
	"context"
	"errors"
)

// Reader finds the accelerators of one vendor.
type Reader interface {
	// Devices returns every device and partition in a stable order. Devices that could be
	// reached are returned even when err is non-nil. A device that is still present is
	// returned as the same Device, which preserves its state; a different Device for a
	// known ID tells the caller to discard the old state.
	//
	// A reader that lost its driver connection re-initializes the driver here.
	Devices(ctx context.Context) ([]Device, error)
	// Close releases the driver and every open device file. No Read may be running.
	Close() error
}

// Device is one accelerator, or one partition of an accelerator. Its methods are called by
// one goroutine at a time, except Busy, which any goroutine may call.
type Device interface {
	ID() ID
	// Read refreshes the values of tier and of all cheaper tiers, and returns the whole
	// Sample, including values of slower tiers from earlier reads. Values that were read
	// are valid even when err is non-nil; only ErrLost and ErrNeedsReset void the Sample.
	Read(ctx context.Context, tier Tier) (Sample, error)
}

// Busy is implemented by devices that can report, from another goroutine, which driver call
// is in progress. The name of a hung call is logged from it.
type Busy interface {
	Busy() string
}

// Tier selects how much of a Sample one Read refreshes. Each tier includes the cheaper
// ones.
type Tier int

// The tiers, from the cheapest to the most expensive.
const (
	Fast   Tier = iota // every tick: microseconds to 2 ms per device
	Slow               // every slow interval: values that cost milliseconds or rarely change
	Static             // once per discovery: identity, versions, limits
)

var (
	// ErrAbsent means that the machine has no hardware or driver of this vendor. It is a
	// normal state, not a failure.
	ErrAbsent = errors.New("not present")
	// ErrLost means that the device no longer answers and must be rediscovered.
	ErrLost = errors.New("device is lost")
	// ErrNeedsReset means that the driver rejects calls to the device until it is reset.
	ErrNeedsReset = errors.New("device needs a reset")
)

// ID identifies a device, or a partition of one, for its lifetime.
type ID struct {
	Vendor string `json:"vendor"` // nvidia, amd, ...
	// UUID is the vendor's stable identifier; for a partition, the partition's own.
	UUID string `json:"uuid"`
	// Parent is the UUID of the physical device that a partition belongs to. It is empty
	// for a physical device.
	Parent string `json:"parent,omitempty"`
	// Index is the driver's enumeration order; a partition has its parent's. Users refer to
	// the GPU by it, but it is not stable across hot-plug.
	Index   int    `json:"index"`
	Model   string `json:"model"`
	PCI     string `json:"pci,omitempty"`     // domain:bus:device.function, lower case
	Profile string `json:"profile,omitempty"` // partitions only, such as 1g.18gb
}

// Physical returns the UUID of the physical device: Parent for a partition, else UUID.
func (id ID) Physical() string {
	if id.Parent != "" {
		return id.Parent
	}
	return id.UUID
}

// Check is one line of a diagnosis: what was examined, what was found, and how to fix it.
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
	CheckAbsent  CheckState = "absent"  // not there, which may be intended
	CheckLimited CheckState = "limited" // works, but something is missing
	CheckFailed  CheckState = "failed"
)
