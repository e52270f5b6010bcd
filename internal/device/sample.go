package device

// Sample is everything one device said at one moment, in SI base units (bytes,
// watts, joules, hertz, seconds, degrees Celsius) and ratios of 0 to 1. Counters are
// cumulative since the device's driver was loaded. Slices are never changed after
// they were put into a Sample, so a Sample may be copied by assignment.
//
// Physical sensors are on the physical device; a partition has its own memory,
// profiling and processes.
type Sample struct {
	ID    ID    `json:"id"`
	Info  Info  `json:"info,omitzero"`
	Modes Modes `json:"modes,omitzero"`

	Utilization     Engines `json:"utilization,omitzero"`
	UtilizationPeak Engines `json:"utilization_peak,omitzero"` // of the last minute
	Memory          Memory  `json:"memory,omitzero"`

	Temperatures []Temperature `json:"temperatures,omitempty"`
	Powers       []Power       `json:"power,omitempty"`
	Energy       Value         `json:"energy_joules,omitzero"` // counter
	Clocks       []Clock       `json:"clocks,omitempty"`
	Voltages     []Voltage     `json:"voltages,omitempty"`
	Current      Value         `json:"current_amperes,omitzero"`
	Fans         []Fan         `json:"fans,omitempty"`

	PerformanceState Value          `json:"performance_state,omitzero"` // 0 is fastest
	Throttles        []Throttle     `json:"throttles,omitempty"`        // nil: the device does not say
	ThrottleTimes    []ThrottleTime `json:"throttle_times,omitempty"`

	Profile       Profile        `json:"profile,omitzero"`
	Interconnects []Interconnect `json:"interconnects,omitempty"`
	PCIe          PCIe           `json:"pcie,omitzero"`

	ECC            []ECC          `json:"ecc,omitempty"`
	SRAMThreshold  Value          `json:"sram_threshold_exceeded,omitzero"` // flag: too many uncorrectable errors in on-chip memory
	RowRemap       RowRemap       `json:"row_remap,omitzero"`
	PageRetirement PageRetirement `json:"page_retirement,omitzero"`
	RecoveryAction Value          `json:"recovery_action,omitzero"` // 0 none; the codes of NVML field 230
	Fabric         Fabric         `json:"fabric,omitzero"`
	Status         Value          `json:"status,omitzero"`    // the vendor's own status code, 0 is good
	Heartbeat      Value          `json:"heartbeat,omitzero"` // counter
	Resets         []ErrorCount   `json:"resets,omitempty"`   // of each type, hard and soft; counters

	Runtime Runtime `json:"runtime,omitzero"`

	Processes []Process `json:"processes,omitempty"`

	// Slice is of a partition: how many of the device's slices it has.
	Slice Slice `json:"slice,omitzero"`
	// Aliases are other names by which a scheduler may call the device or partition.
	// They are for finding it only, and never shown: serial numbers may be among them.
	Aliases []string `json:"-"`
}

