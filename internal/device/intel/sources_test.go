//go:build linux

package intel

import (
	"testing"

	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

func TestSources(t *testing.T) {
	for _, wrong := range devicetest.CheckSources("sources.txt", wantNode()...) {
		t.Error(wrong)
	}
}
