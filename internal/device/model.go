package device

import (
	"math"
	"slices"
	"strings"
)

// Model is what is known of a model of device beyond what its driver reports: how fast it is, and which partitions it can
// be cut into.
type Model struct {
	// Words are in the name that the driver reports, all of them, as words of their own.
	Words []string
	// Memory is what the driver reports, in MiB. Devices of one name come with different memories.
	Memory int
	// Compute is the peak of dense 16-bit arithmetic in TFLOPS and Bandwidth that of the memory in GB/s, both by the
	// vendor's data sheet. 0: not known.
	Compute, Bandwidth float64
	// Units is the number of compute units of the whole device. 0 if it has no Profiles.
	Units    int
	Profiles []PartitionProfile // the smallest first
}

// PartitionProfile is a kind of partition.
type PartitionProfile struct {
	Name string // by which it is created: 1g.10gb
	// Slice is the part of the device that it counts as, as in Sample.Slice of a partition.
	Slice Slice
	Units int // compute units that it has
	// Memory is what a partition has for its workload, in MiB: the least that any driver gives it.
	Memory int
}

// sameMemory is the relative difference up to which a device has the memory of a model: drivers report a little less with
// each version, and with ECC.
const sameMemory = 0.03

// model returns what is known of the devices with this name and memory, nil if that is nothing. Of several models the first
// one matches.
func (v Vendors) model(name string, memory float64) *Model {
	words := strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '-' })
	for i := range v {
		for j := range v[i].Models {
			m := &v[i].Models[j]
			size := float64(m.Memory) * (1 << 20)
			if math.Abs(memory-size) <= sameMemory*size && !slices.ContainsFunc(m.Words, func(w string) bool { return !slices.Contains(words, w) }) {
				return m
			}
		}
	}
	return nil
}

// Slices calls each for the partitions that a device of this model and memory, in bytes, can be cut into, the smallest first:
// the name of the profile, its memory in bytes, the part of the device's compute units that it has, and the part of the device
// that it counts as.
func (v Vendors) Slices(model string, memory float64, each func(profile string, memory, compute, part float64)) {
	m := v.model(model, memory)
	if m == nil {
		return
	}
	for _, p := range m.Profiles {
		each(p.Name, float64(p.Memory)*(1<<20), float64(p.Units)/float64(m.Units), p.Slice.Part())
	}
}

// Strength returns the peaks of arithmetic in TFLOPS and of memory bandwidth in GB/s of a device of this model and memory, in
// bytes, and false if they are not known. They compare devices of one vendor.
func (v Vendors) Strength(model string, memory float64) (compute, bandwidth float64, ok bool) {
	m := v.model(model, memory)
	if m == nil || m.Compute == 0 || m.Bandwidth == 0 {
		return 0, 0, false
	}
	return m.Compute, m.Bandwidth, true
}
