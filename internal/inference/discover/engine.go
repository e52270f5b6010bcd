// Package discover finds the inference engines of a machine without configuration: the processes that
// are on a device, the process trees and control groups around them, and the sockets on which those
// listen, each in its own network namespace.
//
// A socket is asked once whether an engine is behind it, with requests that change nothing, and the
// answer is remembered for as long as its process lives. What holds no device is never asked.
package discover

import (
	"net/netip"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Engine is an inference engine on this machine.
type Engine struct {
	// ID identifies the engine on this machine for as long as its process lives, also across restarts of the
	// agent. It changes once if the owner of the process becomes known only later.
	ID string
	// Target is where its metrics page is, and how it is reached.
	Target inference.Target
	// Addresses are where its page can be reached from the network namespace of the agent, on all ports that show it. The
	// URL of the target is valid only in that of the engine.
	Addresses []netip.AddrPort
	// Workload owns the process that serves the page, nil if that is unknown.
	Workload *workload.Workload
	// Devices are the devices and partitions that the engine works on, in the order of the tick.
	Devices []device.ID
	// Started is when the process that serves the page began, zero if unknown.
	Started time.Time
}
