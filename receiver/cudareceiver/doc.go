//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package cudareceiver reports what processes ask of CUDA and NCCL, by workload and device:
// how long calls take, what is launched, copied, waited for and held, who is behind in a
// collective, and what departs from the usual and why.
package cudareceiver
