package device

import (
	"context"
	"time"
)

// EventReader is implemented by readers that receive events between two readings.
type EventReader interface {
	// Events calls emit with each event, in order, until ctx ends, which is not an error.
	// It runs concurrently with Devices and Read, starts after the first Devices call
	// returned, and must return before Close is called. emit does not block.
	Events(ctx context.Context, emit func(Event)) error
}

// Resumer is implemented by EventReaders whose events are stored in a log.
type Resumer interface {
	// Resume makes the next call to Events start after p; the zero Position is the oldest
	// event in the log. Without Resume, Events reports only events that happen after it is
	// called.
	Resume(p Position)
}

// Position is how far the events of a log have been read. Only the reader that returned it
// can interpret it.
type Position struct {
	Record uint64    `json:"record,omitempty"` // sequence number of the last record read
	Time   time.Time `json:"time,omitzero"`    // events up to this time were read from another source
}

// Event names.
const (
	EventXID      = "gpu.xid"       // the driver reported an error; Code is NVIDIA's XID
	EventSXID     = "nvswitch.sxid" // an NVSwitch, at PCI, reported an error; Code is NVIDIA's SXID
	EventReset    = "gpu.reset"     // the driver resets the device or has reset it; Message says which
	EventECC      = "gpu.ecc"       // the driver reported memory or logic errors
	EventHang     = "gpu.hang"      // a job on the device did not finish in time, or accessed invalid memory
	EventLost     = "gpu.lost"      // the device does not answer; Message says why
	EventReturned = "gpu.returned"  // the device answers again
)

// Event is something that happened to a device.
type Event struct {
	Time time.Time `json:"time"`
	// Device is the UUID of the device or partition. It is empty if the reader knows only
	// the PCI address.
	Device  string `json:"device,omitempty"`
	PCI     string `json:"pci,omitempty"` // domain:bus:device.function, lower case
	Name    string `json:"name"`
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	PID     uint32 `json:"pid,omitempty"`     // of the process at fault, 0 if unknown
	Process string `json:"process,omitempty"` // name of the process at fault

	// Position is where Events would resume after this event.
	Position Position `json:"-"`
	// An Event without a Name is about the reader itself: where its events come from now
	// (Origin, human-readable), its position, and how many events it missed.
	Origin string `json:"-"`
	Missed uint64 `json:"-"`
}
