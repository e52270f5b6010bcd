//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package gpureceiver turns the ticks of the gpu extension into metrics, each tick
// once, stamped with its time.
package gpureceiver
