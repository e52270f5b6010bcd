// Package sim simulates accelerators, so that everything above a device.Reader can be
// shown, tested and measured on a machine that has none.
//
// A node has some GPUs of one model, or of each vendor a few. Of one model, each has a
// role that is fixed by its index and repeats after eight:
//
//	0-2  training: three GPUs of one job at the power limit, a checkpoint every 5 min
//	3    inference: load in waves, a cache that fills and is dropped
//	4    idle, with memory held by a process
//	5    overheating: slowed down by its temperature for some minutes of every ten
//	6    failing: memory errors and a row to remap; gone from minute 5 to 6 of every ten
//	7    cut into partitions, or idle where the model has none
//
// Instead of a model a node may have Groups, which say what each device does and who has it
// when; the demo's fleet is made of them.
//
// Every reading is a pure function of Config and time. Readings change once a second
// and a script repeats after half an hour, which is what makes counters cheap: a
// counter is the number of whole scripts, times the sum over one of them, plus a
// prefix of it.
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
	Model string // name in Models; "" = "h200"
	GPUs  int    // 0 = as many as such a node has; a mixed one has always as many
	Seed  uint64 // names the node: UUIDs and noise derive from it
	// Groups are the devices of the node instead, each with what it does and for whom.
	Groups []Group
	// Now is the scripted clock; nil = time.Now. It is called from as many goroutines
	// as read devices.
	Now func() time.Time
	// Start is the simulated boot, where counters are 0. The zero time means the
	// moment of New.
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
		return nil, fmt.Errorf("unknown simulated model %q, known are %s", name, strings.Join(Models(), ", "))
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

// node implements device.Reader. Nothing in it but what was told of its errors changes
// after New, so its devices need no lock.
type node struct {
	now   func() time.Time
	start time.Time
	gpus  []*gpu
	bell  bell
}

// uptime returns the time since the simulated boot, 0 before it.
func (n *node) uptime() time.Duration { return max(0, n.now().Sub(n.start)) }

// Devices implements device.Reader. A GPU that fell off the bus is left out, and is the
// same Device when it is back.
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
