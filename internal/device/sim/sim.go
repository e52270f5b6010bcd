// Package sim simulates accelerators of every vendor, so that everything above a
// device.Reader can be demonstrated, tested and benchmarked on a machine without any. It
// needs no hardware, driver or privilege and touches nothing outside the process.
//
// A node has GPUs of one model, or a few of each vendor. With one model, each GPU has a
// role that is fixed by its index and repeats after eight:
//
//	0-2  training: three GPUs of one job at the power limit, a checkpoint every 5 min
//	3    inference: load in waves, a cache that fills and is dropped
//	4    idle, with memory held by a process
//	5    overheating: thermally throttled for some minutes of every ten
//	6    failing: memory errors and a pending row remap; lost from minute 5 to 6 of every ten
//	7    partitioned, or idle if the model has no partitions
//
// Instead of a model, a node may have Groups, which specify what each device does and which
// tenant holds it when. The demo fleet is made of Groups.
//
// Every reading is a pure function of Config and time. Readings change once a second, and a
// script repeats after half an hour, which makes counters cheap: a counter is the number of
// complete scripts times the sum over one of them, plus a prefix sum.
package sim

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Config describes a simulated node.
type Config struct {
	Model string // a name in Models; "" means "h200"
	GPUs  int    // 0 means the usual number for the model; a mixed node has a fixed number
	Seed  uint64 // identifies the node: UUIDs and noise derive from it
	// Groups replace Model and GPUs: the devices of the node, each with a role and tenants.
	Groups []Group
	// Now is the clock; nil means time.Now. It is called concurrently by all device reads.
	Now func() time.Time
	// Start is the simulated boot time, at which counters are 0. The zero time means the
	// time of New.
	Start time.Time
}

// New returns a Reader of the simulated node.
func New(cfg Config) (device.Reader, error) {
	name := cfg.Model
	if name == "" {
		name = "h200"
	}
	m, ok := models[name]
	if !ok && name != Mixed && cfg.Groups == nil {
		return nil, fmt.Errorf("unknown simulated model %q, want one of %s", name, strings.Join(Models(), ", "))
	}
	if cfg.GPUs < 0 {
		return nil, fmt.Errorf("cannot simulate %d GPUs", cfg.GPUs)
	}
	n := &node{now: cfg.Now, start: cfg.Start}
	if n.now == nil {
		n.now = time.Now
	}
	if n.start.IsZero() {
		n.start = n.now()
	}
	if cfg.Groups != nil {
		return n, n.plan(cfg)
	}
	if name == Mixed {
		for i, group := range mix {
			for j, r := range group.roles {
				n.gpus = append(n.gpus, newGPU(n, models[group.model], hash(cfg.Seed, uint64(i)), j, r))
			}
		}
		return n, nil
	}
	for i := range cmp.Or(cfg.GPUs, m.count) {
		n.gpus = append(n.gpus, newGPU(n, m, cfg.Seed, i, roles[i%len(roles)]))
	}
	return n, nil
}

// node implements device.Reader. After New only the state of xids changes, so devices need
// no lock.
type node struct {
	now   func() time.Time
	start time.Time
	gpus  []*gpu
	xids  xidSource
}

// uptime returns the time since the simulated boot, or 0 before it.
func (n *node) uptime() time.Duration { return max(0, n.now().Sub(n.start)) }

// Devices implements device.Reader. A GPU that fell off the bus is omitted, and is the same
// Device when it returns.
func (n *node) Devices(ctx context.Context) ([]device.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	up := n.uptime()
	var devices []device.Device
	for _, g := range n.gpus {
		if g.lost(up) {
			continue
		}
		devices = append(devices, g)
		for _, p := range g.partitions {
			devices = append(devices, p)
		}
	}
	return devices, nil
}

// Close implements device.Reader.
func (n *node) Close() error { return nil }
