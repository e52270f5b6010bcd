//go:build linux

package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/processor/reservedprocessor"
)

// Catches an attribute that identifies a machine in the hub, and that applications may set.
func TestIdentityIsReserved(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(hubexporter.DefaultResourceLabels(), reservedprocessor.Identity()); diff != "" {
		t.Errorf("attributes that identify a machine in the hub (-hub +reserved):\n%s", diff)
	}
}
