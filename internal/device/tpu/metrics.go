//go:build linux

package tpu

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Metrics of the service.
const (
	metricTotal     = "tpu.runtime.hbm.memory.total.bytes"       // per device
	metricUsed      = "tpu.runtime.hbm.memory.usage.bytes"       // per device
	metricDuty      = "tpu.runtime.tensorcore.dutycycle.percent" // per chip
	metricBandwidth = "tpu.runtime.hbm.utilization.percent"      // per device
	metricIdle      = "tpu.runtime.tensorcore.idle_duration.seconds"
	metricQueue     = "hlo.queue.size.gauge"
	metricPrograms  = "hlo.execution.timing.distribution.microseconds"
)

// metrics are requested in this order. Memory comes first because its device ids identify
// the devices of the other metrics.
var metrics = append([]string{
	metricTotal, metricUsed, metricDuty, metricBandwidth, metricIdle, metricQueue, metricPrograms,
}, slices.Sorted(maps.Keys(transfers))...)

// basicMetrics are those of a libtpu that cannot list its metrics.
var basicMetrics = metrics[:3]

// transfers maps the latency metrics of a multi-slice process to operation names. All are
// in microseconds and per process, not per chip.
var transfers = map[string]string{
	megascale("dcn_transfer_latencies"):            "dcn_transfer",
	megascale("dcn_inbound_transfer_latencies"):    "dcn_inbound_transfer",
	megascale("host_to_device_transfer_latencies"): "host_to_device",
	megascale("device_to_host_transfer_latencies"): "device_to_host",
	megascale("collective_end_to_end_latencies"):   "collective",
	megascale("mxla_compute_latencies"):            "host_compute",
	megascale("grpc_tcp_min_rtt"):                  "network_round_trip",
}

func megascale(name string) string {
	return "megascale." + name + ".microsecond.cumulative.distribution"
}

const microsecond = 1e-6

