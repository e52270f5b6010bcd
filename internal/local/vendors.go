//go:build linux

package local

import (
	"context"
	"os"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/amd"
	"github.com/gpumeter/gpumeter/internal/device/gaudi"
	"github.com/gpumeter/gpumeter/internal/device/intel"
	"github.com/gpumeter/gpumeter/internal/device/neuron"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/device/tenstorrent"
	"github.com/gpumeter/gpumeter/internal/device/tpu"
	"github.com/gpumeter/gpumeter/internal/node"
)

// vendor is how one vendor's devices are read and diagnosed, and the facts about them.
type vendor struct {
	facts    device.Vendor
	open     func(context.Context) (device.Reader, error)
	diagnose func(context.Context) []device.Check
}

// of adapts the functions of a vendor's package.
func of[O any, R device.Reader](facts device.Vendor, open func(context.Context, O) (R, error), diagnose func(context.Context, O) []device.Check, o O) vendor {
	return vendor{
		facts: facts,
		open: func(ctx context.Context) (device.Reader, error) {
			r, err := open(ctx, o)
			if err != nil {
				return nil, err // a plain nil, not a typed nil pointer
			}
			return r, nil
		},
		diagnose: func(ctx context.Context) []device.Check { return diagnose(ctx, o) },
	}
}

// vendors lists every supported vendor, for a machine with this identity. A new vendor is one
// line here.
func (c Config) vendors(machine string) []vendor {
	return []vendor{
		of(nvidia.Facts, nvidia.Open, nvidia.Diagnose, c.nvidia()),
		of(amd.Facts, amd.Open, amd.Diagnose, amd.Options{Root: c.Root, Machine: machine}),
		of(gaudi.Facts, gaudi.Open, gaudi.Diagnose, gaudi.Options{Root: c.Root, Machine: machine, Library: c.GaudiLibrary}),
		of(intel.Facts, intel.Open, intel.Diagnose, intel.Options{Root: c.Root, Machine: machine}),
		of(neuron.Facts, neuron.Open, neuron.Diagnose, neuron.Options{Root: c.Root, Machine: machine, Monitor: c.NeuronMonitor}),
		of(tenstorrent.Facts, tenstorrent.Open, tenstorrent.Diagnose, tenstorrent.Options{Root: c.Root, Machine: machine}),
		of(tpu.Facts, tpu.Open, tpu.Diagnose, tpu.Options{Root: c.Root, Machine: machine, Exporter: c.TPUExporter}),
	}
}

// Vendors returns the facts about every supported vendor.
func Vendors() device.Vendors {
	var list device.Vendors
	for _, v := range (Config{}).vendors("") {
		list = append(list, v.facts)
	}
	return list
}

// Sources returns the readers for this machine.
func Sources(c Config) []node.Source {
	if c.simulated() {
		s := c.sim()
		return []node.Source{{Name: "sim", Open: func(context.Context) (device.Reader, error) { return sim.New(s) }}}
	}
	var list []node.Source
	for _, v := range c.vendors(c.Machine()) {
		list = append(list, node.Source{Name: v.facts.Name, Open: v.open})
	}
	return list
}

// Diagnose returns the findings of every reader and workload source. Vendors without any
// device share one line.
func Diagnose(ctx context.Context, c Config) []device.Check {
	var checks []device.Check
	var none []string
	for _, v := range c.vendors(c.Machine()) {
		found := v.diagnose(ctx)
		if len(found) == 1 && found[0].State == device.CheckAbsent {
			none = append(none, v.facts.Name)
			continue
		}
		checks = append(checks, found...)
	}
	if len(none) > 0 {
		checks = append(checks, device.Check{
			Subject: "other vendors", State: device.CheckAbsent, Detail: "no device or driver of " + strings.Join(none, ", "),
		})
	}
	if c.Workloads.Off {
		return checks
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname()
	}
	return append(checks, c.owners().diagnose(ctx)...)
}
