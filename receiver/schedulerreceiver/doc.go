//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package schedulerreceiver reports the state of a cluster from its scheduler: jobs, nodes, pending work
// and its reasons, and the performance of the scheduler itself.
package schedulerreceiver
