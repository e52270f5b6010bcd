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
	// Resource are additional attributes of the machine, such as its cluster.
	Resource map[string]string `json:"resource,omitempty"`
	Paused   bool              `json:"paused,omitempty"` // the drivers are released; see View.Pause
	Readings []Reading         `json:"devices"`
	Sources  []SourceStatus    `json:"sources"`
	// Attribution is the status of each workload source: what is known about the holders,
	// and what is missing.
	Attribution []workload.Status `json:"attribution,omitempty"`
	// Events are the events since the previous tick, at most 1,000. LostEvents counts the
	// events dropped for lack of room or not readable, since the View was created.
	Events     []device.Event `json:"events,omitempty"`
	LostEvents uint64         `json:"-"`
	// Hit are the workloads affected by each event: the owner of the process, or the
	// holders of the device at that time.
	Hit [][]workload.Workload `json:"-"`
	// Findings are what is wrong with the devices, most severe first. Changes, Episodes and
	// Tenures are what began and ended since the previous tick.
	Findings []health.Finding `json:"findings,omitempty"`
	Changes  []health.Change  `json:"changes,omitempty"`
	Episodes []Episode        `json:"episodes,omitempty"`
	Tenures  []Tenure         `json:"tenures,omitempty"`
	// LostTicks is how many ticks slow subscribers have lost since the View was created.
	LostTicks uint64    `json:"-"`
	Started   time.Time `json:"-"` // time of the View's first tick
}

// Reading is what is known about one device at a tick.
type Reading struct {
	device.Sample
	// Up: the device answered in time. Otherwise only the ID of the Sample is set.
	Up bool `json:"up"`
	// Late: the device is busy with a slow read that outlasts the interval. The values are those
	// of the previous reading.
	Late bool `json:"late,omitempty"`
	// Problem says why the device is not up, or what could not be read.
	Problem string `json:"problem,omitempty"`
	// Lost: the driver reports the device as gone. NeedsReset: the driver rejects calls to
	// the device until it is reset.
	Lost       bool `json:"lost,omitempty"`
	NeedsReset bool `json:"needs_reset,omitempty"`
	// Since is when the device's counters started, as far as observed.
	Since time.Time `json:"since"`
	// Jumped: the energy counter continues at another level than before, and the difference
	// is no use of energy.
	Jumped bool `json:"-"`
	// XIDs are the errors that the driver reported, by code. A partition's are counted on
	// its parent.
	XIDs []XIDCount `json:"xids,omitempty"`
	// Busy is the compute utilization of a physical device, from 0 to 1, as reported by the
	// driver. If the driver does not report it because the device is partitioned, Busy is
	// the sum of each partition's activity times its fraction of the device. It is absent
	// if a partition has no reading, and on partitions themselves.
	Busy device.Value `json:"busy,omitzero"`
	// Owner is the sole holder of the device or partition, nil if there is none or several.
	Owner *workload.Workload `json:"owner,omitempty"`
	// Holders are all workloads that hold a share of a physical device, or did until
	// recently. Together with the unallocated rest, which is one of them, they make up the
	// whole device.
	Holders []Holder `json:"holders,omitempty"`
}

// SourceStatus is the state of one vendor's reader.
type SourceStatus struct {
	Name    string `json:"name"`
	State   string `json:"state"` // open, absent (SourceAbsentState), failed, opening
	Problem string `json:"problem,omitempty"`
	Errors  uint64 `json:"errors"` // failed or late reads and discoveries since Since
	// Rejected is how many readings of counters were not believed since Since; see device.Guard.
	Rejected uint64    `json:"rejected,omitempty"`
	Since    time.Time `json:"-"`
}

// SourceAbsentState is the State of a reader whose vendor has no device on this machine.
const SourceAbsentState = "absent"
