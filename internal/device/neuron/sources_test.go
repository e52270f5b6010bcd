//go:build linux

package neuron

import (
	"slices"
	"testing"

	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

func TestSources(t *testing.T) {
	for _, wrong := range devicetest.CheckSources("sources.txt", slices.Concat(trn1(), heardMachine())...) {
		t.Error(wrong)
	}
}
