package view

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
)

// workload is a row of the workload table: current holdings and usage in the period.
type workload struct {
	fleet.Owner

	GPUs   number   `json:"gpus"`   // devices held now, shares included; 0 if the workload has ended
	Models []string `json:"models"` // short names, current and past devices
	Nodes  []string `json:"nodes"`
	// Uninvited is the number of devices that the workload uses without an allocation.
	Uninvited int `json:"uninvited"`
	Idle      int `json:"idle"` // devices unused for fleet.IdleAfter
	Sick      int `json:"sick"`

	Utilization number `json:"utilization"` // mean over the devices held now
	Memory      number `json:"memory"`
	Watts       number `json:"watts"`
	PerHour     number `json:"perHour"`

	taken // in the period
}

type workloadsAnswer struct {
	At        int64      `json:"at"`
	From      int64      `json:"from"`
	To        int64      `json:"to"`
	Currency  string     `json:"currency,omitempty"`
	Simulated simulation `json:"simulated"`
	Workloads []workload `json:"workloads"`
	Notes     []string   `json:"notes,omitempty"`
}

func (v *viewer) workloadsPage(ctx context.Context, r request) (any, error) {
	rows, bill, err := v.workloads(ctx, r)
	if err != nil {
		return nil, err
	}
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	return workloadsAnswer{
		At: r.at.Unix(), From: r.from.Unix(), To: r.to.Unix(), Currency: v.accounts.Currency, Simulated: simulationOf(f, bill),
		Workloads: rows, Notes: append(bill.rest(), bill.Notes...),
	}, nil
}

// totals accumulates the row of one workload.
type totals struct {
	workload

	util, memory, watts, rate sum
	amounts                   cost.Amounts
	billed                    bool // the bill has the workload
}

// workloads returns the workloads that hold or use a device now, or held one in the period, and
// the bill of the period. Time of unknown owners is on the bill only.
func (v *viewer) workloads(ctx context.Context, r request) ([]workload, *Bill, error) {
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, nil, err
	}
	all := map[string]*totals{}
	of := func(o fleet.Owner) *totals {
		t := all[o.ID]
		if t == nil {
			t = &totals{workload: workload{Owner: o, Models: []string{}, Nodes: []string{}}}
			all[o.ID] = t
		}
		return t
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		for _, n := range d.Uninvited {
			t := of(f.Owners[n])
			t.Models, t.Nodes = with(t.Models, v.opts.shortModel(d.Model)), with(t.Nodes, d.Node)
			t.Uninvited++
		}
		for _, n := range d.Owners {
			if !fleet.IsWorkload(f.Owners[n].Kind) {
				continue
			}
			t := of(f.Owners[n])
			t.Models, t.Nodes = with(t.Models, v.opts.shortModel(d.Model)), with(t.Nodes, d.Node)
			for _, c := range d.Charges {
				if c.Owner == f.Owners[n].ID {
					t.rate.add(float(c.PerHour()))
				}
			}
			if d.IsIdle() {
				t.Idle++
			}
			if c, ok := d.Condition().Get(); ok && c <= 0 {
				t.Sick++
			}
		}
	}
	if err := v.holdings(ctx, f, of); err != nil {
		return nil, nil, err
	}
	bill, err := v.bill(ctx, r.from, r.to)
	if err != nil {
		return nil, nil, err
	}
	for i := range bill.Rows {
		b := &bill.Rows[i]
		owner, ok := fleet.OwnerOf(b.Labels)
		if !ok || !fleet.IsWorkload(owner.Kind) {
			continue
		}
		t := of(owner)
		t.Models, t.Nodes = with(t.Models, v.opts.shortModel(b.Labels[fleet.LabelModel])), with(t.Nodes, fleet.NodeOf(b.Labels))
		t.amounts, t.billed = t.amounts.Add(b.Amounts), true
	}
	rows := make([]workload, 0, len(all))
	for _, t := range all {
		rows = append(rows, t.row())
	}
	slices.SortFunc(rows, func(a, b workload) int { return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(a.ID, b.ID)) })
	return rows, bill, nil
}

// holdings adds what each workload holds at the time of f.
func (v *viewer) holdings(ctx context.Context, f *fleet.Fleet, of func(fleet.Owner) *totals) error {
	list, err := v.fleet.Holdings(ctx, f.At, "")
	if err != nil {
		return err
	}
	for i := range list {
		h := &list[i]
		if !fleet.IsWorkload(h.Kind) {
			continue
		}
		t := of(h.Owner)
		if part, ok := h.Allocation.Get(); ok {
			t.GPUs += number(part)
		}
		t.util.add(float(h.Utilization))
		t.memory.add(float(h.Memory))
		t.watts.add(float(h.Power))
	}
	return nil
}