// Info is what does not change while the driver is loaded. Empty is unknown.
type Info struct {
	Driver       string `json:"driver,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	NUMA         string `json:"numa,omitempty"` // node number; empty where the machine has none
	VBIOS        string `json:"vbios,omitempty"`
	Firmware     string `json:"firmware,omitempty"`
}

// Modes are settings an administrator makes. The flags are 0 or 1; Compute is 0
// shared, 1 exclusive to a thread, 2 prohibited, 3 exclusive to a process.
type Modes struct {
	ECC         Value `json:"ecc,omitzero"`
	MIG         Value `json:"mig,omitzero"`
	Persistence Value `json:"persistence,omitzero"`
	Compute     Value `json:"compute,omitzero"`
}

// Engines are ratios of time during which an engine was busy. They say nothing of
// how full it was.
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
	BAR1Used  Value `json:"bar1_used,omitzero"` // the window the host maps
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

// ThrottleTime is how long one cause held the clocks down.
type ThrottleTime struct {
	Cause   string `json:"cause"`
	Seconds Value  `json:"seconds,omitzero"` // counter
	// Detail: the cause is part of another one, a sum over some, or neither power nor heat.
	Detail bool `json:"detail,omitempty"`
}

// Profile is the hardware's own activity counting: ratios of 0 to 1 since the last
// Read, of the partition if the device is one.
type Profile struct {
	EngineActive Value  `json:"engine_active,omitzero"`
	SMActive     Value  `json:"sm_active,omitzero"`
	SMOccupancy  Value  `json:"sm_occupancy,omitzero"`
	DRAMActive   Value  `json:"dram_active,omitzero"`
	Pipes        []Pipe `json:"pipes,omitempty"`       // tensor, fp64, fp32, fp16
	PipeDetail   []Pipe `json:"pipe_detail,omitempty"` // what tensor and fp64 are made of, and integer
}

// Pipe is one execution pipe of the compute units.
type Pipe struct {
	Name   string `json:"name"`
	Active Value  `json:"active,omitzero"`
}

// Interconnect is all links of one kind together.
type Interconnect struct {
	Type           string       `json:"type"` // pcie, nvlink, xgmi, ethernet, c2c
	TX             Value        `json:"tx_bytes,omitzero"`
	RX             Value        `json:"rx_bytes,omitzero"` // counters
	TXRate         Value        `json:"tx_bytes_per_second,omitzero"`
	RXRate         Value        `json:"rx_bytes_per_second,omitzero"`
	BandwidthLimit Value        `json:"bandwidth_limit,omitzero"` // bytes per second and direction, of the links that are up
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
	// Errors are the link's error reporting, layer by layer.
	Errors []ErrorCount `json:"errors,omitempty"`
}

// ECC is a counter of memory errors.
type ECC struct {
	Type     string `json:"type"`               // corrected, uncorrected, deferred
	Lifetime string `json:"lifetime"`           // volatile: since driver load; aggregate: since manufacture
	Location string `json:"location,omitempty"` // empty: all together
	Count    Value  `json:"count,omitzero"`
}

// RowRemap is the state of the spare rows of HBM that replace broken ones.
type RowRemap struct {
	Corrected   Value           `json:"corrected,omitzero"`   // rows, counter
	Uncorrected Value           `json:"uncorrected,omitzero"` // rows, counter
	Pending     Value           `json:"pending,omitzero"`     // flag: a reset completes the remapping
	Failure     Value           `json:"failure,omitzero"`     // flag: spare rows ran out
	Banks       []RowRemapBanks `json:"banks,omitempty"`
}

// RowRemapBanks counts the memory banks that have a given amount of spare rows left.
type RowRemapBanks struct {
	Spare string `json:"spare"` // max, high, partial, low, none
	Banks Value  `json:"banks,omitzero"`
}

// PageRetirement is the older way of taking broken memory out of use.
type PageRetirement struct {
	Corrected   Value `json:"corrected,omitzero"`   // pages, retired for repeated single-bit errors; counter
	Uncorrected Value `json:"uncorrected,omitzero"` // pages, retired for double-bit errors; counter
	Pending     Value `json:"pending,omitzero"`     // flag
	Failure     Value `json:"failure,omitzero"`     // flag: a page could not be taken out of use
}

// Fabric is the registration of the device with its switch fabric.
type Fabric struct {
	State  Value `json:"state,omitzero"`  // 1 not started, 2 in progress, 3 completed
	Health Value `json:"health,omitzero"` // 1 healthy, 2 unhealthy, 3 limited capacity
}

// Runtime is what the vendor's runtime says of the programs that it runs on the device,
// of those that do.
type Runtime struct {
	Queue      Value        `json:"queue,omitzero"`        // programs that wait
	Idle       Value        `json:"idle_seconds,omitzero"` // since the last program ended
	Operations Value        `json:"operations,omitzero"`   // of floating point; counter
	Executions []ErrorCount `json:"executions,omitempty"`  // programs that ended, by result: success, timeout, ...; counters
	Latencies  []Latency    `json:"latencies,omitempty"`
}

// Latency is how long something took since the runtime began, as a histogram.
type Latency struct {
	Operation string    `json:"operation"` // program, host_to_device, device_to_host, ...
	Detail    string    `json:"detail,omitempty"`
	Count     uint64    `json:"count"`
	Seconds   float64   `json:"seconds"`          // all together
	Bounds    []float64 `json:"bounds,omitempty"` // upper ones, in seconds, rising
	Counts    []uint64  `json:"counts,omitempty"` // one more than Bounds
}

// Process is one process on the device.
type Process struct {
	PID         uint32 `json:"pid"`  // in the pid namespace of the driver's answer
	Name        string `json:"name"` // of the executable
	Type        string `json:"type"` // compute, graphics, mps
	MemoryUsed  Value  `json:"memory_used,omitzero"`
	Utilization Value  `json:"utilization,omitzero"` // ratio of time its kernels ran
	Occupancy   Value  `json:"occupancy,omitzero"`   // ratio of the compute units that its kernels are on now
}

// MemoryUtilization returns used over total memory.
func (s *Sample) MemoryUtilization() Value { return s.Memory.Used.Ratio(s.Memory.Total) }

// Slice is how much of its device a partition is.
type Slice struct {
	Held int `json:"held"`
	Of   int `json:"of"`
}

// Part returns the slice as a part of 1, 0 if it is not known.
func (s Slice) Part() float64 {
	if s.Of <= 0 {
		return 0
	}
	return float64(s.Held) / float64(s.Of)
}
