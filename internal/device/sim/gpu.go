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
	slot       int   // position among all devices of the node
	role       *role // a device shared by partitions has only heat
	key        uint64
	numa       string
	job        int // slot of the first device of its job
	timeline   *timeline
	spans      []span // when the device is in use; nil: always
	stays      []Stay
	thief      *Stay
	onset      time.Duration // when the device starts to fail, since boot
	partitions []*partition
}

// firstPID is above the highest PID that Linux assigns by default, 4194304, so a simulated
// process is never mistaken for a real one.
const firstPID = 4_200_000

// newGPU creates a device of n. Its index counts the devices of its vendor.
func newGPU(n *node, m *model, seed uint64, index int, r *role) *gpu {
	const perNode = len(roles)
	if r == nil && m.slices == nil { // the model has no partitions
		r = roleIdle
	}
	key := hash(seed, uint64(index))
	g := &gpu{
		id: device.ID{
			Vendor: m.vendor, UUID: m.uuid(key), Index: index, Model: m.name,
		},
		node: n, model: m, slot: len(n.gpus), role: r, key: key,
	}
	if m.buses != nil {
		g.id.PCI = fmt.Sprintf("%04x:%02x:00.0", index/len(m.buses), m.buses[index%len(m.buses)])
		g.numa = strconv.Itoa(index % perNode / 4)
	}
	// Devices with the same role in one group of eight belong to one job and share its
	// phase.
	g.job = g.slot
	for _, other := range n.gpus {
		if r != nil && other.role == r && other.model == m && other.id.Index/perNode == index/perNode {
			g.job = other.job
			break
		}
	}
	job := hash(seed, uint64(index/perNode), uint64(slices.Index(roles[:], g.role)))
	script := func(second int) load { return g.role.load(job, second) }
	switch {
	case r == nil: // each partition has its own tenant
		g.role = &role{heat: 0.85}
		g.cut(func(i int) *role { return partitionRoles[i%len(partitionRoles)] })
		script = g.sliced
	case m.cut:
		g.cut(func(int) *role { return r })
		script = g.sliced
	}
	g.timeline = simulate(m, key, g.role.heat, script)
	return g
}

// cut creates the partitions.
func (g *gpu) cut(roleOf func(i int) *role) {
	for i, s := range g.model.slices {
		g.partitions = append(g.partitions, newPartition(g, i, s, roleOf(i)))
	}
}

// sliced is the script of a partitioned device: the sum of what its partitions do.
func (g *gpu) sliced(second int) (l load) {
	for _, p := range g.partitions {
		now := p.load(second)
		l.busy += p.part() * now.busy
		l.stifled = max(l.stifled, now.stifled)
	}
	return l
}

// shared reports whether each partition has its own role.
func (g *gpu) shared() bool { return g.partitions != nil && g.role.load == nil }

// lost reports whether the device is off the bus.
func (g *gpu) lost(up time.Duration) bool { return g.role.leaves && offBus(up) }

// ID implements device.Device.
func (g *gpu) ID() device.ID { return g.id }

// Read implements device.Device. It refreshes everything whatever the tier, because a
// simulated value costs nothing. Profile is that of the current second, not since the last
// Read, so that a Sample does not depend on earlier reads.
func (g *gpu) Read(ctx context.Context, _ device.Tier) (device.Sample, error) {
	if err := ctx.Err(); err != nil {
		return device.Sample{}, err
	}
	up := g.node.uptime()
	if g.lost(up) {
		return device.Sample{}, device.ErrLost
	}
	g.node.emitXIDs(g, up)
	return g.sample(up), nil
}

func (g *gpu) sample(up time.Duration) device.Sample {
	m := g.model
	r := reading{gpu: g, up: up, bad: g.role.faults(up - g.onset)}
	r.now, r.sum = g.at(up)
	r.ID = g.id
	r.Info = device.Info{
		Driver: m.driver, Architecture: m.architecture, VBIOS: m.vbios, Firmware: m.firmware,
		NUMA: g.numa,
	}
	m.shows.read(&r)
	return r.Sample
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

func (g *gpu) pid() int { return firstPID + 100*g.slot }

// thiefPID is the offset of a thief's PID from that of the first tenant: after those of all tenants.
const thiefPID = 98

// process returns the process on the device, which holds used bytes, and that of a thief,
// which takes a fifth of them.
func (g *gpu) process(up time.Duration, used device.Value) []device.Process {
	if g.thief == nil || !g.thief.There(up) {
		return process(g.role, g.pid()+g.stay(up), used)
	}
	const part = 0.2
	return append(process(g.role, g.pid()+g.stay(up), used.Scale(1-part)),
		process(&role{process: "t-rex"}, g.pid()+thiefPID, used.Scale(part))...)
}
