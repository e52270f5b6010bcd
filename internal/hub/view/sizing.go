package view

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
)

// maxSizes bounds the workloads of one answer.
const maxSizes = 1000

// sizingAnswer is what workloads asked for against what they used, the largest saving first.
type sizingAnswer struct {
	At        int64      `json:"at"` // the end of the period
	From      int64      `json:"from"`
	To        int64      `json:"to"`
	PeaksFrom int64      `json:"peaksFrom"` // peaks are from then to the end
	Step      number     `json:"step"`      // seconds between the moments at which most was determined
	Headroom  number     `json:"headroom"`  // part of a peak
	Currency  string     `json:"currency,omitempty"`
	Simulated simulation `json:"simulated"`
	Workloads []sized    `json:"workloads"`
	More      int        `json:"more,omitempty"` // workloads with smaller savings
	Notes     []string   `json:"notes,omitempty"`
}

// sized is one workload. Numbers of GPUs are parts of devices; null is not known.
type sized struct {
	fleet.Owner

	Models []sizedModel `json:"models"`
	Mean   number       `json:"mean"` // held, over the whole period
	Most   number       `json:"most"` // held at once
	Now    number       `json:"now"`  // held at the end

	// Of the instances that hold devices at the end, else of the one that held the most. A partition counts as a device.
	Devices      int    `json:"devices"`
	Used         number `json:"used"`     // of devices
	Activity     number `json:"activity"` // mean, 0 to 1
	ActivityPeak number `json:"activityPeak"`
	MemoryPeak   number `json:"memoryPeak"` // bytes, of the fullest device
	Memory       number `json:"memory"`     // bytes that this device has
	Observed     number `json:"observed"`   // seconds

	Advice  []sizedAdvice `json:"advice"`
	Because string        `json:"because,omitempty"` // why there is none
}

type sizedModel struct {
	Model string `json:"model"` // short name
	Mean  number `json:"mean"`
}

// sizedAdvice is what a workload could ask for instead.
type sizedAdvice struct {
	Kind    string `json:"kind"`    // release, fewer, slice, smaller
	Devices int    `json:"devices"` // to give back, or to exchange
	Enough  int    `json:"enough"`  // release, fewer: devices that suffice
	Model   string `json:"model,omitempty"`
	Profile string `json:"profile,omitempty"`
	Memory  number `json:"memory"` // bytes of what is proposed
	Text    string `json:"text"`
	PerDay  number `json:"perDay"` // saved, null without a price or if nothing is held any more
	Hours   number `json:"hours"`  // device hours of the period that others could have had
}

func (v *viewer) sizingPage(ctx context.Context, r request) (any, error) {
	to := r.to.Truncate(time.Minute) // as bills
	bill, err := v.bill(ctx, r.from, r.to)
	if err != nil {
		return nil, err
	}
	f, err := v.fleetAt(ctx, to)
	if err != nil {
		return nil, err
	}
	from := r.from.Truncate(time.Minute)
	report, err := v.sizes.get(ctx, span{from.Unix(), to.Unix()}, v.opts.Now(), 12*freshness, func(ctx context.Context) (*sizing.Report, error) {
		return sizing.Read(ctx, v.store, bill.Uses(), f, from, to, sizing.Options{Price: v.accounts.Price, Facts: v.opts.Facts})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot compare what was asked for and used: %w", err)
	}
	a := sizingAnswer{
		At: to.Unix(), From: from.Unix(), To: to.Unix(), PeaksFrom: to.Add(-report.Peaks).Unix(), Step: number(report.Step.Seconds()), Headroom: sizing.Headroom,
		Currency: v.accounts.Currency, Simulated: simulationOf(f, bill), Workloads: []sized{}, Notes: bill.rest(), More: max(0, len(report.Workloads)-maxSizes),
	}
	for i := range report.Workloads[:min(len(report.Workloads), maxSizes)] {
		a.Workloads = append(a.Workloads, v.sized(&report.Workloads[i]))
	}
	return a, nil
}

func (v *viewer) sized(w *sizing.Workload) sized {
	out := sized{
		Owner: w.Owner, Models: []sizedModel{}, Mean: number(w.Mean), Most: number(w.Most), Now: number(w.Now),
		Devices: w.Devices, Used: number(float(w.Used)), Activity: number(float(w.Activity)), ActivityPeak: number(float(w.ActivityPeak)),
		MemoryPeak: number(float(w.MemoryPeak)), Memory: number(float(w.MemorySize)), Observed: number(w.Observed.Seconds()),
		Advice: []sizedAdvice{}, Because: w.Because,
	}
	for _, m := range w.Models {
		out.Models = append(out.Models, sizedModel{v.opts.shortModel(m.Name), number(m.Mean)})
	}
	for _, a := range w.Advice {
		out.Advice = append(out.Advice, sizedAdvice{
			Kind: a.Kind, Devices: a.Devices, Enough: a.Enough, Model: v.opts.shortModel(a.Model), Profile: a.Profile, Memory: number(float(a.Memory)),
			Text: a.Text, PerDay: number(float(a.PerDay)), Hours: number(a.Hours),
		})
	}
	return out
}
