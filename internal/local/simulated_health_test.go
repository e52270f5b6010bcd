//go:build linux

package local

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/health"
)

// ailing are the indexes of simulated devices that overheat or fail on purpose.
var ailing = map[int]bool{5: true, 6: true}

// Work that begins and ends, checkpoints, idle notebooks and partitions of every vendor
// raise no alarm: users stop reading alarms after a false one.
func TestHealthySimulation(t *testing.T) {
	start := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	for _, model := range sim.Models() {
		if model == sim.Mixed {
			continue // its devices have other indexes, and are covered by the models
		}
		now := start
		r, err := sim.New(sim.Config{Model: model, Seed: 1, Now: func() time.Time { return now }, Start: start.Add(-24 * time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		devices, err := r.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var m health.Monitor
		for ; now.Before(start.Add(30 * time.Minute)); now = now.Add(10 * time.Second) {
			moment := health.Moment{Time: now}
			for _, d := range devices {
				s, err := d.Read(t.Context(), device.Slow)
				s.ID = d.ID()
				moment.Devices = append(moment.Devices, health.Device{Sample: s, Up: err == nil, Since: start})
			}
			for _, c := range m.Observe(moment, nil) {
				if c.Severity >= health.Warning && !ailing[c.Device.Index%8] {
					t.Errorf("%s %d after %v: %s: %s", model, c.Device.Index, now.Sub(start), c.Rule, c.Reason)
				}
			}
		}
	}
}
