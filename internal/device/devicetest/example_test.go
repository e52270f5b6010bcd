package devicetest_test

import (
	"fmt"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

// A reader's test passes everything it read to Fields, or to CheckSources with the vendor's
// sources.txt. Only fields that are present count; a reading of 0 is present.
func ExampleFields() {
	s := device.Sample{
		Memory:       device.Memory{Used: device.Of(0)},
		Temperatures: []device.Temperature{{Sensor: "edge", Value: device.Of(63)}},
	}
	for _, path := range devicetest.Fields(s) {
		fmt.Println(path)
	}
	// Output:
	// Memory.Used
	// Temperatures.Value
}
