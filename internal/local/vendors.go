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

// vendor is how devices of one vendor are read and diagnosed, and what is true of them all.
type vendor struct {
	facts    device.Vendor
	open     func(context.Context) (device.Reader, error)
	diagnose func(context.Context) []device.Check
}

// of makes a vendor of its package.
func of[O any, R device.Reader](facts device.Vendor, open func(context.Context, O) (R, error), diagnose func(context.Context, O) []device.Check, o O) vendor {
	return vendor{
		facts: facts,
		open: func(ctx context.Context) (device.Reader, error) {
			r, err := open(ctx, o)
			if err != nil {
				return nil, err // and not a reader that is nil
			}
			return r, nil
		},
		diagnose: func(ctx context.Context) []device.Check { return diagnose(ctx, o) },
	}
}

// vendors are all that can be read. A new vendor is a line here.
func (c Config) vendors() []vendor {
	return []vendor{
		of(nvidia.Facts, nvidia.Open, nvidia.Diagnose, c.nvidia()),
		of(amd.Facts, amd.Open, amd.Diagnose, amd.Options{Root: c.Root}),
		of(gaudi.Facts, gaudi.Open, gaudi.Diagnose, gaudi.Options{Root: c.Root, Library: c.GaudiLibrary}),
		of(intel.Facts, intel.Open, intel.Diagnose, intel.Options{Root: c.Root}),
		of(neuron.Facts, neuron.Open, neuron.Diagnose, neuron.Options{Root: c.Root, Monitor: c.NeuronMonitor}),
		of(tenstorrent.Facts, tenstorrent.Open, tenstorrent.Diagnose, tenstorrent.Options{Root: c.Root}),
		of(tpu.Facts, tpu.Open, tpu.Diagnose, tpu.Options{Root: c.Root, Exporter: c.TPUExporter}),
	}
}

// Vendors returns the facts about every vendor that can be read.
func Vendors() device.Vendors {
	var list device.Vendors
	for _, v := range (Config{}).vendors() {
		list = append(list, v.facts)
	}
	return list
}

// Sources returns the readers this machine may need.
func Sources(c Config) []node.Source {
	if c.simulated() {
		s := c.sim()
		return []node.Source{{Name: "sim", Open: func(context.Context) (device.Reader, error) { return sim.New(s) }}}
	}
	var list []node.Source
	for _, v := range c.vendors() {
		list = append(list, node.Source{Name: v.facts.Name, Open: v.open})
	}
	return list
}

// Diagnose returns what every reader found and misses. Vendors of whom there is nothing
// are one line together.
func Diagnose(ctx context.Context, c Config) []device.Check {
	var checks []device.Check
	var none []string
	for _, v := range c.vendors() {
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
