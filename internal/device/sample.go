package device

// Sample is everything one device reported at one moment, in SI base units (bytes, watts,
// joules, hertz, seconds, degrees Celsius) and ratios from 0 to 1. Counters are cumulative
// since the device's driver was loaded. A slice is never modified once it is part of a
// Sample, so a Sample may be copied by assignment.
//
// Physical sensors belong to the physical device; a partition has its own memory, profiling
// and processes.
type Sample struct {
	ID    ID    `json:"id"`
	Info  Info  `json:"info,omitzero"`
	Modes Modes `json:"modes,omitzero"`

	Utilization     Engines `json:"utilization,omitzero"`
	UtilizationPeak Engines `json:"utilization_peak,omitzero"` // over the last minute
	Memory          Memory  `json:"memory,omitzero"`

	Temperatures []Temperature `json:"temperatures,omitempty"`
	Powers       []Power       `json:"power,omitempty"`
	Energy       Value         `json:"energy_joules,omitzero"` // counter
	Clocks       []Clock       `json:"clocks,omitempty"`
	Voltages     []Voltage     `json:"voltages,omitempty"`
	Current      Value         `json:"current_amperes,omitzero"`
	Fans         []Fan         `json:"fans,omitempty"`

	PerformanceState Value          `json:"performance_state,omitzero"` // 0 is fastest
	Throttles        []Throttle     `json:"throttles,omitempty"`        // nil: the device does not report throttling
	ThrottleTimes    []ThrottleTime `json:"throttle_times,omitempty"`

	Profile       Profile        `json:"profile,omitzero"`
	Interconnects []Interconnect `json:"interconnects,omitempty"`
	PCIe          PCIe           `json:"pcie,omitzero"`

	ECC            []ECC          `json:"ecc,omitempty"`
	SRAMThreshold  Value          `json:"sram_threshold_exceeded,omitzero"` // flag: too many uncorrectable errors in on-chip memory
	RowRemap       RowRemap       `json:"row_remap,omitzero"`
	PageRetirement PageRetirement `json:"page_retirement,omitzero"`
	RecoveryAction Value          `json:"recovery_action,omitzero"` // 0 none; codes as in NVML field 230
	Fabric         Fabric         `json:"fabric,omitzero"`
	Status         Value          `json:"status,omitzero"`    // the vendor's own status code, 0 is healthy
	Heartbeat      Value          `json:"heartbeat,omitzero"` // counter
	Resets         []ErrorCount   `json:"resets,omitempty"`   // by type, hard and soft; counters

	Runtime Runtime `json:"runtime,omitzero"`

	Processes []Process `json:"processes,omitempty"`

	// Slice is set on partitions only: how many of the device's slices the partition holds.
	Slice Slice `json:"slice,omitzero"`
	// Aliases are other names by which a scheduler may refer to the device or partition.
	// They are used for matching only and never exported, because serial numbers may be
	// among them.
	Aliases []string `json:"-"`
}

