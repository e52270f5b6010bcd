package node

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Tick is the state of the machine at one moment.
type Tick struct {
	Time      time.Time `json:"time"`
	Host      string    `json:"host"`
	Simulated bool      `json:"simulated,omitempty"`
	// Resource are more attributes of the machine, such as its cluster.
	Resource map[string]string `json:"resource,omitempty"`
	Paused   bool              `json:"paused,omitempty"` // the drivers are released, see View.Pause
	Readings []Reading         `json:"devices"`
	Sources  []SourceStatus    `json:"sources"`
	// Attribution is what is known, and what is missing, of who holds the devices.
	Attribution []workload.Status `json:"attribution,omitempty"`
	// Events are what happened since the tick before, at most 1,000. LostEvents is how
	// many there was no room for, or could not be read, since the View was made.
	Events     []device.Event `json:"events,omitempty"`
	LostEvents uint64         `json:"-"`
	// Hit are the workloads that each event is of: whose the process is, or who had the
	// device when it happened.
	Hit [][]workload.Workload `json:"-"`
	// Findings are what is wrong with the devices, the worst first. Changes, Episodes and
	// Tenures are what began and ended since the tick before.
	Findings []health.Finding `json:"findings,omitempty"`
	Changes  []health.Change  `json:"changes,omitempty"`
	Episodes []Episode        `json:"episodes,omitempty"`
	Tenures  []Tenure         `json:"tenures,omitempty"`
	// LostTicks is how many ticks slow subscribers have missed since the View was made.
	LostTicks uint64    `json:"-"`
	Started   time.Time `json:"-"` // when the View ticked first
}

// Reading is what is known of one device at a tick.
type Reading struct {
	device.Sample
	// Up: the device answered in time. If not, only the ID of the Sample is set.
	Up bool `json:"up"`
	// Problem says why it is not up, or what it could not answer.
	Problem string `json:"problem,omitempty"`
	// Lost: the driver says that it is gone. NeedsReset: it refuses it until it is reset.
	Lost       bool `json:"lost,omitempty"`
	NeedsReset bool `json:"needs_reset,omitempty"`
	// Since is when its counters began, as far as we have seen.
	Since time.Time `json:"since"`
	// XIDs are the errors its driver reported, by code. A partition's are its parent's.
	XIDs []XIDCount `json:"xids,omitempty"`
	// Busy is the compute utilization of a physical device, from 0 to 1: what the driver
	// says, or, where the driver does not say because the device is cut into partitions, the
	// activity of each partition times its part of the device, summed. It is absent if a
	// partition has no reading, and on partitions themselves.
	Busy device.Value `json:"busy,omitzero"`
	// Owner is the only workload that has the device or partition, nil if there is none
	// or several.
	Owner *workload.Workload `json:"owner,omitempty"`
	// Holders are all that have a part of a physical device, or had one until lately.
	// Together with the rest, which is one of them, they are the whole device.
	Holders []Holder `json:"holders,omitempty"`
}

// SourceStatus is what is known of one vendor's reader.
type SourceStatus struct {
	Name    string    `json:"name"`
	State   string    `json:"state"` // open, absent (SourceAbsentState), failed, opening
	Problem string    `json:"problem,omitempty"`
	Errors  uint64    `json:"errors"` // reads and discoveries that failed or were late, since Since
	Since   time.Time `json:"-"`
}

// SourceAbsentState is the State of a reader whose vendor has no device here.
const SourceAbsentState = "absent"
