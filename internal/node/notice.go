package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Kind is a change of state.
type Kind string

// The changes of state that a View reports.
const (
	SourceOpen    Kind = "source open"
	SourceAbsent  Kind = "source absent"
	SourceFailed  Kind = "source failed"
	DeviceFound   Kind = "device found"
	DeviceUp      Kind = "device up"      // again
	DeviceDown    Kind = "device down"    // Err says why
	DevicePartial Kind = "device partial" // Err says what cannot be read; nil: everything can be read again
	PartitionGone Kind = "partition gone"
	Paused        Kind = "paused"
	Resumed       Kind = "resumed"
	EventsFrom    Kind = "events from"   // Text says where events come from now
	EventsFailed  Kind = "events failed" // Err says why
	StateNone     Kind = "state none"    // Err says why counts start at 0 and are not persisted
	StateReset    Kind = "state reset"   // Err says what was wrong with the file
	StateWrite    Kind = "state write"   // Err says why the file cannot be written; nil: it can be again
	Attribution   Kind = "attribution"   // Text is the workload.Reason of a source, Err its detail
)

// Notice reports one change of state. The owner of the View logs it.
type Notice struct {
	Kind   Kind
	Source string
	Device device.ID
	Err    error
	Text   string
	For    time.Duration
}

// Bad reports whether the change needs attention.
func (n Notice) Bad() bool {
	switch n.Kind {
	case SourceFailed, DeviceDown, EventsFailed, StateNone, StateReset:
		return true
	case DevicePartial, StateWrite:
		return n.Err != nil
	case Attribution:
		return n.Text != string(workload.OK)
	}
	return false
}

func (n Notice) String() string {
	dev := fmt.Sprintf("GPU %d", n.Device.Index)
	if n.Device.Parent != "" {
		dev += " partition " + n.Device.Profile
	}
	switch n.Kind {
	case SourceOpen:
		return n.Source + ": driver opened"
	case SourceAbsent:
		return n.Source + ": no device or driver on this machine"
	case SourceFailed:
		return n.Source + ": driver cannot be read"
	case DeviceFound:
		return dev + " found"
	case DeviceUp:
		return dev + " answers again"
	case DeviceDown:
		return dev + " does not answer"
	case DevicePartial:
		if n.Err == nil {
			return dev + " answers everything again"
		}
		return dev + " does not answer some calls"
	case PartitionGone:
		return dev + " was removed"
	case Paused:
		return fmt.Sprintf("paused for %s: all drivers are released", n.For)
	case Resumed:
		return "resumed"
	case EventsFrom:
		return n.Source + ": events come from " + n.Text
	case EventsFailed:
		return n.Source + ": events cannot be read"
	case StateNone:
		return "no state directory: event counts start at 0"
	case StateReset:
		return "the state file cannot be used: event counts start over"
	case StateWrite:
		if n.Err == nil {
			return "the state file is written again"
		}
		return "the state file cannot be written"
	case Attribution:
		if n.Text == string(workload.OK) {
			return "workloads by " + n.Source + " are known"
		}
		return "workloads by " + n.Source + " are not all known: " + strings.ReplaceAll(n.Text, "_", " ")
	}
	return string(n.Kind)
}
