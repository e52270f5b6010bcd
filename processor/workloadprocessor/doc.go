//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package workloadprocessor says whose work telemetry from elsewhere is about: series of
// dcgm-exporter, spans and log records of an application.
//
// The attributes of an item name a device, a process or a container (names.go). On a node
// the gpu extension knows who has it (node.go); a gateway learns it from the metrics of
// the agents that pass through it (fleet.go). What is known is added (dress.go) to points,
// spans and log records, or to their resource (metrics.go, records.go).
package workloadprocessor
