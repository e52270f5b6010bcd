package slurm

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// gresConf is what gres.conf says of the devices of one node.
type gresConf struct {
	// Devices are the files of each device, in the order in which Slurm numbers them.
	Devices [][]string
	// Auto says that slurmd finds the devices and orders them by their address on the
	// bus; the files then only say which of them count.
	Auto bool
	// shared are how often each device is offered, by resource (shard, mps) and name of
	// the file, which is empty for a number that is spread over all.
	shared map[string]map[string]uint64
}

// parseGresConf takes the lines that are for a node. sum is what slurm.conf says of it.
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
			for _, f := range files { // the count is that of all files together
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

// replicas returns how often a device is offered as name, of count devices. 0: nobody
// knows.
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

// device is one that Slurm numbers, by every name that a reader may know it by.
type device []string

// order returns the devices of a node as Slurm numbers them.
//
// With File= or MultipleFiles= that is their order in gres.conf. slurmd that finds them
// by itself (AutoDetect=nvml, rsmi, oneapi) orders them as the driver does, by their
// address on the bus, partitions after each other. Without any of that they are taken in
// the same way.
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

// numbered is the device with a minor number, by the names that it has if it is of one
// vendor or another. A machine has devices of one.
func numbered(minors []string, minor int) device {
	var d device
	for _, prefix := range minors {
		d = append(d, prefix+strconv.Itoa(minor))
	}
	return d
}
