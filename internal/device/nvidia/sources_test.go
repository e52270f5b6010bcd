//go:build linux

package nvidia

import (
	"testing"

	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

func TestSources(t *testing.T) {
	for _, wrong := range devicetest.CheckSources("sources.txt", readEverything(t)) {
		t.Error(wrong)
	}
}
