//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/health"
)

// Manifest is what a machine should have. What it leaves out is not compared.
type Manifest struct {
	GPUs        GPUs      `json:"gpus,omitzero" yaml:"gpus,omitempty"`
	MemoryBytes uint64    `json:"memory_bytes,omitempty" yaml:"memory_bytes,omitempty"`
	InfiniBand  []Port    `json:"infiniband,omitempty" yaml:"infiniband,omitempty"`
	Network     []NIC     `json:"network,omitempty" yaml:"network,omitempty"`
	Mounts      []string  `json:"mounts,omitempty" yaml:"mounts,omitempty"` // mount points
	NVMe        int       `json:"nvme,omitempty" yaml:"nvme,omitempty"`     // how many disks
	Services    []string  `json:"services,omitempty" yaml:"services,omitempty"`
	Governor    string    `json:"governor,omitempty" yaml:"governor,omitempty"`
	ClockSource string    `json:"clock_source,omitempty" yaml:"clock_source,omitempty"`
	IBErrors    LinkRates `json:"infiniband_errors_per_hour,omitempty" yaml:"infiniband_errors_per_hour,omitempty"`
}

// GPUs are the accelerators of a Manifest.
type GPUs struct {
	Count      int            `json:"count,omitempty" yaml:"count,omitempty"`
	Models     map[string]int `json:"models,omitempty" yaml:"models,omitempty"`
	Driver     string         `json:"driver,omitempty" yaml:"driver,omitempty"`
	Generation int            `json:"pcie_generation,omitempty" yaml:"pcie_generation,omitempty"` // the highest of the link, of each
	Width      int            `json:"pcie_width,omitempty" yaml:"pcie_width,omitempty"`
	Links      int            `json:"links,omitempty" yaml:"links,omitempty"` // NVLink or XGMI links that are up, of each
}

// Port is a port of an InfiniBand or RoCE adapter.
type Port struct {
	Device string  `json:"device" yaml:"device"` // mlx5_0
	Port   int     `json:"port" yaml:"port"`
	Layer  string  `json:"layer,omitempty" yaml:"layer,omitempty"` // InfiniBand or Ethernet
	Rate   float64 `json:"rate_gbps,omitempty" yaml:"rate_gbps,omitempty"`
}

// NIC is a network interface.
type NIC struct {
	Name  string `json:"name" yaml:"name"`
	Speed int    `json:"speed_mbps,omitempty" yaml:"speed_mbps,omitempty"`
}

// LinkRates are how many errors an hour a port may count, by counter.
type LinkRates map[string]float64

// Validate says what cannot be meant.
func (m Manifest) Validate() error {
	var errs []error
	g := m.GPUs
	for name, n := range map[string]int{"gpus.count": g.Count, "gpus.pcie_generation": g.Generation, "gpus.pcie_width": g.Width, "gpus.links": g.Links, "nvme": m.NVMe} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%s must not be below 0, is %d", name, n))
		}
	}
	for i, p := range m.InfiniBand {
		if !plainName(p.Device) || p.Port < 1 || p.Rate < 0 || math.IsNaN(p.Rate) {
			errs = append(errs, fmt.Errorf("infiniband %d must have a device, a port of at least 1 and no rate below 0", i))
		}
	}
	for i, n := range m.Network {
		if !plainName(n.Name) || n.Speed < 0 {
			errs = append(errs, fmt.Errorf("network %d must have a name, and no speed below 0", i))
		}
	}
	for _, path := range m.Mounts {
		if !strings.HasPrefix(path, "/") {
			errs = append(errs, fmt.Errorf("mounts: %q is no absolute path", path))
		}
	}
	for _, s := range m.Services {
		if !plainName(s) {
			errs = append(errs, fmt.Errorf("services: %q is no name of a unit", s))
		}
	}
	for name := range m.IBErrors {
		if _, ok := ibRates[name]; !ok {
			errs = append(errs, fmt.Errorf("infiniband_errors_per_hour: %q is not watched", name))
		}
	}
	return errors.Join(errs...)
}

// plainName reports whether s is one part of a path.
func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/*?[\\\x00")
}

// Observe returns the manifest of a machine as it is now. Only what works is written: a
// port that is down is not expected to be up.
func Observe(ctx context.Context, env Env) (Manifest, error) {
	h := newHost(ctx, env)
	m, err := h.read(ctx)
	if err != nil {
		return Manifest{}, err
	}
	out := Manifest{GPUs: observeGPUs(m.Devices)}
	info, err := h.meminfo()
	if err == nil {
		out.MemoryBytes = info["MemTotal"]
	}
	for _, p := range h.ports() {
		if p.state == portActive {
			out.InfiniBand = append(out.InfiniBand, Port{p.device, p.port, p.layer, p.rate})
		}
	}
	out.Network = h.nics()
	out.NVMe = len(h.nvmes())
	if list, err := h.mounts(); err == nil {
		for _, m := range list {
			if m.local() || m.remote() {
				out.Mounts = append(out.Mounts, m.path)
			}
		}
		slices.Sort(out.Mounts)
		out.Mounts = slices.Compact(out.Mounts)
	}
	services := slices.Clone(usualServices)
	for i := range env.Vendors {
		services = append(services, env.Vendors[i].Services...)
	}
	for _, unit := range services {
		if h.runs(unit) {
			out.Services = append(out.Services, unit)
		}
	}
	if g := h.governors(); len(g) == 1 {
		for name := range g {
			out.Governor = name
		}
	}
	out.ClockSource, _ = h.sys("devices/system/clocksource/clocksource0").Text("current_clocksource") // empty: not compared
	return out, nil
}

func observeGPUs(list []health.Device) GPUs {
	var g GPUs
	for i := range list {
		d := &list[i]
		if d.ID.Parent != "" {
			continue
		}
		g.Count++
		if g.Models == nil {
			g.Models = map[string]int{}
		}
		g.Models[d.ID.Model]++
		if g.Driver == "" {
			g.Driver = d.Info.Driver
		}
		g.Generation = least(g.Count, g.Generation, d.PCIe.GenerationMax)
		g.Width = least(g.Count, g.Width, d.PCIe.Width)
		g.Links = leastOf(g.Count, g.Links, linksUp(&d.Sample))
	}
	return g
}
