package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// gpu is a simulated physical device.
type gpu struct {
	id         device.ID
	node       *node
	model      *model
	role       *role // a GPU that is cut up has heat only
	key        uint64
	timeline   *timeline
	partitions []*partition
}

// firstPID is above the highest pid Linux gives out by default, 4194304, so that a
// simulated process is never taken for a real one.
const firstPID = 4_200_000

func newGPU(n *node, m *model, seed uint64, index int) *gpu {
	const perNode = len(roles)
	buses := [perNode]int{0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb}
	key := hash(seed, uint64(index))
	g := &gpu{
		id: device.ID{
			Vendor: m.vendor, UUID: "GPU-" + uuid(key), Index: index, Model: m.name,
			PCI: fmt.Sprintf("%04x:%02x:00.0", index/perNode, buses[index%perNode]),
		},
		node: n, model: m, role: roles[index%perNode], key: key,
	}
	switch {
	case g.role != nil:
	case m.slices == nil:
		g.role = roleIdle
	default:
		g.role = &role{heat: 0.85}
		for i, s := range m.slices {
			g.partitions = append(g.partitions, newPartition(g, i, s))
		}
	}

	// GPUs of one role in one group of eight are one job and share its phase.
	job := hash(seed, uint64(index/perNode), uint64(slices.Index(roles[:], g.role)))
	script := func(second int) load { return g.role.load(job, second) }
	if g.partitions != nil {
		script = g.sliced
	}
	g.timeline = simulate(m, key, g.role.heat, script)
	return g
}

// sliced is the script of a GPU that is cut up: what its partitions do together.
func (g *gpu) sliced(second int) (l load) {
	for _, p := range g.partitions {
		l.busy += p.part() * p.load(second).busy
	}
	return l
}

// lost reports whether the GPU is off the bus.
func (g *gpu) lost(up time.Duration) bool { return g.role.fails && offBus(up) }

// ID implements device.Device.
func (g *gpu) ID() device.ID { return g.id }

// Read implements device.Device. It refreshes everything whatever the tier, because a
// simulated value costs nothing. Profile is of the current second, not since the last
// Read, so that a Sample does not depend on who read before.
func (g *gpu) Read(ctx context.Context, _ device.Tier) (device.Sample, error) {
	if err := ctx.Err(); err != nil {
		return device.Sample{}, err
	}
	up := g.node.uptime()
	if g.lost(up) {
		return device.Sample{}, device.ErrLost
	}
	return g.sample(up), nil
}

func (g *gpu) sample(up time.Duration) device.Sample {
	m := g.model
	now, sum := g.timeline.at(up)
	bad := g.role.faults(up)
	s := device.Sample{
		ID: g.id,
		Info: device.Info{
			Driver: driver, Architecture: m.architecture, VBIOS: m.vbios, Firmware: driver,
			NUMA: strconv.Itoa(g.id.Index % len(roles) / 4),
		},
		Modes:          g.modes(),
		Memory:         g.memory(now, up),
		Temperatures:   m.temperatures(now),
		Power:          m.power(now, g.timeline.back(up, 1), up),
		Energy:         device.Of(floor(sum.joules, 1e3)), // the driver counts millijoules
		Clocks:         m.frequencies(now),
		Throttles:      throttles(now),
		ThrottleTimes:  throttleTimes(sum),
		Interconnects:  g.interconnects(now, sum, bad),
		PCIe:           m.link(now, bad),
		ECC:            g.ecc(bad),
		RowRemap:       g.rowRemap(bad),
		RecoveryAction: device.Flag(bad.remap), // 1 is "reset the GPU"
	}
	s.PerformanceState = device.Of(0)
	if now.busy == 0 {
		s.PerformanceState = device.Of(m.idleState)
	}
	if m.fabric {
		s.Fabric = device.Fabric{State: device.Of(3), Health: device.Of(1)}
	}
	if m.gpm {
		s.Profile = profile(g.activity(now, up), now.busy)
	}
	if g.partitions == nil {
		s.Utilization, s.UtilizationPeak = g.utilization(now, up)
		s.Processes = processes(g.role, firstPID+100*g.id.Index, s.Memory.Used, device.Of(percent(0.98*now.busy)))
	}
	return s
}

func (g *gpu) modes() device.Modes {
	modes := device.Modes{ECC: device.Of(1), Persistence: device.Of(1), Compute: device.Of(0)}
	if g.model.slices != nil {
		modes.MIG = device.Flag(g.partitions != nil)
	}
	return modes
}

// utilization returns that of now and its highest of the last minute. NVML has none
// for a GPU that is cut up.
func (g *gpu) utilization(now *moment, up time.Duration) (current, peak device.Engines) {
	highest := now.busy
	for i := range 60 {
		highest = max(highest, g.timeline.back(up, i).busy)
	}
	none := device.Of(0)
	current = device.Engines{
		Compute: device.Of(percent(now.busy)), Memory: device.Of(percent(g.role.controller * now.busy)),
		Encoder: none, Decoder: none, JPEG: none, OFA: none,
	}
	peak = device.Engines{
		Compute: device.Of(percent(highest)), Memory: device.Of(percent(g.role.controller * highest)),
	}
	return current, peak
}

func (g *gpu) activity(now *moment, up time.Duration) activity {
	if g.partitions == nil {
		return activity{}.plus(now.busy, g.role.activity)
	}
	var a activity
	for _, p := range g.partitions {
		a = a.plus(p.part()*p.at(up).busy, p.role.activity)
	}
	return a
}

func (g *gpu) memory(now *moment, up time.Duration) device.Memory {
	m := g.model
	used := allocated(now.held, m.memory-m.reserved)
	for _, p := range g.partitions {
		used += allocated(p.at(up).held, p.slice.memory)
	}
	bar1 := used + 1703936 // what an idle H200 shows, and all of the memory in use
	if g.partitions != nil {
		bar1 = m.memory - m.reserved
	}
	return device.Memory{
		Used: device.Of(used), Free: device.Of(m.memory - m.reserved - used),
		Reserved: device.Of(m.reserved), Total: device.Of(m.memory),
		BAR1Used: device.Of(bar1), BAR1Total: device.Of(m.bar1),
	}
}