// Info does not change while the driver is loaded. An empty field is unknown.
type Info struct {
	Driver       string `json:"driver,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	NUMA         string `json:"numa,omitempty"` // node number; empty on a machine without NUMA
	VBIOS        string `json:"vbios,omitempty"`
	Firmware     string `json:"firmware,omitempty"`
}

// Modes are settings made by an administrator. Flags are 0 or 1; Compute is 0 shared, 1
// exclusive to a thread, 2 prohibited, 3 exclusive to a process.
type Modes struct {
	ECC         Value `json:"ecc,omitzero"`
	MIG         Value `json:"mig,omitzero"`
	Persistence Value `json:"persistence,omitzero"`
	Compute     Value `json:"compute,omitzero"`
}

// Engines holds duty cycles: the ratio of time during which an engine was busy. It does not
// tell how much of the engine's capacity was used.
type Engines struct {
	Compute Value `json:"compute,omitzero"` // at least one kernel ran
	Memory  Value `json:"memory,omitzero"`  // the memory controller was reading or writing
	Encoder Value `json:"encoder,omitzero"`
	Decoder Value `json:"decoder,omitzero"`
	JPEG    Value `json:"jpeg,omitzero"`
	OFA     Value `json:"ofa,omitzero"` // optical flow accelerator
}

// Memory is device memory in bytes. Used does not include Reserved.
type Memory struct {
	Used      Value `json:"used,omitzero"`
	Free      Value `json:"free,omitzero"`
	Reserved  Value `json:"reserved,omitzero"` // by the driver and firmware
	Total     Value `json:"total,omitzero"`
	BAR1Used  Value `json:"bar1_used,omitzero"` // the memory window that the host maps
	BAR1Total Value `json:"bar1_total,omitzero"`
}

// Temperature is one sensor, in degrees Celsius.
type Temperature struct {
	Sensor string           `json:"sensor"` // edge, hotspot, memory, ...
	Value  Value            `json:"value,omitzero"`
	Limits []TemperatureCap `json:"limits,omitempty"`
}

// TemperatureCap is what happens when a sensor gets too hot: the temperature (Limit) and
// the degrees left until then (Margin). Some drivers give only the margin.
type TemperatureCap struct {
	Event  string `json:"event"` // operating (end of the specified range), slowdown, shutdown
	Limit  Value  `json:"limit,omitzero"`
	Margin Value  `json:"margin,omitzero"`
}

// Power is what one part of the board draws and may draw, in watts.
type Power struct {
	Scope   string `json:"scope"` // gpu, module, memory
	Instant Value  `json:"instant,omitzero"`
	Average Value  `json:"average,omitzero"` // over the driver's window, 1 s on NVIDIA
	// Utilization is the ratio of what it draws to the most it may, of drivers that give
	// no watts.
	Utilization Value        `json:"utilization,omitzero"`
	Limits      []PowerLimit `json:"limits,omitempty"`
}

// Draw returns the best present reading of the power now.
func (p Power) Draw() Value { return p.Instant.Or(p.Average) }

// Enforced returns the limit in force.
func (p Power) Enforced() Value {
	for _, l := range p.Limits {
		if l.Type == LimitEnforced {
			return l.Watts
		}
	}
	return Value{}
}

// LimitEnforced is the type of the power limit in force, whoever set it.
const LimitEnforced = "enforced"

// PowerLimit is one limit, in watts.
type PowerLimit struct {
	Type  string `json:"type"` // enforced, requested, default, min, max
	Watts Value  `json:"watts,omitzero"`
}

// Voltage is one rail, in volts.
type Voltage struct {
	Rail  string `json:"rail"` // core, memory, soc, board, ...
	Volts Value  `json:"volts,omitzero"`
}

// Clock is one clock domain, in hertz.
type Clock struct {
	Type      string `json:"type"` // graphics, sm, memory, video, ...
	Frequency Value  `json:"frequency,omitzero"`
	Limit     Value  `json:"limit,omitzero"` // the highest the part can reach
}

// Fan is one fan.
type Fan struct {
	Index int   `json:"index"`
	Speed Value `json:"speed,omitzero"` // ratio of its full speed
	RPM   Value `json:"rpm,omitzero"`
}

// Throttle is one reason for which the device may lower its clocks, and whether it
// does so now.
type Throttle struct {
	Cause   string  `json:"cause"`
	Buckets Buckets `json:"buckets"`
	Active  bool    `json:"active"`
}

// Buckets is the set of classes a throttle cause belongs to.
type Buckets uint8

// The buckets, as the throttle contract of the metrics names them.
const (
	BucketPower Buckets = 1 << iota
	BucketThermal
	BucketSW
	BucketHW
)

// Throttled returns 1 if a cause of bucket b is active, 0 if none is, and absent if
// the device does not say.
func (s *Sample) Throttled(b Buckets) Value {
	if s.Throttles == nil {
		return Value{}
	}
	for _, t := range s.Throttles {
		if t.Active && t.Buckets&b != 0 {
			return Of(1)
		}
	}
	return Of(0)
}

// ThrottleTime is how long one cause has reduced the clocks.
type ThrottleTime struct {
	Cause   string `json:"cause"`
	Seconds Value  `json:"seconds,omitzero"` // counter
	// Detail marks a cause that is part of another cause, the sum of several, or neither
	// power nor thermal.
	Detail bool `json:"detail,omitempty"`
}

// Profile holds the hardware's activity counters as ratios from 0 to 1 since the last Read.
// For a partition, the ratios are relative to the partition.
type Profile struct {
	EngineActive Value  `json:"engine_active,omitzero"`
	SMActive     Value  `json:"sm_active,omitzero"`
	SMOccupancy  Value  `json:"sm_occupancy,omitzero"`
	DRAMActive   Value  `json:"dram_active,omitzero"`
	Pipes        []Pipe `json:"pipes,omitempty"`       // tensor, fp64, fp32, fp16
	PipeDetail   []Pipe `json:"pipe_detail,omitempty"` // components of tensor and fp64, and integer
}

// Pipe is one execution pipe of the compute units.
type Pipe struct {
	Name   string `json:"name"`
	Active Value  `json:"active,omitzero"`
}

// Interconnect aggregates all links of one kind.
type Interconnect struct {
	Type           string       `json:"type"` // pcie, nvlink, xgmi, ethernet, c2c
	TX             Value        `json:"tx_bytes,omitzero"`
	RX             Value        `json:"rx_bytes,omitzero"` // counters
	TXRate         Value        `json:"tx_bytes_per_second,omitzero"`
	RXRate         Value        `json:"rx_bytes_per_second,omitzero"`
	BandwidthLimit Value        `json:"bandwidth_limit,omitzero"` // bytes per second and direction, summed over the links that are up
	Errors         []ErrorCount `json:"errors,omitempty"`
	Links          []Link       `json:"links,omitempty"`
}

// Link is one link of an Interconnect.
type Link struct {
	Index  int          `json:"index"`
	Up     Value        `json:"up,omitzero"`
	TX     Value        `json:"tx_bytes,omitzero"`
	RX     Value        `json:"rx_bytes,omitzero"` // counters
	Errors []ErrorCount `json:"errors,omitempty"`
}

// ErrorCount is a counter of one kind of error.
type ErrorCount struct {
	Type  string `json:"type"`
	Count Value  `json:"count,omitzero"`
}

// PCIe is the state of the PCI Express link.
type PCIe struct {
	Generation    Value `json:"generation,omitzero"`
	GenerationMax Value `json:"generation_max,omitzero"`
	Width         Value `json:"width,omitzero"`
	WidthMax      Value `json:"width_max,omitzero"`
	Replays       Value `json:"replays,omitzero"` // counter
	// Errors are the link's error counters, by protocol layer.
	Errors []ErrorCount `json:"errors,omitempty"`
}

// ECC is a counter of memory errors.
type ECC struct {
	Type     string `json:"type"`               // corrected, uncorrected, deferred
	Lifetime string `json:"lifetime"`           // volatile: since driver load; aggregate: since manufacture
	Location string `json:"location,omitempty"` // empty: all locations
	Count    Value  `json:"count,omitzero"`
}

// RowRemap is the state of the spare HBM rows that replace faulty ones.
type RowRemap struct {
	Corrected   Value           `json:"corrected,omitzero"`   // rows, counter
	Uncorrected Value           `json:"uncorrected,omitzero"` // rows, counter
	Pending     Value           `json:"pending,omitzero"`     // flag: a reset completes the remapping
	Failure     Value           `json:"failure,omitzero"`     // flag: spare rows ran out
	Banks       []RowRemapBanks `json:"banks,omitempty"`
}

// RowRemapBanks counts the memory banks with a given share of spare rows left.
type RowRemapBanks struct {
	Spare string `json:"spare"` // max, high, partial, low, none
	Banks Value  `json:"banks,omitzero"`
}

// PageRetirement is the older mechanism for taking faulty memory out of use.
type PageRetirement struct {
	Corrected   Value `json:"corrected,omitzero"`   // pages retired for repeated single-bit errors; counter
	Uncorrected Value `json:"uncorrected,omitzero"` // pages retired for double-bit errors; counter
	Pending     Value `json:"pending,omitzero"`     // flag
	Failure     Value `json:"failure,omitzero"`     // flag: a page could not be retired
}

// Fabric is the registration of the device with its switch fabric.
type Fabric struct {
	State  Value `json:"state,omitzero"`  // 1 not started, 2 in progress, 3 completed
	Health Value `json:"health,omitzero"` // 1 healthy, 2 unhealthy, 3 limited capacity
}

// Runtime is what the vendor's runtime reports about the programs it runs on the device.
// Most vendors report nothing.
type Runtime struct {
	Queue      Value        `json:"queue,omitzero"`        // programs waiting
	Idle       Value        `json:"idle_seconds,omitzero"` // since the last program ended
	Operations Value        `json:"operations,omitzero"`   // floating-point operations; counter
	Executions []ErrorCount `json:"executions,omitempty"`  // finished programs by result: success, timeout, ...; counters
	Latencies  []Latency    `json:"latencies,omitempty"`
}

// Latency is a histogram of durations since the runtime started.
type Latency struct {
	Operation string    `json:"operation"` // program, host_to_device, device_to_host, ...
	Detail    string    `json:"detail,omitempty"`
	Count     uint64    `json:"count"`
	Seconds   float64   `json:"seconds"`          // sum of all durations
	Bounds    []float64 `json:"bounds,omitempty"` // upper bounds in seconds, ascending
	Counts    []uint64  `json:"counts,omitempty"` // one more than Bounds
}

// Process is one process that uses the device.
type Process struct {
	PID         uint32 `json:"pid"`  // in the PID namespace of the driver's answer
	Name        string `json:"name"` // of the executable
	Type        string `json:"type"` // compute, graphics, mps
	MemoryUsed  Value  `json:"memory_used,omitzero"`
	Utilization Value  `json:"utilization,omitzero"` // ratio of time during which its kernels ran
	Occupancy   Value  `json:"occupancy,omitzero"`   // ratio of the compute units that its kernels occupy now
}

// MemoryUtilization returns the ratio of used to total memory.
func (s *Sample) MemoryUtilization() Value { return s.Memory.Used.Ratio(s.Memory.Total) }

// Slice is the share of its device that a partition holds: Held of Of slices.
type Slice struct {
	Held int `json:"held"`
	Of   int `json:"of"`
}

// Part returns the share as a fraction of 1, or 0 if it is unknown.
func (s Slice) Part() float64 {
	if s.Of <= 0 {
		return 0
	}
	return float64(s.Held) / float64(s.Of)
}
