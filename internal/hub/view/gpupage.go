package view

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// holder is a workload on a device, with its share.
type holder struct {
	fleet.Owner

	Held        number `json:"held"`
	Utilization number `json:"utilization"`
	Memory      number `json:"memory"`
	Watts       number `json:"watts"`
	Partition   string `json:"partition,omitempty"`
}

type gpuAnswer struct {
	At        int64         `json:"at"`
	Currency  string        `json:"currency,omitempty"`
	Simulated simulation    `json:"simulated"` // of this device
	Texts     []string      `json:"texts"`
	Owners    []fleet.Owner `json:"owners"`
	GPU       gpus          `json:"gpu"` // a single row
	Facts     []fleet.Fact  `json:"facts"`
	Holders   []holder      `json:"holders"`
	Peers     gpus          `json:"peers"` // the device itself, then the others on its node
}

func (v *viewer) gpuPage(ctx context.Context, r request) (any, error) {
	uuid := r.values.Get("uuid")
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	i, ok := f.ByUUID(uuid)
	if !ok {
		return nil, fmt.Errorf("%w: no GPU %q at this time", errNone, uuid)
	}
	g := f.Devices[i]
	a := gpuAnswer{At: f.At.Unix(), Currency: v.accounts.Currency, Owners: f.Owners, Facts: []fleet.Fact{}, Holders: []holder{}}
	if a.Owners == nil {
		a.Owners = []fleet.Owner{}
	}
	peers := []fleet.Device{g}
	for _, p := range f.Devices {
		if p.Node == g.Node && p.Cluster == g.Cluster && p.Key() != g.Key() {
			peers = append(peers, p)
		}
	}
	if g.Simulated {
		a.Simulated = "all"
	}
	// The device is the first of the peers, so both share one dictionary.
	a.Peers, a.Texts = v.columns(peers)
	a.GPU, _ = v.columns(peers[:1])

	if a.Facts, err = v.fleet.Facts(ctx, f.At, uuid); err != nil {
		return nil, err
	}
	holdings, err := v.fleet.Holdings(ctx, f.At, uuid)
	if err != nil {
		return nil, err
	}
	for i := range holdings {
		h := &holdings[i]
		if h.Device != g.Key() {
			continue
		}
		a.Holders = append(a.Holders, holder{
			Owner: h.Owner, Held: number(float(h.Allocation)), Utilization: number(float(h.Utilization)), Memory: number(float(h.Memory)), Watts: number(float(h.Power)),
			Partition: h.Profile,
		})
	}
	slices.SortFunc(a.Holders, func(a, b holder) int { return strings.Compare(a.ID+a.Partition, b.ID+b.Partition) })
	return a, nil
}
