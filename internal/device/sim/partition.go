package sim

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// partition is a part of a gpu that can be allocated: a MIG device, an accelerator complex,
// a core. All sensors belong to its parent.
type partition struct {
	id     device.ID
	parent *gpu
	slice  slice
	role   *role
	key    uint64
	index  int
	sums   []float64 // seconds of busy time before each second of the script
}

func newPartition(g *gpu, i int, s slice, r *role) *partition {
	key := hash(g.key, uint64(i), 1)
	id := g.id
	id.Parent, id.UUID, id.Profile = g.id.UUID, g.model.part(g, i, key), s.profile
	p := &partition{id: id, parent: g, slice: s, role: r, key: key, index: i, sums: make([]float64, period+1)}
	for s := range period {
		p.sums[s+1] = p.sums[s] + grid(p.load(s).busy)
	}
	return p
}

// part returns the partition's share of the compute units.
func (p *partition) part() float64 { return float64(p.slice.compute) / float64(p.parent.model.sliceOf) }

func (p *partition) load(second int) load { return p.role.load(p.key, second) }

func (p *partition) at(up time.Duration) load { return p.load(int(up/time.Second) % period) }

// busy returns the seconds of busy time since boot.
func (p *partition) busy(up time.Duration) float64 {
	second := int(up / time.Second)
	return float64(second/period)*p.sums[period] + p.sums[second%period] + (up%time.Second).Seconds()*grid(p.at(up).busy)
}

// ID implements device.Device.
func (p *partition) ID() device.ID { return p.id }

// Read implements device.Device, like Read of gpu.
func (p *partition) Read(ctx context.Context, _ device.Tier) (device.Sample, error) {
	if err := ctx.Err(); err != nil {
		return device.Sample{}, err
	}
	up := p.parent.node.uptime()
	if p.parent.lost(up) {
		return device.Sample{}, device.ErrLost
	}
	return p.sample(up), nil
}

func (p *partition) sample(up time.Duration) device.Sample {
	s := device.Sample{ID: p.id, Slice: device.Slice{Held: p.slice.compute, Of: p.parent.model.sliceOf}}
	p.parent.model.shows.readPart(p, up, &s)
	return s
}

func (p *partition) memory(now load) device.Memory {
	used := allocated(now.held, p.slice.memory)
	return device.Memory{Used: device.Of(used), Free: device.Of(p.slice.memory - used), Total: device.Of(p.slice.memory)}
}

func (p *partition) pid() int { return p.parent.pid() + 10*p.index }

// process returns the process on the partition, which holds used bytes.
func (p *partition) process(used device.Value) []device.Process {
	return process(p.role, p.pid(), used)
}
