//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package schedulerreceiver reports the state of a cluster as its scheduler has it: jobs,
// nodes, what waits and why, and how the scheduler itself does.
package schedulerreceiver
