package view

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/training"
	"github.com/gpumeter/gpumeter/internal/optional"
)

// The page shows the parts of the model, all of them, and null for what is not known.
func TestTrained(t *testing.T) {
	r := training.Row{Observed: true, Steps: 100, StepTime: optional.Of(0.5), MFU: optional.Of(0.4), Estimated: true}
	r.Waterfall = training.Divide(200e6, map[string]fleet.Seconds{"step": 50e6, "restart": 20e6}, 0)
	got := trainedOf(&r)
	sum := number(0)
	for _, p := range got.Parts {
		sum += p.Time
	}
	if sum != got.Allocated || got.Allocated != 200 || len(got.Parts) != 8 {
		t.Errorf("%+v", got)
	}
	text, err := got.Loss.MarshalJSON()
	if err != nil || string(text) != "null" {
		t.Errorf("%s %v", text, err)
	}
	if diff := cmp.Diff(number(0.25), got.Goodput); diff != "" {
		t.Error(diff)
	}
}
