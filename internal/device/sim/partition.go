package sim

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// partition is a MIG device of a gpu. It has memory, processes and, from Hopper on, its
// own activity; all sensors are its parent's.
type partition struct {
	id     device.ID
	parent *gpu
	slice  slice
	role   *role
	key    uint64
	pid    int
}

func newPartition(g *gpu, i int, s slice) *partition {
	key := hash(g.key, uint64(i), 1)
	id := g.id
	id.Parent, id.UUID, id.Profile = g.id.UUID, "MIG-"+uuid(key), s.profile
	return &partition{
		id: id, parent: g, slice: s, role: partitionRoles[i], key: key,
		pid: firstPID + 100*g.id.Index + 10*i,
	}
}

// part returns the partition's part of the compute units that MIG hands out.
func (p *partition) part() float64 { return float64(p.slice.compute) / 7 }

func (p *partition) load(second int) load { return p.role.load(p.key, second) }

func (p *partition) at(up time.Duration) load { return p.load(int(up/time.Second) % period) }

// ID implements device.Device.
func (p *partition) ID() device.ID { return p.id }

// Read implements device.Device, as that of the gpu does.
func (p *partition) Read(ctx context.Context, _ device.Tier) (device.Sample, error) {
	if err := ctx.Err(); err != nil {
		return device.Sample{}, err
	}
	now := p.at(p.parent.node.uptime())
	used := allocated(now.held, p.slice.memory)
	s := device.Sample{
		ID:    p.id,
		Slice: device.Slice{Held: p.slice.compute, Of: 7},
		Memory: device.Memory{
			Used: device.Of(used), Free: device.Of(p.slice.memory - used),
			Reserved: device.Of(0), Total: device.Of(p.slice.memory),
		},
		// NVML has no utilization of processes under MIG.
		Processes: processes(p.role, p.pid, device.Of(used), device.Value{}),
	}
	if p.parent.model.gpm {
		s.Profile = profile(activity{}.plus(now.busy, p.role.activity), now.busy)
	}
	return s, nil
}
