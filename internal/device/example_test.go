package device_test

import (
	"encoding/json"
	"fmt"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A reading that the device does not provide is absent. It stays absent through arithmetic
// and is omitted from JSON, whereas a reading of 0 is kept.
func ExampleValue() {
	var memory device.Memory
	memory.Used = device.Of(0) // nothing is allocated
	memory.Total = device.Of(80 << 30)

	_, ok := memory.Reserved.Get()
	fmt.Println("reserved is known:", ok)
	fmt.Println("ratio of reserved memory is known:", memory.Reserved.Ratio(memory.Total).OK())

	text, err := json.Marshal(memory)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(string(text))
	// Output:
	// reserved is known: false
	// ratio of reserved memory is known: false
	// {"used":0,"total":85899345920}
}

// Readers convert units once, with Scale and Div. A fallback is chosen with Or.
func ExampleValue_Or() {
	milliwatts := device.Of(685770) // what the driver reports
	power := device.Power{Scope: "gpu", Average: milliwatts.Div(1000)}

	watts, ok := power.Instant.Or(power.Average).Get()
	fmt.Println(watts, ok)
	// Output: 685.77 true
}
