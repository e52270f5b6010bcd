package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// PeaksPage is the path of what a hub keeps of gauges by the hour, with the parameters f, name, window (seconds) and until
// (Unix milliseconds).
const PeaksPage = "peaks"

// Peak is the extreme or mean of a gauge in JSON.
type Peak struct {
	Labels query.Labels `json:"labels"`
	Value  float64      `json:"value"`
}

var _ query.Aggregator = (*Store)(nil)

// NewPeaks returns the answer to a question about peaks. Labels that tell how a sample came to the hub are left out.
func NewPeaks(list []query.Sample) []Peak {
	out := make([]Peak, 0, len(list))
	for _, s := range list {
		if !math.IsNaN(s.Value) && !math.IsInf(s.Value, 0) { // JSON has neither
			out = append(out, Peak{fleet.Row(s.Labels), s.Value})
		}
	}
	return out
}

// OverTime implements query.Aggregator: a hub answers from its hours. It is ErrNotKept for other stores, older hubs, and a token that
// sees a part of the fleet.
func (s *Store) OverTime(ctx context.Context, f, name string, window time.Duration, at time.Time) ([]query.Sample, error) {
	if s.other {
		return nil, fleet.ErrNotKept
	}
	form := url.Values{"f": {f}, "name": {name}, "window": {strconv.FormatInt(int64(window/time.Second), 10)}, "until": {strconv.FormatInt(at.UnixMilli(), 10)}}
	body, ok, err := s.client.Page(ctx, PeaksPage+"?"+form.Encode())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fleet.ErrNotKept
	}
	var list []Peak
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("the peaks that the hub sent are invalid: %w", err)
	}
	out := make([]query.Sample, len(list))
	for i, p := range list {
		out[i] = query.Sample{Labels: p.Labels, Time: at, Value: p.Value}
	}
	return out, nil
}
