package kube

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

const (
	// historyFor is how long a pod that ended still counts as something that people ask for.
	historyFor = 24 * time.Hour
	// maxDemands bounds the different demands. Pods of one workload have the same.
	maxDemands = 1000
)

// Weighted is a demand and how many pods have it, or had it during the last day.
type Weighted struct {
	Demand
	Pods int64
}

// history is what the pods of the last day asked for.
type history struct {
	all     map[string]*demand // by the text of the demand
	refused int                // pods with a demand beyond the limit
}

type demand struct {
	Demand
	live int64
	// ended counts pods by the hour in which they ended. One cell more than a day, so that the oldest hour is whole.
	ended [25]struct{ hour, pods int64 }
}

func (d *Demand) key() string {
	return fmt.Sprintf("%d %d %v %d %q %q %q %q", d.Requests.CPU, d.Requests.Memory, d.Devices, d.Claimed, d.At, d.Selector, d.Affinity, d.Tolerations)
}

// seen records a pod that is new, old being nil, or has changed. A pod counts once however often it is seen.
func (h *history) seen(old, p *Pod, now time.Time) {
	was, is := old != nil && old.State != scheduler.Finished, p.State != scheduler.Finished
	switch {
	case was && !is:
		h.gone(old, now)
	case was && is && old.key() != p.key(): // whoever removes a gate may change the selector
		if d := h.all[old.key()]; d != nil {
			d.live--
		}
		h.add(p)
	case !was && is:
		h.add(p)
	}
}

func (h *history) add(p *Pod) {
	d := h.all[p.key()]
	if d == nil {
		if len(h.all) >= maxDemands {
			h.refused++
			return
		}
		if h.all == nil {
			h.all = map[string]*demand{}
		}
		d = &demand{Demand: p.Demand}
		h.all[p.key()] = d
	}
	d.live++
}

// gone records that a pod has ended.
func (h *history) gone(p *Pod, now time.Time) {
	d := h.all[p.key()]
	if d == nil || d.live == 0 || p.State == scheduler.Finished {
		return
	}
	d.live--
	hour := now.Unix() / 3600
	cell := &d.ended[hour%int64(len(d.ended))]
	if cell.hour != hour {
		cell.hour, cell.pods = hour, 0
	}
	cell.pods++
}

func (d *demand) pods(now time.Time) int64 {
	n := d.live
	for _, cell := range d.ended {
		if cell.hour >= now.Add(-historyFor).Unix()/3600 {
			n += cell.pods
		}
	}
	return n
}

// list returns the demands of the last day and forgets older ones.
func (h *history) list(now time.Time) []Weighted {
	var list []Weighted
	for _, key := range slices.Sorted(maps.Keys(h.all)) {
		if n := h.all[key].pods(now); n > 0 {
			list = append(list, Weighted{h.all[key].Demand, n})
		} else {
			delete(h.all, key)
		}
	}
	return list
}
