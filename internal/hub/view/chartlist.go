package view

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
)

// chart plots the fleet, a device or a workload over time.
type chart struct {
	Unit  string // ratio, bytes, watts, celsius, gpus, hertz, seconds, wait (seconds, of hours and days), requests, tokens (per second)
	Lines []line
	// Wide charts cost as many values as the fleet has devices for each point.
	Wide bool
}

// line is one query of a chart. It draws one line with Name, or one line per value of the label
// By.
type line struct {
	Name string
	By   string // label
	// expr builds the query from the matchers of the chart's subject.
	expr func(matchers ...string) string
	// over builds it for rates over a window, instead of expr.
	over func(window time.Duration, matchers ...string) string
}

// query returns the query of a line for the series that the matchers select, of a chart with this step.
func (l line) query(step time.Duration, matchers ...string) string {
	if l.over != nil {
		return l.over(max(step, chartWindow), matchers...)
	}
	return l.expr(matchers...)
}

// most queries the highest value of a series; for a single device that is its value.
func most(series string, fixed ...string) func(...string) string {
	return func(matchers ...string) string {
		return "max(" + fleet.Select(series, nil, append(fixed[:len(fixed):len(fixed)], matchers...)...) + ")"
	}
}

// total queries the sum over devices or workloads, each counted once.
func total(series string) func(...string) string {
	return func(matchers ...string) string { return "sum" + fleet.Once(fleet.Select(series, nil, matchers...)) }
}

// each draws one line per value of a label.
func each(f, label, series string, fixed ...string) line {
	return line{By: label, expr: func(matchers ...string) string {
		return f + " by (" + label + ") " + fleet.Once(fleet.Select(series, nil, append(fixed[:len(fixed):len(fixed)], matchers...)...))
	}}
}

// byUUID returns an expression with one value per device. It counts a device that moved, or
// that has two senders, once; devices of earlier agents whose IDs collide (see fleet.Global) count once, too.
func byUUID(series string) string { return "max by (" + fleet.LabelUUID + ") (" + series + ")" }

// perDeviceTotal aggregates over devices, each counted once.
func perDeviceTotal(f, series string) func(...string) string {
	return func(matchers ...string) string { return f + "(" + byUUID(fleet.Select(series, nil, matchers...)) + ")" }
}

// chartWindow is the shortest window of a rate: some agents read only every five minutes, and a rate needs
// two readings.
const chartWindow = 11 * time.Minute

// charts has all charts by name.
var charts = map[string]chart{
	"fleet-use": {Unit: "gpus", Wide: true, Lines: []line{
		{Name: "Held", expr: func(matchers ...string) string {
			return "count(" + byUUID(fleet.Select(fleet.SeriesAllocation, nil, matchers...)) + " > 0)"
		}},
		{Name: "Busy", expr: perDeviceTotal("sum", fleet.SeriesUtilization)},
	}},
	"fleet-power": {Unit: "watts", Wide: true, Lines: []line{{Name: "Power", expr: perDeviceTotal("sum", fleet.SeriesPower)}}},

	"gpu-utilization": {Unit: "ratio", Lines: []line{
		{Name: "Busy", expr: most(fleet.SeriesUtilization)},
		{Name: "SM active", expr: most(fleet.SeriesSMActive)},
		{Name: "Tensor pipe", expr: most(fleet.SeriesPipeActive, fleet.Equals(fleet.LabelPipe, "tensor"))},
		{Name: "DRAM", expr: most(fleet.SeriesDRAMActive)},
	}},
	"gpu-memory":      {Unit: "bytes", Lines: []line{{Name: "Used", expr: most(fleet.SeriesMemoryUsed)}, {Name: "Total", expr: most(fleet.SeriesMemoryTotal)}}},
	"gpu-power":       {Unit: "watts", Lines: []line{{Name: "Drawn", expr: most(fleet.SeriesPower)}, {Name: "Limit", expr: most(fleet.SeriesPowerLimit)}}},
	"gpu-temperature": {Unit: "celsius", Lines: []line{each("max", fleet.LabelSensor, fleet.SeriesSensorTemperature)}},
	"gpu-clock":       {Unit: "hertz", Lines: []line{each("max", fleet.LabelClockType, fleet.SeriesClockDomain, fleet.LabelClockType+`=~"graphics|sm|memory|soc|ai|fabric"`)}},
	"gpu-owners":      {Unit: "ratio", Lines: []line{each("sum", fleet.LabelWorkload, fleet.SeriesWorkloadUtilization, fleet.LabelKind+`!="`+fleet.KindUnallocated+`"`)}},

	"workload-gpus":   {Unit: "gpus", Lines: []line{{Name: "Held", expr: total(fleet.SeriesAllocation)}, {Name: "Busy", expr: total(fleet.SeriesWorkloadUtilization)}}},
	"workload-memory": {Unit: "bytes", Lines: []line{{Name: "Used", expr: total(fleet.SeriesWorkloadMemory)}}},
	"workload-power":  {Unit: "watts", Lines: []line{{Name: "Drawn", expr: total(fleet.SeriesWorkloadPower)}}},

	// Of all clusters.
	"queue-gpus": {Unit: "gpus", Lines: []line{
		{Name: "Allocated", expr: devicesIn("allocated")}, {Name: "Free", expr: devicesIn("free")}, {Name: "Waited for", expr: total(queue.SeriesPending)},
	}},
	"queue-reasons": {Unit: "gpus", Lines: []line{each("sum", queue.LabelReason, queue.SeriesPending)}},
	"queue-wait":    {Unit: "wait", Lines: []line{placed(0.5), placed(0.95)}},

	// Of a served model, of a workload, or of all.
	"serving-tokens":  {Unit: "tokens", Lines: []line{{Name: "In", over: perSecond(fleet.SeriesTokensIn)}, {Name: "Out", over: perSecond(fleet.SeriesTokensOut)}}},
	"serving-queue":   {Unit: "requests", Lines: []line{{Name: "Running", expr: inState(fleet.StateRunning)}, {Name: "Waiting", expr: inState(fleet.StateWaiting)}}},
	"serving-cache":   {Unit: "ratio", Lines: []line{{Name: "KV cache", expr: most(fleet.SeriesKVCache, onGPU)}, {Name: "Prefix hits", over: prefixHits}}},
	"serving-ttft":    {Unit: "seconds", Lines: quantiles(fleet.HistogramFirstToken)},
	"serving-tpot":    {Unit: "seconds", Lines: quantiles(fleet.HistogramPerToken)},
	"serving-itl":     {Unit: "seconds", Lines: quantiles(fleet.HistogramInterToken, fleet.Equals(fleet.LabelWeight, fleet.WeightToken))},
	"serving-latency": {Unit: "seconds", Lines: quantiles(fleet.HistogramRequest)},
	"serving-wait":    {Unit: "seconds", Lines: quantiles(fleet.HistogramQueue)},
}
