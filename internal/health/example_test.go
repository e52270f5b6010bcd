package health_test

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
)

// Rules are pure functions over a machine's recent history, so a rule can be tried on any
// made-up history. One sample is enough for rules without a time threshold.
func ExampleCheck() {
	gpu := health.Device{Up: true, Sample: device.Sample{ID: device.ID{Vendor: "nvidia", UUID: "GPU-1"}}}
	gpu.RowRemap.Pending = device.Of(1)
	findings := health.Check(health.Machine{
		Moments: []health.Moment{{Time: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), Devices: []health.Device{gpu}}},
	})
	for _, f := range findings {
		fmt.Printf("%s %s: %s\n%s\n", f.Severity, f.Rule, f.Reason, f.Action)
	}
	fmt.Println("score:", health.Score(findings, "GPU-1"))
	// Output:
	// warning gpu.row_remap.pending: row remapping is pending
	// Reset the device when it is next idle.
	// score: 0.5
}

func ExampleExplainXID() {
	x := health.ExplainXID(79, "GPU has fallen off the bus.")
	fmt.Printf("%s (%s, %s): %s\n", x.Name, x.Class, x.Severity, x.Meaning)
	// Output:
	// RC_GPU_HAS_FALLEN_OFF_THE_BUS (hardware, critical): the GPU fell off the bus
}
