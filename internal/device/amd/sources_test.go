//go:build linux

package amd

import (
	"testing"

	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

func TestSources(t *testing.T) {
	for _, wrong := range devicetest.CheckSources("sources.txt", wantMachine()...) {
		t.Error(wrong)
	}
}
