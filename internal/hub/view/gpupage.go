package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/query"
)

// fact is something that is known of a device and does not change.
type fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// holder is a workload on a device, with its part of it.
type holder struct {
	Owner

	Held        number `json:"held"`
	Utilization number `json:"utilization"`
	Memory      number `json:"memory"`
	Watts       number `json:"watts"`
	Partition   string `json:"partition,omitempty"`
}

type gpuAnswer struct {
	At       int64    `json:"at"`
	Currency string   `json:"currency,omitempty"`
	Texts    []string `json:"texts"`
	Owners   []Owner  `json:"owners"`
	GPU      gpus     `json:"gpu"` // columns of one row
	Facts    []fact   `json:"facts"`
	Holders  []holder `json:"holders"`
	Peers    gpus     `json:"peers"` // the others of its node, and itself
}

// factLabels are the labels of gpu_info that are worth a line, with what they are called.
var factLabels = [][2]string{
	{"gpu_architecture", "Architecture"},
	{"gpu_driver_version", "Driver"},
	{"gpu_firmware_version", "Firmware"},
	{"gpu_vbios_version", "VBIOS"},
	{"gpu_pci_address", "PCI address"},
	{"gpu_numa_node", "NUMA node"},
	{"gpu_serial", "Serial"},
}

func (v *viewer) gpuPage(ctx context.Context, r request) (any, error) {
	uuid := r.values.Get("uuid")
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	i, ok := f.index[uuid]
	if !ok {
		return nil, fmt.Errorf("%w: no GPU %q at this time", errNone, uuid)
	}
	g := f.gpus[i]
	a := gpuAnswer{At: f.at.Unix(), Currency: v.accounts.Currency, Owners: f.owners, Facts: []fact{}, Holders: []holder{}}
	if a.Owners == nil {
		a.Owners = []Owner{}
	}
	peers := []gpu{g}
	for _, p := range f.gpus {
		if p.node == g.node && p.cluster == g.cluster && p.uuid != g.uuid {
			peers = append(peers, p)
		}
	}
	// One dictionary serves both.
	a.Peers, a.Texts = columns(peers)
	a.GPU, _ = columns(peers[:1])

	which := `{gpu_uuid=` + strconv.Quote(uuid) + `}`
	by := "sum by (gpu_partition_id, gpu_partition_profile, " + ownerLabels + ") "
	answers, err := v.instants(ctx, f.at, "gpu_info"+which, by+once("gpu_allocation_ratio"+which),
		by+once("gpu_workload_utilization_ratio"+which), by+once("gpu_workload_memory_used_bytes"+which), by+once("gpu_workload_power_draw_watts"+which))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(answers[0], func(a, b query.Sample) int {
		return cmp.Or(cmp.Compare(len(b.Labels), len(a.Labels)), cmp.Compare(a.Labels.Key(), b.Labels.Key()))
	})
	for _, s := range answers[0] {
		if s.Labels["gpu_partition_id"] != "" {
			continue
		}
		for _, known := range factLabels {
			if text := s.Labels[known[0]]; text != "" {
				a.Facts = append(a.Facts, fact{known[1], text})
			}
		}
		break
	}
	type key struct{ id, partition string }
	place := map[key]int{}
	for n, samples := range answers[1:] {
		for _, s := range samples {
			o, ok := ownerOf(s.Labels)
			if !ok {
				continue
			}
			k := key{o.ID, s.Labels["gpu_partition_id"]}
			at, ok := place[k]
			if !ok {
				at = len(a.Holders)
				place[k] = at
				a.Holders = append(a.Holders, holder{
					Owner: o, Held: number(absent), Utilization: number(absent), Memory: number(absent), Watts: number(absent), Partition: s.Labels["gpu_partition_profile"],
				})
			}
			h := &a.Holders[at]
			*[]*number{&h.Held, &h.Utilization, &h.Memory, &h.Watts}[n] = number(s.Value)
		}
	}
	slices.SortFunc(a.Holders, func(a, b holder) int { return strings.Compare(a.ID+a.Partition, b.ID+b.Partition) })
	return a, nil
}
