package workload

import (
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Device is one device or partition that may be held, with every name by which a scheduler
// may refer to it.
type Device struct {
	ID      device.ID
	Aliases []string
	Memory  float64 // bytes; 0: not known
}

// names maps all names of this machine's devices to UUIDs. A name shared by two devices
// maps to "".
type names map[string]string

func newNames(devices []Device) names {
	n := names{}
	add := func(name, uuid string) {
		if name == "" {
			return
		}
		if other, taken := n[name]; taken && other != uuid {
			uuid = ""
		}
		n[name] = uuid
	}
	// AMD's plugin names the first partition of a GPU by the address of the GPU.
	first := map[string]bool{}
	for _, d := range devices {
		if d.ID.Parent != "" {
			for _, alias := range d.Aliases {
				first[alias] = true
			}
		}
	}
	for _, d := range devices {
		add(d.ID.UUID, d.ID.UUID)
		if d.ID.Parent == "" && !first[d.ID.PCI] { // a partition has its parent's address
			add(d.ID.PCI, d.ID.UUID)
		}
		for _, alias := range d.Aliases {
			add(alias, d.ID.UUID)
		}
	}
	return n
}

// match returns the UUID of the device or partition that r refers to.
func (n names) match(r Ref) (uuid string, ok bool) {
	for _, id := range r.IDs {
		// A number may refer to a device and, under another resource, to a core; and other
		// vendors number things that are not accelerators.
		vendor, _, _ := strings.Cut(r.Resource, "/")
		for _, owner := range []string{r.Resource, vendor} {
			if uuid := n[owner+"/"+id]; uuid != "" {
				return uuid, true
			}
		}
		if uuid := n[id]; uuid != "" {
			return uuid, true
		}
		if uuid := n[pciAddress(id)]; uuid != "" {
			return uuid, true
		}
	}
	return "", false
}

// pciAddress returns a PCI address in the form of device.ID. Addresses appear in both cases, and
// NVML and libvirt write the domain with eight digits.
func pciAddress(id string) string {
	id = strings.ToLower(id)
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return id
}

// Base returns the device that id is a replica of, or id itself. Plugins denote replicas as
// GPU-x::3 (time slicing and MPS, also of renamed resources), as nvidia0/vgpu3 (GKE), or in
// the form that the resource declares.
func Base(r device.Resource, id string) string {
	if base, _, ok := strings.Cut(id, "::"); ok {
		return base
	}
	if i := strings.LastIndex(id, "/vgpu"); i > 0 && isNumber(id[i+len("/vgpu"):]) {
		return id[:i]
	}
	if r.Replica != "" {
		if i := strings.LastIndex(id, r.Replica); i > 0 && isNumber(id[i+len(r.Replica):]) {
			return id[:i]
		}
	}
	return id
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
