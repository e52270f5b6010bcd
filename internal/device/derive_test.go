package device

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A placeholder that counts as a serial number makes one device of all boards that have it.
func TestSerial(t *testing.T) {
	want := map[string]string{
		"": "", "0": "", "0x0": "", "N/A": "", "000000000000": "", "0xFFFFFFFF": "", "None": "", "Unknown": "", "Default string": "",
		"To Be Filled By O.E.M.": "", "Not Specified": "", "1234567890": "",
		" PCB052384-0071 ": "PCB052384-0071", "AM49033422": "AM49033422", "0x8c5f3a1b": "0x8c5f3a1b",
	}
	got := map[string]string{}
	for text := range want {
		got[text] = Serial(text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
