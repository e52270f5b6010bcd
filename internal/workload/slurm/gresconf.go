package slurm

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// gresConf is what gres.conf says about the devices of one node.
type gresConf struct {
	// Devices are the files of each device, in Slurm's numbering order.
	Devices [][]string
	// Auto means that slurmd detects the devices and orders them by bus address; the files
	// then only select which of them count.
	Auto bool
	// shared is how often each device is offered, by resource (shard, mps) and file name.
	// An empty file name is a count that is spread over all devices.
	shared map[string]map[string]uint64
}

// parseGresConf evaluates the lines that apply to a node. sum is the node's GRES in
// slurm.conf.
func parseGresConf(lines []setting, node string, sum []slurm.GRES) gresConf {
	g := gresConf{shared: map[string]map[string]uint64{}}
	share := func(name, file string, n uint64) {
		if g.shared[name] == nil {
			g.shared[name] = map[string]uint64{}
		}
		g.shared[name][file] += n
	}
	for _, s := range lines {
		if names := s["nodename"]; names != "" && slurm.HostIndex(names, node) < 0 {
			continue
		}
		name := strings.ToLower(s["name"])
		if auto := strings.ToLower(s["autodetect"]); auto != "" && (name == "" || name == "gpu") {
			g.Auto = auto != "off"
		}
		var files []string
		_ = slurm.Hosts(s["file"], func(f string) bool { files = append(files, f); return len(files) < slurm.MaxIndex })
		switch name {
		case "gpu":
			for _, f := range files {
				g.Devices = append(g.Devices, []string{f})
			}
			var one []string
			_ = slurm.Hosts(s["multiplefiles"], func(f string) bool { one = append(one, f); return len(one) < slurm.MaxIndex })
			if len(one) > 0 {
				g.Devices = append(g.Devices, one)
			}
		case "shard", "mps":
			n, err := slurm.ParseCount(s["count"])
			if err != nil {
				continue
			}
			if len(files) == 0 {
				share(name, "", n)
			}
			for _, f := range files { // the count is for all files together
				share(name, filepath.Base(f), n/uint64(len(files)))
			}
		}
	}
	for _, r := range sum {
		if (r.Name == "shard" || r.Name == "mps") && g.shared[r.Name] == nil {
			share(r.Name, "", r.Count)
		}
	}
	return g
}

// replicas returns how often a device is offered as name, given count devices, or 0 if it
// is unknown.
func (g gresConf) replicas(name string, d device, count int) uint64 {
	for _, id := range d {
		if n := g.shared[name][id]; n > 0 {
			return n
		}
	}
	if count == 0 {
		return 0
	}
	return g.shared[name][""] / uint64(count)
}

// device is a device that Slurm numbers, by every name that a reader may know.
type device []string

// order returns the devices of a node in Slurm's numbering order.
//
// With File= or MultipleFiles= that is their order in gres.conf. If slurmd detects them
// (AutoDetect=nvml, rsmi, oneapi), they are ordered as in the driver, by bus address, with
// the partitions of a GPU in sequence. Without either, the same order is assumed.
func (g gresConf) order(m machine) []device {
	if len(g.Devices) > 0 && !g.Auto {
		out := make([]device, len(g.Devices))
		for i, files := range g.Devices {
			out[i] = m.device(files)
		}
		return out
	}
	found := m.found()
	if len(g.Devices) == 0 || len(found) == 0 {
		if len(g.Devices) == 0 {
			return found
		}
		g.Auto = false
		return g.order(m)
	}
	var want []string
	for _, files := range g.Devices {
		want = append(want, m.device(files)...)
	}
	return slices.DeleteFunc(found, func(d device) bool {
		return !slices.ContainsFunc(d, func(id string) bool { return slices.Contains(want, id) })
	})
}

// numbered returns the device with a minor number, with a name for each prefix in minors.
// Only one of them exists: a machine has devices of one vendor.
func numbered(minors []string, minor int) device {
	var d device
	for _, prefix := range minors {
		d = append(d, prefix+strconv.Itoa(minor))
	}
	return d
}