// unknown returns the metric names that are not used, either because they are unknown or
// because a Sample has no field for them.
func unknown(supported []string) []string {
	var names []string
	for _, n := range supported {
		if !slices.Contains(metrics, n) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// values are the readings of one chip.
type values struct {
	duty      device.Value // ratio
	bandwidth device.Value // ratio of the memory's bandwidth
	tensor    device.Value // ratio of the TensorCore's peak; from the exporter only
	used      device.Value // bytes
	total     device.Value
	idle      device.Value // seconds
	queue     device.Value
	latencies []device.Latency
}

func (v values) fill(s *device.Sample) {
	s.Utilization.Compute = v.duty
	s.Utilization.Memory = v.bandwidth
	s.Memory.Used, s.Memory.Total = v.used, v.total
	if total, ok := v.total.Get(); ok {
		if used, ok := v.used.Get(); ok {
			s.Memory.Free = device.Of(total - used)
		}
	}
	if v.tensor.OK() {
		s.Profile.Pipes = []device.Pipe{{Name: "tensor", Active: v.tensor}}
	}
	s.Runtime = device.Runtime{Queue: v.queue, Idle: v.idle, Latencies: v.latencies}
}

// report is the answer of one process's runtime.
type report struct {
	chips     []values // of the process, in chip order
	latencies []device.Latency
	unknown   []string // metrics that the runtime has and that are not used
	asked     int      // number of metrics answered
}

// reporter assembles a report from answers.
type reporter struct {
	chips, perChip int
	memory         map[int64]int // chip of each device, according to the memory metrics
	report         report
}

func newReporter(chips, perChip int) *reporter {
	return &reporter{chips: chips, perChip: perChip, report: report{chips: make([]values, chips)}}
}

// add adds the entries of one metric.
func (r *reporter) add(name string, entries []entry) error {
	if op, ok := transfers[name]; ok {
		return r.addTransfers(op, entries)
	}
	if len(entries) == 0 {
		return nil
	}
	where, err := r.where(entries, name == metricQueue || name == metricPrograms)
	if err != nil {
		return err
	}
	if name == metricTotal || name == metricUsed && r.memory == nil {
		r.memory = where
	}
	if name == metricPrograms {
		return r.addPrograms(entries, where)
	}
	return r.addNumbers(name, entries, where)
}

// where returns the chip of each device. Devices are numbered over all machines of a slice,
// so only the order of their ids is meaningful here: it is that of the chips' files, as in
// Google's tools. A process owns its chips exclusively, so a wrong order could not
// attribute one workload's values to another.
func (r *reporter) where(entries []entry, ordinals bool) (map[int64]int, error) {
	var ids []int64
	for _, e := range entries {
		if !e.hasID && (r.chips != 1 || len(entries) != 1) { // a single device needs no id
			return nil, errors.New("an entry names no device")
		}
		ids = append(ids, e.id)
	}
	slices.Sort(ids)
	distinct := slices.Compact(slices.Clone(ids))
	if len(distinct) != len(ids) && !ordinals {
		return nil, errors.New("a device appears twice")
	}
	if where := place(distinct, r.chips, r.perChip); where != nil {
		return where, nil
	}
	if ordinals { // not every device has run a program
		where := map[int64]int{}
		for _, id := range distinct {
			if c, ok := r.memory[id]; ok {
				where[id] = c
			} else if id >= 0 && id < int64(r.chips*r.perChip) {
				where[id] = int(id) / r.perChip
			}
		}
		if len(where) == len(distinct) {
			return where, nil
		}
	}
	return nil, fmt.Errorf("%d devices are listed, but the process has %d chips open", len(distinct), r.chips)
}

// place returns the chip of each of ids, which are sorted: one id per chip, or one per
// device of each chip. It returns nil if neither fits.
func place[T comparable](ids []T, chips, perChip int) map[T]int {
	each := 1
	switch len(ids) {
	case chips:
	case chips * perChip:
		each = perChip
	default:
		return nil
	}
	where := make(map[T]int, len(ids))
	for i, id := range ids {
		where[id] = i / each
	}
	return where
}

// addNumbers adds a metric with one number per device.
func (r *reporter) addNumbers(name string, entries []entry, where map[int64]int) error {
	got := make([]device.Value, r.chips)
	for _, e := range entries {
		if !e.hasValue {
			return errors.New("a value is not a number")
		}
		v, err := convert(name, e.value)
		if err != nil {
			return err
		}
		c := &got[where[e.id]]
		*c = combine(name, *c, v)
	}
	for i, v := range got {
		c := &r.report.chips[i]
		switch name {
		case metricTotal:
			c.total = v
		case metricUsed:
			c.used = v
		case metricDuty:
			c.duty = v
		case metricBandwidth:
			c.bandwidth = v
		case metricIdle:
			c.idle = v
		case metricQueue:
			c.queue = v
		}
	}
	if name == metricBandwidth {
		for i := range r.report.chips { // the mean of its devices
			c := &r.report.chips[i]
			c.bandwidth = c.bandwidth.Div(float64(max(1, len(entries)/r.chips)))
		}
	}
	return nil
}

// combine joins the values of two devices of one chip. Memory and queued programs add up,
// as do bandwidths, whose mean is taken at the end. The chip is busy while any of its
// devices is, and idle since the last of them was busy.
func combine(name string, a, b device.Value) device.Value {
	x, first := a.Get()
	y, second := b.Get()
	switch {
	case !first:
		return b
	case !second:
		return a
	case name == metricDuty:
		return device.Of(max(x, y))
	case name == metricIdle:
		return device.Of(min(x, y))
	}
	return device.Of(x + y)
}

// convert returns v in the unit of a Sample, or an error if it is impossible.
func convert(name string, v float64) (device.Value, error) {
	limit := 1e15 // bytes
	switch {
	case strings.HasSuffix(name, "percent"):
		limit = 101 // some runtimes round up
	case name == metricIdle:
		limit = 1e9
	case name == metricQueue:
		limit = 1e9
	}
	if !(v >= 0 && v <= limit) { // false for NaN, too
		return device.Value{}, fmt.Errorf("a value of %g is impossible", v)
	}
	if limit == 101 {
		return device.Of(min(v, 100)).Div(100), nil // %
	}
	return device.Of(v), nil
}

// finish checks the metrics for consistency with each other.
func (r *reporter) finish() (report, error) {
	var errs []error
	for i := range r.report.chips {
		c := &r.report.chips[i]
		used, a := c.used.Get()
		total, b := c.total.Get()
		if a && b && used > total {
			c.used, c.total = device.Value{}, device.Value{}
			errs = append(errs, fmt.Errorf("%g bytes used of %g", used, total))
		}
	}
	return r.report, errors.Join(errs...)
}

// maxLatencies bounds the number of histograms per chip or process.
const maxLatencies = 64

func (r *reporter) addPrograms(entries []entry, where map[int64]int) error {
	var errs []error
	for _, e := range entries {
		if e.dist == nil {
			return errors.New("a value is not a distribution")
		}
		l, err := e.dist.latency("program", e.detail, microsecond)
		c := &r.report.chips[where[e.id]]
		if err == nil && len(c.latencies) >= maxLatencies {
			err = errTooMany
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.latencies = merged(c.latencies, l)
	}
	for i := range r.report.chips {
		sortLatencies(r.report.chips[i].latencies)
	}
	return first(errs)
}

func (r *reporter) addTransfers(op string, entries []entry) error {
	var errs []error
	for _, e := range entries {
		if e.dist == nil {
			return errors.New("a value is not a distribution")
		}
		l, err := e.dist.latency(op, e.detail, microsecond)
		if err == nil && len(r.report.latencies) >= maxLatencies {
			err = errTooMany
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.report.latencies = merged(r.report.latencies, l)
	}
	sortLatencies(r.report.latencies)
	return first(errs)
}

func sortLatencies(list []device.Latency) {
	slices.SortStableFunc(list, func(a, b device.Latency) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Detail, b.Detail))
	})
}

// first returns the first of errs, or nil. Repeating the same error adds nothing.
func first(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}
