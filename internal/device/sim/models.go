package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	mhz = 1e6
)

// maker is what the accelerators of one vendor have in common.
type maker struct {
	vendor string
	driver string // version
	count  int    // devices per node
	buses  []int  // PCI buses, by index; nil: the driver does not report the location
	// uuid returns the identifier of a device, part that of its i-th partition.
	uuid func(key uint64) string
	part func(g *gpu, i int, key uint64) string
	// cut: every device consists of partitions, whatever its role.
	cut bool
}

// model is the fixed description of a kind of accelerator. Zero means that the hardware or
// its driver does not have the feature.
type model struct {
	*maker
	shows                               driver
	name, architecture, vbios, firmware string

	memory, reserved float64 // bytes
	watts            watts
	hot              float64 // temperature in degrees at which the clocks are reduced
	sensors          []sensor
	clocks           []clock

	slices  []slice // how GPU 7 is partitioned
	sliceOf int     // slices of a whole device
}

// driver fills in what a vendor's driver shows of a device in its current state. Fields
// that it does not set are absent.
type driver interface {
	read(r *reading)
	readPart(p *partition, up time.Duration, s *device.Sample)
}

// watts are power figures.
type watts struct{ idle, limit, min, max float64 }

// sensor is a temperature sensor, with its reading without load and at the power limit. The
// first sensor of a model is on the die.
type sensor struct {
	name       string
	idle, full float64
	limits     []limit
}

// limit is an event at a temperature.
type limit struct {
	event   string
	celsius float64
}

// clock is a clock domain with its frequencies without load and at most, in MHz. It follows
// the load in steps, or not at all if step is 0.
type clock struct {
	kind             string
	idle, full, step float64
}

// slice is one partition: its profile, its share of the compute slices, and its memory in
// bytes.
type slice struct {
	profile string
	compute int
	memory  float64
}

// models are all models that can be simulated.
var models = collect(nvidiaModels, amdModels, gaudiModels, intelModels, neuronModels, tenstorrentModels, tpuModels)

func collect(all ...map[string]*model) map[string]*model {
	list := map[string]*model{}
	for _, some := range all {
		maps.Copy(list, some)
	}
	return list
}

// Mixed is an artificial machine with some devices of each vendor.
const Mixed = "mixed"

// mix lists the devices of a mixed machine and their roles.
var mix = []struct {
	model string
	roles []*role
}{
	{"h100", []*role{roleTraining, roleTraining}},
	{"mi300x", []*role{roleInference, roleIdle}},
	{"gaudi3", []*role{roleTraining, roleFailing}},
	{"p150a", []*role{roleInference, roleIdle}},
	{"v6e", []*role{roleTraining, roleTraining}},
	{"max1550", []*role{roleOverheating}},
	{"trn2", []*role{roleInference}},
}

// Models returns the names of the known models, sorted, followed by Mixed.
func Models() []string { return append(slices.Sorted(maps.Keys(models)), Mixed) }
