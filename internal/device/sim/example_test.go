package sim_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/sim"
)

// A simulated node is a device.Reader like any vendor's: discover the devices, then read
// each of them. Readings depend only on the configuration and the time.
func ExampleNew() {
	boot := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	r, err := sim.New(sim.Config{
		Model: "h100", GPUs: 4, Start: boot,
		Now: func() time.Time { return boot.Add(time.Hour) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()

	ctx := context.Background()
	devices, err := r.Devices(ctx)
	if err != nil {
		fmt.Println(err)
	}
	for _, d := range devices {
		s, err := d.Read(ctx, device.Static)
		if err != nil {
			fmt.Println(err) // values that were read are still valid
		}
		busy, _ := s.Utilization.Compute.Get()
		fmt.Printf("GPU %d: %s, %.0f %% busy, %d processes\n", s.ID.Index, s.ID.Model, 100*busy, len(s.Processes))
	}
	// Output:
	// GPU 0: NVIDIA H100 80GB HBM3, 96 % busy, 1 processes
	// GPU 1: NVIDIA H100 80GB HBM3, 95 % busy, 1 processes
	// GPU 2: NVIDIA H100 80GB HBM3, 96 % busy, 1 processes
	// GPU 3: NVIDIA H100 80GB HBM3, 16 % busy, 1 processes
}
