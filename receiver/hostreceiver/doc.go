//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package hostreceiver says how busy the CPUs of this machine are and how full its memory
// is: what a GPU's numbers are to be seen beside. It needs no capability.
package hostreceiver