func (t *totals) row() workload {
	w := t.workload
	w.GPUs = number(math.Round(float64(w.GPUs)*1e6) / 1e6)
	w.Utilization = number(absent)
	switch {
	case t.util.n == 0:
	case w.GPUs > 0:
		w.Utilization = number(min(1, t.util.total/float64(w.GPUs))) // relative to its holdings
	case w.Uninvited > 0:
		w.Utilization = number(t.util.total / float64(w.Uninvited)) // relative to the devices that it uses
	}
	w.Memory, w.Watts, w.PerHour = t.memory.value(), t.watts.value(), t.rate.value()
	if w.taken = takenOf(t.amounts); !t.billed {
		w.taken = unknownTaken()
	}
	slices.Sort(w.Models)
	slices.Sort(w.Nodes)
	return w
}

// with appends text to list unless the list already has it.
func with(list []string, text string) []string {
	if text == "" || slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

// bill returns the bill of a period, aligned to whole minutes.
func (v *viewer) bill(ctx context.Context, from, to time.Time) (*Bill, error) {
	if v.accounts.Bill == nil {
		return &Bill{}, nil
	}
	from, to = from.Truncate(time.Minute), to.Truncate(time.Minute)
	b, err := v.bills.get(ctx, span{from.Unix(), to.Unix()}, v.opts.Now(), time.Minute, func(ctx context.Context) (*Bill, error) { return v.accounts.Bill(ctx, from, to) })
	if err != nil {
		return nil, fmt.Errorf("cannot compute the bill: %w", err)
	}
	return b, nil
}

type workloadAnswer struct {
	At       int64         `json:"at"`
	From     int64         `json:"from"`
	To       int64         `json:"to"`
	Currency string        `json:"currency,omitempty"`
	Workload workload      `json:"workload"`
	Texts    []string      `json:"texts"`
	GPUs     gpus          `json:"gpus"`   // held now
	Owners   []fleet.Owner `json:"owners"` // workloads that the devices refer to
	PerGPU   []perGPU      `json:"perGPU"` // usage by device in the period
	// Simulated is about the whole fleet, as on the other pages.
	Simulated simulation `json:"simulated"`
	Findings  []Finding  `json:"findings"`
	Pods      []string   `json:"pods"`
	Serving   []served   `json:"serving"` // the models that it serves
	// ServingError says why Serving is empty, if it could not be read.
	ServingError string `json:"servingError,omitempty"`
	// Training is what it did if it trains; TrainingError says why that could not be read.
	Training      *trained `json:"training,omitempty"`
	TrainingError string   `json:"trainingError,omitempty"`
}

type perGPU struct {
	GPU   string `json:"gpu"`
	Index string `json:"index"`
	Model string `json:"model"` // short name
	Node  string `json:"node"`
	taken
}

func (v *viewer) workloadPage(ctx context.Context, r request) (any, error) {
	id := r.values.Get("id")
	if _, _, _, err := fleet.ParseOwner(id); err != nil {
		return nil, fmt.Errorf("%w: %w", errBad, err)
	}
	rows, bill, err := v.workloads(ctx, r)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(rows, func(w workload) bool { return w.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("%w: no such workload in this period", errNone)
	}
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	a := workloadAnswer{
		At: r.at.Unix(), From: r.from.Unix(), To: r.to.Unix(), Currency: v.accounts.Currency, Workload: rows[i],
		Owners: f.Owners, Simulated: simulationOf(f, bill), PerGPU: []perGPU{}, Findings: []Finding{}, Pods: []string{}, Serving: []served{},
	}
	var mine []fleet.Device
	for i := range f.Devices {
		if slices.ContainsFunc(slices.Concat(f.Devices[i].Owners, f.Devices[i].Uninvited), func(n int) bool { return f.Owners[n].ID == id }) {
			mine = append(mine, f.Devices[i])
		}
	}
	a.GPUs, a.Texts = v.columns(mine)
	for i := range bill.Rows {
		b := &bill.Rows[i]
		if owner, _ := fleet.OwnerOf(b.Labels); owner.ID == id {
			uuid, index := b.Labels[fleet.LabelUUID], ""
			if n, ok := f.ByUUID(uuid); ok && f.Devices[n].Index.OK() {
				index = fmt.Sprint(float(f.Devices[n].Index))
			}
			a.PerGPU = append(a.PerGPU, perGPU{
				GPU: uuid, Index: index, Model: v.opts.shortModel(b.Labels[fleet.LabelModel]), Node: fleet.NodeOf(b.Labels), taken: takenOf(b.Amounts),
			})
		}
	}
	findings, err := v.findings(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, x := range findings {
		if x.Owner != nil && x.Owner.ID == id {
			a.Findings = append(a.Findings, x)
		}
	}
	if a.Pods, err = v.fleet.Pods(ctx, r.at, id); err != nil {
		return nil, err
	}
	if a.Training, err = v.training(ctx, r, id, bill); err != nil {
		a.TrainingError = err.Error()
	}
	// What all engines did in a long period may take long. The rest of the page does not wait for that until it is too late.
	soon, cancel := context.WithTimeout(ctx, v.opts.Timeout/2)
	defer cancel()
	all, _, err := v.serving(soon, r)
	if err != nil {
		a.ServingError = err.Error()
		return a, nil
	}
	for i := range all {
		if all[i].Owner != nil && all[i].Owner.ID == id {
			a.Serving = append(a.Serving, all[i])
		}
	}
	return a, nil
}
