package optional_test

import (
	"encoding/json"
	"fmt"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// An absent number stays absent through arithmetic and becomes null in JSON; it never turns into 0.
func ExampleFloat() {
	used, size := optional.Of(20), optional.Of(80)
	var absent optional.Float

	for _, f := range []optional.Float{used.Ratio(size), absent.Ratio(size), absent.Scale(1e-3), optional.Of(0)} {
		text, err := json.Marshal(f)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text), f.OK())
	}
	// Output:
	// 0.25 true
	// null false
	// null false
	// 0 true
}

// A reset counter has no known growth.
func ExampleFloat_Since() {
	fmt.Println(optional.Of(130).Since(optional.Of(100)).Get())
	fmt.Println(optional.Of(5).Since(optional.Of(100)).Get())
	// Output:
	// 30 true
	// 0 false
}
