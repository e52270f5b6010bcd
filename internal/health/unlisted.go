package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// unlisted reports errors of GPUs that the driver does not list and that need more than a
// restart of the program: after XID 79 there is nothing else left of the GPU. Less severe
// errors may be those of a GPU that this agent is not allowed to see.
func unlisted(m *Machine) []Finding {
	now := m.Moments[len(m.Moments)-1].Time
	var out []Finding
	for _, key := range slices.Sorted(maps.Keys(m.Unlisted)) {
		id := device.ID{Vendor: "nvidia"}
		if strings.Contains(key, ":") {
			id.PCI = key
		} else {
			id.UUID = key
		}
		for _, known := range m.Known {
			if known.UUID == key || known.PCI == key {
				id = known
			}
		}
		for _, f := range xidFindings(trail{now: now, last: &Device{Sample: device.Sample{ID: id}, XIDs: m.Unlisted[key]}}) {
			if f.Severity != Critical {
				continue
			}
			f.Device = id
			if id.UUID == "" {
				f.Key += " " + key // a finding of the machine
			}
			f.Reason += fmt.Sprintf("; the driver no longer lists the GPU at %s", cmp.Or(id.PCI, key))
			out = append(out, f)
		}
	}
	return out
}

// adopt moves the errors of a PCI address to the device that is there.
func (m *Monitor) adopt(id device.ID) {
	orphans := m.xids[id.PCI]
	if id.PCI == "" || len(orphans) == 0 {
		return
	}
	delete(m.xids, id.PCI)
	list := slices.Clone(m.xids[id.UUID])
	for _, x := range orphans {
		if len(list) < maxCodes && !slices.ContainsFunc(list, func(o XIDSeen) bool { return o.Code == x.Code && o.Link == x.Link }) {
			list = append(list, x)
		}
	}
	m.xids[id.UUID] = list
}

// unlisted returns the errors of devices that are not among those of now.
func (m *Monitor) unlisted(now *Moment) map[string][]XIDSeen {
	var out map[string][]XIDSeen
	for key, list := range m.xids {
		if slices.ContainsFunc(now.Devices, func(d Device) bool { return d.ID.UUID == key }) {
			continue
		}
		if out == nil {
			out = map[string][]XIDSeen{}
		}
		out[key] = list
	}
	return out
}
