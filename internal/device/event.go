package device

import (
	"context"
	"time"
)

// EventReader is implemented by readers that hear of events between two readings.
type EventReader interface {
	// Events calls emit with each event, in order, until ctx ends, which is no error.
	// It runs beside Devices and Read, after the first Devices returned, and has
	// returned before Close is called. emit does not block.
	Events(ctx context.Context, emit func(Event)) error
}

// Resumer is implemented by EventReaders whose events are kept in a log.
type Resumer interface {
	// Resume makes the next Events begin after p, of the zero Position at the oldest
	// event of the log. Without it Events begins with what happens then.
	Resume(p Position)
}

// Position is up to where events were read. It means something to the reader it is from.
type Position struct {
	Record uint64    `json:"record,omitempty"` // number of the last record read
	Time   time.Time `json:"time,omitzero"`    // events up to then were read otherwise
}

// The names of events.
const (
	EventXID      = "gpu.xid"       // the driver reported an error; Code is NVIDIA's XID
	EventSXID     = "nvswitch.sxid" // an NVSwitch, at PCI, reported an error; Code is NVIDIA's SXID
	EventReset    = "gpu.reset"     // the driver resets the device, or has; Message says which
	EventECC      = "gpu.ecc"       // the driver reported errors of memory or logic
	EventHang     = "gpu.hang"      // a job on the device did not end in time, or it touched memory that it may not
	EventLost     = "gpu.lost"      // the device does not answer; Message says why
	EventReturned = "gpu.returned"  // it answers again
)

// Event is something that happened to a device.
type Event struct {
	Time time.Time `json:"time"`
	// Device is the UUID of the device or partition. Empty: its reader knows the PCI
	// address only.
	Device  string `json:"device,omitempty"`
	PCI     string `json:"pci,omitempty"` // domain:bus:device.function, lower case
	Name    string `json:"name"`
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	PID     uint32 `json:"pid,omitempty"`     // of the process at fault, 0 if unknown
	Process string `json:"process,omitempty"` // its name

	// Position is where Events would go on after this one.
	Position Position `json:"-"`
	// An Event without a Name is about the reader: where its events come from now
	// (Origin, for people), how far it is, and how many events it missed.
	Origin string `json:"-"`
	Missed uint64 `json:"-"`
}
