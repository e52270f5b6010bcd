package fleet

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// movedAfter is how much newer the samples of one node must be for a device to have moved there.
// Two agents that report the same device at the same time differ by less; the first by name then
// has the device, so that the page does not alternate.
const movedAfter = time.Minute

// recent is the lookback of an instant query.
const recent = 5 * time.Minute

type place struct{ cluster, host, node string }

func placeOf(l query.Labels) place { return place{l[LabelCluster], l[LabelHost], l[LabelNode]} }

// settle removes the samples of SeriesUp of places that devices have left: for minutes after a
// device moved to another node, both nodes have recent samples.
func (r *Reader) settle(ctx context.Context, samples []query.Sample, at time.Time) ([]query.Sample, error) {
	places := map[string]place{} // by UUID
	var unclear []string
	for _, s := range samples {
		uuid := s.Labels[LabelUUID]
		if s.Value <= 0 {
			continue
		}
		if p, ok := places[uuid]; ok && p != placeOf(s.Labels) && uuid != "" {
			unclear = append(unclear, uuid)
		}
		places[uuid] = placeOf(s.Labels)
	}
	type sighting struct {
		place
		at time.Time
	}
	last := map[string]sighting{}
	for _, match := range AnyOf(LabelUUID, unclear) {
		series, err := r.store.Raw(ctx, SeriesUp+"{"+match+"}", at.Add(-recent), at)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(series, func(a, b query.Series) int { return strings.Compare(a.Labels.Key(), b.Labels.Key()) })
		for _, s := range series {
			s.Points = slices.DeleteFunc(s.Points, func(p query.Point) bool { return math.IsNaN(p.Value) }) // the end of a series is no sighting
			if len(s.Points) == 0 {
				continue
			}
			uuid, t := s.Labels[LabelUUID], s.Points[len(s.Points)-1].Time
			if old, ok := last[uuid]; !ok || t.Sub(old.at) > movedAfter {
				last[uuid] = sighting{placeOf(s.Labels), t}
			}
		}
	}
	return slices.DeleteFunc(samples, func(s query.Sample) bool {
		seen, ok := last[s.Labels[LabelUUID]]
		return ok && placeOf(s.Labels) != seen.place
	}), nil
}
