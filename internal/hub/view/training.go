package view

import (
	"context"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/training"
	"github.com/gpumeter/gpumeter/internal/optional"
)

// trained is what a workload did that trains, in the period.
type trained struct {
	Observed  bool          `json:"observed"` // some of it was seen from outside
	Reported  bool          `json:"reported"` // some of it the workload said itself
	Steps     number        `json:"steps"`
	StepTime  number        `json:"stepTime"` // seconds, mean
	Tokens    number        `json:"tokens"`
	Samples   number        `json:"samples"`
	Saved     number        `json:"checkpoints"`
	Bytes     number        `json:"checkpointBytes"`
	Restarts  number        `json:"restarts"`
	MFU       number        `json:"mfu"`
	Estimated bool          `json:"mfuEstimated"`
	Loss      number        `json:"loss"`
	Gradient  number        `json:"gradientNorm"`
	Goodput   number        `json:"goodput"`
	Allocated number        `json:"allocated"` // seconds of devices; the parts add up to it
	Parts     []trainedPart `json:"parts"`
}

type trainedPart struct {
	Name string `json:"name"`
	Time number `json:"time"` // seconds
}

// training returns what a workload did that trains, nil if it does not.
func (v *viewer) training(ctx context.Context, r request, id string, bill *Bill) (*trained, error) {
	_, _, match, err := fleet.ParseOwner(id)
	if err != nil {
		return nil, err
	}
	rows, err := training.Read(ctx, v.store, r.from, r.to, allocatedOf(bill), match...)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if rows[i].Owner.ID == id {
			return trainedOf(&rows[i]), nil
		}
	}
	return nil, nil
}

// allocatedOf returns the device time of each owner of a bill.
func allocatedOf(bill *Bill) map[string]fleet.Seconds {
	all := map[string]fleet.Seconds{}
	for i := range bill.Rows {
		if owner, ok := fleet.OwnerOf(bill.Rows[i].Labels); ok {
			all[owner.ID] += bill.Rows[i].Allocated()
		}
	}
	return all
}

func trainedOf(r *training.Row) *trained {
	of := func(f optional.Float) number { return number(float(f)) }
	t := &trained{
		Observed: r.Observed, Reported: r.Reported, Steps: number(r.Steps), StepTime: of(r.StepTime), Tokens: of(r.Tokens), Samples: of(r.Samples),
		Saved: number(r.Checkpoints), Bytes: number(r.CheckpointBytes), Restarts: number(r.Restarts), MFU: of(r.MFU), Estimated: r.Estimated,
		Loss: of(r.Loss), Gradient: of(r.Gradient), Goodput: of(r.Waterfall.Goodput()), Allocated: number(r.Waterfall.Allocated.Float()), Parts: []trainedPart{},
	}
	for _, p := range r.Waterfall.Parts {
		t.Parts = append(t.Parts, trainedPart{p.Name, number(p.Time.Float())})
	}
	return t
}
