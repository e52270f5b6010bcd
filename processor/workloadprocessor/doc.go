//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package workloadprocessor adds the workload to telemetry from other sources: series of
// dcgm-exporter, spans and log records of applications.
//
// The attributes of an item name a device, a process or a container (names.go). On a node the
// gpu extension knows the owner (node.go); a gateway learns owners from the agents' metrics
// that pass through it (fleet.go). The result is added (dress.go) to points, spans and log
// records, or to their resource (metrics.go, records.go). Existing attributes are never
// overwritten, and ambiguous items are left alone.
package workloadprocessor
