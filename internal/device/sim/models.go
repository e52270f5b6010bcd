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
	count  int    // devices of a node
	buses  []int  // of PCI, by index; nil: the driver does not tell its place in the machine
	// uuid returns the identifier of a device, part that of its i-th partition.
	uuid func(key uint64) string
	part func(g *gpu, i int, key uint64) string
	// cut: every device consists of partitions, whatever it is used for.
	cut bool
}

// model is what is fixed about a kind of accelerator. A zero means that the hardware,
// or its driver, does not have it.
type model struct {
	*maker
	shows                               driver
	name, architecture, vbios, firmware string

	memory, reserved float64 // bytes
	watts            watts
	hot              float64 // degrees at which the clocks fall
	sensors          []sensor
	clocks           []clock

	slices  []slice // how GPU 7 is cut
	sliceOf int     // slices of a whole device
}

// driver is what the driver of a vendor shows of a device in the state that it is in.
// What it does not set, the driver does not know.
type driver interface {
	read(r *reading)
	readPart(p *partition, up time.Duration, s *device.Sample)
}

// watts are power figures.
type watts struct{ idle, limit, min, max float64 }

// sensor is a temperature, without load and at the power limit. The first of a model is
// on the die.
type sensor struct {
	name       string
	idle, full float64
	limits     []limit
}

// limit is what happens at a temperature.
type limit struct {
	event   string
	celsius float64
}

// clock is a domain and its frequencies without load and at its highest, in MHz. It moves
// in steps with the load, or not at all where step is 0.
type clock struct {
	kind             string
	idle, full, step float64
}

// slice is one partition: its profile, its slices of the compute units, its bytes.
type slice struct {
	profile string
	compute int
	memory  float64
}

// models are all that can be simulated.
var models = collect(nvidiaModels, amdModels, gaudiModels, intelModels, neuronModels, tenstorrentModels, tpuModels)

func collect(all ...map[string]*model) map[string]*model {
	list := map[string]*model{}
	for _, some := range all {
		maps.Copy(list, some)
	}
	return list
}

// Mixed is a machine that nobody has: some devices of each vendor.
const Mixed = "mixed"

// mix is what is in it, and what each device is used for.
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

// Models returns the names of the known models, sorted, and at last that of the machine
// that has devices of each vendor.
func Models() []string { return append(slices.Sorted(maps.Keys(models)), Mixed) }
