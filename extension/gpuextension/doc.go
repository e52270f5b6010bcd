//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package gpuextension is the View of this machine's accelerators inside a Collector.
// There is one owner of live state: whatever else needs devices subscribes to it.
package gpuextension
