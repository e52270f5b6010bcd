//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package cudareceiver reports the calls of processes to CUDA and NCCL, by workload and device: their
// durations, launches, copies, waits and memory, ranks that lag in a collective, and anomalies with
// their causes.
package cudareceiver
