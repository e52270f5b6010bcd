//go:build linux

package neuron

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// report is one line of neuron-monitor. It is immutable.
type report struct {
	period    float64      // seconds
	perDevice int          // logical cores per device as the runtime counts them; 0: not reported
	memory    device.Value // bytes per device
	runtimes  []runtime
	// complete: every runtime reported which cores it uses, so all other cores are idle.
	complete bool
	ecc      map[int]hardwareCounters // by device
}

// runtime is one process that uses the devices.
type runtime struct {
	pid    uint32
	cores  map[int]usage // by core number over all devices
	memory map[int]device.Value
}

// usage is the utilization of a core, from 0 to 1. A logical core may consist of several
// physical ones.
type usage struct {
	all   float64
	parts []float64
}

type hardwareCounters struct {
	Index         int      `json:"neuron_device_index"`
	MemCorrected  *float64 `json:"mem_ecc_corrected"`
	SRAMCorrected *float64 `json:"sram_ecc_corrected"`
}

// Upper bounds on what is taken from a line.
const (
	maxRuntimes = 1024
	maxNumber   = 4096 // of cores and devices
)

// group holds the fields that every group of values has: its error, and the period that it
// covers.
type group struct {
	Error  string  `json:"error"`
	Period float64 `json:"period"`
}

// parseReport parses a line. A group that is broken or reports an error affects no other;
// what was parsed is returned along with the error. The text of a group's error is not
// included, because it may be long or different each time.
func parseReport(line []byte) (*report, error) {
	var top struct {
		Runtimes []struct {
			PID    json.Number                `json:"pid"`
			Error  string                     `json:"error"`
			Report map[string]json.RawMessage `json:"report"`
		} `json:"neuron_runtime_data"`
		System   map[string]json.RawMessage `json:"system_data"`
		Hardware json.RawMessage            `json:"neuron_hardware_info"`
	}
	if err := json.Unmarshal(line, &top); err != nil {
		return nil, errors.New("the line is not from neuron-monitor")
	}
	r := &report{complete: true}
	var errs []error
	fail := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	if len(top.Runtimes) > maxRuntimes {
		fail("neuron_runtime_data", fmt.Errorf("too many runtimes: %d", len(top.Runtimes)))
		top.Runtimes, r.complete = top.Runtimes[:maxRuntimes], false
	}
	fail("neuron_hardware_info", r.parseHardware(top.Hardware))
	for _, t := range top.Runtimes {
		pid, err := strconv.ParseUint(t.PID.String(), 10, 32)
		if err != nil || t.Error != "" {
			r.complete = false
			fail("neuron_runtime_data", errors.New("a runtime has an error"))
			continue
		}
		rt := runtime{pid: uint32(pid)}
		if err := rt.parseCounters(r, t.Report["neuroncore_counters"]); err != nil {
			r.complete = false
			fail("neuroncore_counters", err)
		}
		fail("memory_used", rt.parseMemory(t.Report["memory_used"]))
		r.runtimes = append(r.runtimes, rt)
	}
	fail("neuron_hw_counters", r.parseECC(top.System["neuron_hw_counters"]))
	return r, errors.Join(compact(errs)...)
}

// compact drops duplicates: a thousand runtimes may report the same error.
func compact(errs []error) []error {
	seen := map[string]bool{}
	return slices.DeleteFunc(errs, func(err error) bool {
		twice := seen[err.Error()]
		seen[err.Error()] = true
		return twice
	})
}

var (
	errGroup    = errors.New("the group reports an error")
	errMissing  = errors.New("no values")
	errNonsense = errors.New("implausible values")
)

// decode decodes one group into v, which embeds group. A missing group leaves v unchanged.
func decode(raw json.RawMessage, v any, g *group) error {
	if missing(raw) {
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return errNonsense
	}
	if g.Error != "" {
		return errGroup
	}
	return nil
}

