//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package hostreceiver reports the CPU utilization and memory use of this machine, the context for the
// metrics of its GPUs. It needs no capability.
package hostreceiver
