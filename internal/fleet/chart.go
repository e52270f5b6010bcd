package fleet

import (
	"strings"
)

// Chart plots the fleet, a device or a workload over time.
type Chart struct {
	Unit  string // ratio, bytes, watts, celsius, gpus, hertz
	Lines []Line
	// Wide charts cost as many values as the fleet has devices for each point.
	Wide bool
}

// Line is one query of a chart. It draws one line with Name, or one line per value of the label
// By.
type Line struct {
	Name string
	By   string // label
	// expr builds the query from the matchers of the chart's subject.
	expr func(matchers ...string) string
}

// Query returns the query of a line for the series that the matchers select.
func (l Line) Query(matchers ...string) string { return l.expr(matchers...) }

// most queries the highest value of a series; for a single device that is its value.
func most(series string, fixed ...string) func(...string) string {
	return func(matchers ...string) string {
		return "max(" + Select(series, nil, append(fixed[:len(fixed):len(fixed)], matchers...)...) + ")"
	}
}

// total queries the sum over devices or workloads, each counted once.
func total(series string) func(...string) string {
	return func(matchers ...string) string { return "sum" + Once(Select(series, nil, matchers...)) }
}

// each draws one line per value of a label.
func each(f, label, series string, fixed ...string) Line {
	return Line{By: label, expr: func(matchers ...string) string {
		return f + " by (" + label + ") " + Once(Select(series, nil, append(fixed[:len(fixed):len(fixed)], matchers...)...))
	}}
}

// byUUID returns an expression with one value per device. Unlike perDevice it counts a device that moved, or
// that has two senders, once; devices of earlier agents whose IDs collide (see Global) count once, too.
func byUUID(series string) string { return "max by (" + LabelUUID + ") (" + series + ")" }

// perDeviceTotal aggregates over devices, each counted once.
func perDeviceTotal(f, series string) func(...string) string {
	return func(matchers ...string) string { return f + "(" + byUUID(Select(series, nil, matchers...)) + ")" }
}

// Charts has all charts by name.
var Charts = map[string]Chart{
	"fleet-use": {Unit: "gpus", Wide: true, Lines: []Line{
		{Name: "Held", expr: func(matchers ...string) string {
			return "count(" + byUUID(Select(SeriesAllocation, nil, matchers...)) + " > 0)"
		}},
		{Name: "Busy", expr: perDeviceTotal("sum", SeriesUtilization)},
	}},
	"fleet-power": {Unit: "watts", Wide: true, Lines: []Line{{Name: "Power", expr: perDeviceTotal("sum", SeriesPower)}}},

	"gpu-utilization": {Unit: "ratio", Lines: []Line{
		{Name: "Busy", expr: most(SeriesUtilization)},
		{Name: "SM active", expr: most(SeriesSMActive)},
		{Name: "Tensor pipe", expr: most(SeriesPipeActive, Equals(LabelPipe, "tensor"))},
		{Name: "DRAM", expr: most(SeriesDRAMActive)},
	}},
	"gpu-memory":      {Unit: "bytes", Lines: []Line{{Name: "Used", expr: most(SeriesMemoryUsed)}, {Name: "Total", expr: most(SeriesMemoryTotal)}}},
	"gpu-power":       {Unit: "watts", Lines: []Line{{Name: "Drawn", expr: most(SeriesPower)}, {Name: "Limit", expr: most(SeriesPowerLimit)}}},
	"gpu-temperature": {Unit: "celsius", Lines: []Line{each("max", LabelSensor, SeriesSensorTemperature)}},
	"gpu-clock":       {Unit: "hertz", Lines: []Line{each("max", LabelClockType, SeriesClockDomain, LabelClockType+`=~"graphics|sm|memory|soc|ai|fabric"`)}},
	"gpu-owners":      {Unit: "ratio", Lines: []Line{each("sum", LabelWorkload, SeriesWorkloadUtilization, LabelKind+`!="`+KindUnallocated+`"`)}},

	"workload-gpus":   {Unit: "gpus", Lines: []Line{{Name: "Held", expr: total(SeriesAllocation)}, {Name: "Busy", expr: total(SeriesWorkloadUtilization)}}},
	"workload-memory": {Unit: "bytes", Lines: []Line{{Name: "Used", expr: total(SeriesWorkloadMemory)}}},
	"workload-power":  {Unit: "watts", Lines: []Line{{Name: "Drawn", expr: total(SeriesWorkloadPower)}}},
}

// Sole returns a selector of device series restricted to devices with a sole holder, which makes
// devices comparable.
func Sole(series string) string {
	return Select(series, nil, LabelWorkload+`!=""`, LabelKind+`!~"`+strings.Join([]string{KindUnallocated, KindUnattributed, KindOther}, "|")+`"`)
}
