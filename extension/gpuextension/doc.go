//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package gpuextension provides the View of this machine's accelerators inside a Collector.
// The View reads the devices and is the only owner of live state; receivers and processors
// subscribe to its ticks. See docs/hardware.md for libraries and privileges by vendor. The
// extension itself emits no device metrics: receiver/gpureceiver does.
package gpuextension