func missing(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func (r *report) parseHardware(raw json.RawMessage) error {
	var h struct {
		group
		PerDevice int     `json:"neuroncore_per_device_count"`
		Memory    float64 `json:"neuron_device_memory_size"`
	}
	if err := decode(raw, &h, &h.group); err != nil {
		return err
	}
	if h.PerDevice < 0 || h.PerDevice > maxCores || !(h.Memory >= 0 && h.Memory < 1e15) {
		return errNonsense
	}
	r.perDevice = h.PerDevice
	if h.Memory > 0 {
		r.memory = device.Of(h.Memory) // bytes
	}
	return nil
}

func (rt *runtime) parseCounters(r *report, raw json.RawMessage) error {
	type core struct {
		Utilization *float64 `json:"neuroncore_utilization"` // %
	}
	var c struct {
		group
		Cores map[string]struct {
			core
			Physical map[string]core `json:"v3d"`
		} `json:"neuroncores_in_use"`
	}
	if err := decode(raw, &c, &c.group); err != nil {
		return err
	}
	if missing(raw) { // neuron-monitor is configured not to report them, or has no data of the runtime
		return errMissing
	}
	if c.Period > 0 && c.Period < 3600 {
		r.period = max(r.period, c.Period)
	}
	rt.cores = map[int]usage{}
	for name, v := range c.Cores {
		n, ok := number(name)
		all, sane := ratio(v.Utilization)
		if !ok || !sane {
			rt.cores = nil
			return errNonsense
		}
		u := usage{all: all}
		for _, key := range slices.SortedFunc(maps.Keys(v.Physical), byNumber) {
			part, sane := ratio(v.Physical[key].Utilization)
			if !sane {
				rt.cores = nil
				return errNonsense
			}
			u.parts = append(u.parts, part)
		}
		rt.cores[n] = u
	}
	return nil
}

// byNumber orders nc_v3.2 before nc_v3.10.
func byNumber(a, b string) int {
	x, _ := number(a[strings.LastIndexByte(a, '.')+1:])
	y, _ := number(b[strings.LastIndexByte(b, '.')+1:])
	return x - y
}

func number(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n < maxNumber
}

// ratio converts a percentage to a ratio. Some values are slightly above 100.
func ratio(v *float64) (float64, bool) {
	if v == nil || math.IsNaN(*v) || *v < 0 || *v > 110 {
		return 0, false
	}
	return min(*v, 100) / 100, true
}

func (rt *runtime) parseMemory(raw json.RawMessage) error {
	var m struct {
		group
		Used struct {
			Breakdown struct {
				Cores map[string]map[string]float64 `json:"neuroncore_memory_usage"`
			} `json:"usage_breakdown"`
		} `json:"neuron_runtime_used_bytes"`
	}
	if err := decode(raw, &m, &m.group); err != nil {
		return err
	}
	rt.memory = map[int]device.Value{}
	for name, kinds := range m.Used.Breakdown.Cores {
		n, ok := number(name)
		sum := 0.0
		for _, v := range kinds {
			ok = ok && v >= 0
			sum += v
		}
		if !ok || !(sum < 1e15) {
			rt.memory = nil
			return errNonsense
		}
		rt.memory[n] = device.Of(sum) // bytes
	}
	return nil
}

func (r *report) parseECC(raw json.RawMessage) error {
	var c struct {
		group
		Devices []hardwareCounters `json:"neuron_devices"`
	}
	if err := decode(raw, &c, &c.group); err != nil {
		return err
	}
	r.ecc = map[int]hardwareCounters{}
	for _, d := range c.Devices {
		for _, v := range []*float64{d.MemCorrected, d.SRAMCorrected} {
			if v != nil && !(*v >= 0 && *v < 1e18) || d.Index < 0 || d.Index >= maxNumber {
				r.ecc = nil
				return errNonsense
			}
		}
		r.ecc[d.Index] = d
	}
	return nil
}

// corrected returns the corrected errors of a device, which the driver does not provide.
func (r *report) corrected(index int) []device.ECC {
	value := func(v *float64) device.Value {
		if v == nil {
			return device.Value{}
		}
		return device.Of(*v)
	}
	c := r.ecc[index]
	return eccOf("corrected", value(c.MemCorrected), value(c.SRAMCorrected), device.Value{})
}

// logical returns the number of the logical core that the physical core at place belongs
// to, its position within it, and the number of physical cores in it. The runtime may count
// several physical cores as one.
func logical(index, place, of, perDevice int) (core, part, parts int) {
	if perDevice <= 0 || perDevice >= of || of%perDevice != 0 {
		return index*of + place, 0, 1
	}
	parts = of / perDevice
	return index*perDevice + place/parts, place % parts, parts
}

// utilization returns the utilization of one core, from 0 to 1. A core that no runtime uses
// is idle if all runtimes reported which cores they use.
func (r *report) utilization(index, place, of int) device.Value {
	n, part, parts := logical(index, place, of, r.perDevice)
	sum, used := 0.0, false
	for _, rt := range r.runtimes {
		u, ok := rt.cores[n]
		if !ok {
			continue
		}
		used = true
		if parts > 1 && len(u.parts) == parts {
			sum += u.parts[part]
		} else {
			sum += u.all
		}
	}
	if !used && !r.complete {
		return device.Value{}
	}
	return device.Of(min(sum, 1))
}

// on reports whether the runtime uses a device, or one of its cores, and how much memory it
// holds there. The memory of a logical core is divided among its physical cores.
func (rt runtime) on(index int, core *corePlace, perDevice int) (memory device.Value, ok bool) {
	if core != nil {
		n, _, parts := logical(index, core.place, core.of, perDevice)
		_, ok = rt.cores[n]
		memory = rt.memory[n]
		return memory.Div(float64(parts)), ok
	}
	if perDevice <= 0 {
		return device.Value{}, false // the mapping of cores to devices is unknown
	}
	sum := 0.0
	for n := index * perDevice; n < (index+1)*perDevice; n++ {
		_, uses := rt.cores[n]
		v, has := rt.memory[n].Get()
		ok = ok || uses || has && v > 0
		if has {
			sum += v
			memory = device.Of(sum)
		}
	}
	return memory, ok
}
