package node_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/node"
)

// A View reads all devices on one clock and publishes each completed tick. Run ticks by
// itself; this example ticks once, as a one-shot command does.
func ExampleView_Subscribe() {
	boot := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	now := boot.Add(time.Hour)
	v := node.New(node.Config{
		Host: "gn1", Simulated: true, Interval: 10 * time.Second, SlowInterval: 30 * time.Second,
		Sources: []node.Source{{Name: "sim", Open: func(context.Context) (device.Reader, error) {
			return sim.New(sim.Config{Model: "h100", GPUs: 2, Start: boot, Now: func() time.Time { return now }})
		}}},
	})
	ticks, cancel := v.Subscribe()
	defer cancel()

	v.Tick(context.Background(), now)
	tick := <-ticks
	fmt.Println(tick.Host, tick.Time.Format(time.TimeOnly), tick.Sources[0].State)
	for _, r := range tick.Readings {
		fmt.Printf("GPU %d up: %t\n", r.ID.Index, r.Up)
	}
	if err := v.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// gn1 01:00:00 open
	// GPU 0 up: true
	// GPU 1 up: true
}
