package fleet

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// Partition is one partition of a device at one moment.
type Partition struct {
	ID, Profile string
	Up          bool
	Utilization optional.Float
	SM          optional.Float
	Memory      optional.Float
	MemoryTotal optional.Float
}

// State has the details of a device that Device lacks.
type State struct {
	SM         optional.Float // activity of the compute units, 0 to 1
	PowerLimit optional.Float // watts

	PowerCapped     bool
	ThermalThrottle bool
	NeedsReset      bool // the driver requests a recovery action
	RemapPending    bool
	XIDs            []string // all codes reported so far, in order
	Partitions      []Partition
}

// Gap is a reason why an agent cannot attribute some of its devices.
type Gap struct{ Cluster, Host, Source, Reason string }

// Detail has the details of a fleet.
type Detail struct {
	States map[string]*State // by DeviceKey
	Gaps   []Gap
}

var detailSeries = []string{
	SeriesSMActive, SeriesPowerLimit, SeriesThrottlePower, SeriesThrottleThermal, SeriesRecoveryAction, SeriesRowRemapPending, SeriesXIDErrors,
	SeriesPartitionUp, SeriesPartitionUtilization, SeriesPartitionSMActive, SeriesPartitionMemoryUsed, SeriesPartitionMemoryTotal, SeriesAttribution,
}

// Detail returns the details of all devices at a moment, in one query.
func (r *Reader) Detail(ctx context.Context, at time.Time) (*Detail, error) {
	samples, err := r.store.Instant(ctx, "{"+LabelName+`=~"`+strings.Join(detailSeries, "|")+`"}`, at)
	if err != nil {
		return nil, err
	}
	d := &Detail{States: map[string]*State{}}
	for _, s := range samples {
		l, v := s.Labels, optional.Of(s.Value)
		if math.IsNaN(s.Value) {
			continue
		}
		if l[LabelName] == SeriesAttribution {
			if gap := (Gap{l[LabelCluster], l[LabelHost], l[LabelAttributionSource], l[LabelAttributionReason]}); s.Value > 0 && !slices.Contains(d.Gaps, gap) {
				d.Gaps = append(d.Gaps, gap)
			}
			continue
		}
		state := d.States[DeviceKey(l)]
		if state == nil {
			state = &State{}
			d.States[DeviceKey(l)] = state
		}
		switch l[LabelName] {
		case SeriesSMActive:
			state.SM = v
		case SeriesPowerLimit:
			state.PowerLimit = v
		case SeriesThrottlePower:
			state.PowerCapped = s.Value > 0
		case SeriesThrottleThermal:
			state.ThermalThrottle = s.Value > 0
		case SeriesRecoveryAction:
			state.NeedsReset = s.Value > 0
		case SeriesRowRemapPending:
			state.RemapPending = s.Value > 0
		case SeriesXIDErrors:
			state.XIDs = append(state.XIDs, l[LabelXIDCode])
		default:
			p := state.partition(l[LabelPartition], l[LabelPartitionProfile])
			switch l[LabelName] {
			case SeriesPartitionUp:
				p.Up = s.Value > 0
			case SeriesPartitionUtilization:
				p.Utilization = v
			case SeriesPartitionSMActive:
				p.SM = v
			case SeriesPartitionMemoryUsed:
				p.Memory = v
			case SeriesPartitionMemoryTotal:
				p.MemoryTotal = v
			}
		}
	}
	for _, state := range d.States {
		slices.Sort(state.XIDs)
		state.XIDs = slices.Compact(state.XIDs)
		slices.SortFunc(state.Partitions, func(a, b Partition) int { return cmp.Compare(a.ID, b.ID) })
	}
	slices.SortFunc(d.Gaps, func(a, b Gap) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Reason, b.Reason))
	})
	return d, nil
}

// partition returns the partition with this ID and adds it if needed.
func (s *State) partition(id, profile string) *Partition {
	i := slices.IndexFunc(s.Partitions, func(p Partition) bool { return p.ID == id })
	if i < 0 {
		i = len(s.Partitions)
		s.Partitions = append(s.Partitions, Partition{ID: id, Profile: profile})
	}
	return &s.Partitions[i]
}
