package kube

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Requests is what a pod asks for, or what a node has.
type Requests struct {
	CPU    int64 // thousandths of a CPU
	Memory int64 // bytes
	// Devices are the accelerators by resource, in the unit of the resource: nil if there are none.
	Devices map[string]int64
}

// Whole returns the number of whole devices: a part or a share of a device is none.
func (r Requests) Whole(v device.Vendors) int64 {
	n := int64(0)
	for name, count := range r.Devices {
		if v.CountsDevices(name) {
			n = sum(n, count)
		}
	}
	return n
}

// parse reads the CPU, the memory and the accelerators of a list of resources.
func (q quantities) parse(v device.Vendors) (r Requests, err error) {
	for name, text := range q {
		switch {
		case name == "cpu":
			r.CPU, err = text.in(milli)
		case name == "memory":
			r.Memory, err = text.in(ones)
		case accelerator(v, name):
			var n int64
			if n, err = text.in(ones); n > 0 {
				if r.Devices == nil {
					r.Devices = map[string]int64{}
				}
				r.Devices[name] = n
			}
		}
		if err != nil {
			return Requests{}, fmt.Errorf("resource %.60q: %w", name, err)
		}
	}
	return r, nil
}

// accelerator reports whether a resource stands for devices or parts of devices.
func accelerator(v device.Vendors, name string) bool {
	switch v.Resource(name).Unit {
	case device.Whole, device.Part, device.Core, device.Share:
		return true
	}
	return false
}

// plus returns r plus o.
func (r Requests) plus(o Requests) Requests {
	r.CPU, r.Memory = sum(r.CPU, o.CPU), sum(r.Memory, o.Memory)
	r.Devices = merged(r.Devices, o.Devices, sum)
	return r
}

// minus returns what is left of r without o. That is never negative, although a node may be overcommitted: it was
// shrunk, or pods were put there by hand.
func (r Requests) minus(o Requests) Requests {
	less := func(a, b int64) int64 { return max(0, a-b) }
	r.CPU, r.Memory, r.Devices = less(r.CPU, o.CPU), less(r.Memory, o.Memory), merged(r.Devices, o.Devices, less)
	return r
}

// most returns the larger of r and o of each resource.
func (r Requests) most(o Requests) Requests {
	r.CPU, r.Memory = max(r.CPU, o.CPU), max(r.Memory, o.Memory)
	r.Devices = merged(r.Devices, o.Devices, func(a, b int64) int64 { return max(a, b) })
	return r
}

// sum adds quantities that may be as large as Kubernetes allows.
func sum(a, b int64) int64 {
	if s := a + b; s >= a || b < 0 {
		return s
	}
	return a
}

// merged returns the resources of a and b without changing them.
func merged(a, b map[string]int64, f func(a, b int64) int64) map[string]int64 {
	if len(b) == 0 {
		return a
	}
	out := make(map[string]int64, len(a)+len(b))
	maps.Copy(out, a)
	for name, n := range b {
		out[name] = f(out[name], n)
	}
	return out
}

// names returns the resources of the devices, sorted.
func (r Requests) names() []string { return slices.Sorted(maps.Keys(r.Devices)) }
