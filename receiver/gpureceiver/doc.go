//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package gpureceiver converts the ticks of the gpu extension to metrics, each tick once, stamped with
// its time.
package gpureceiver
