package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Remote is a store at a URL. If it is a hub, its usage is what the hub keeps, so that a report is the
// same as the hub's page.
type Remote struct {
	query.Store
	client *query.Client
	other  bool // it is no hub
}

var (
	_ Keeper = (*Remote)(nil)
	_ Lister = (*Remote)(nil)
)

// NewRemote returns a store that may be a hub.
func NewRemote(c *query.Client) *Remote { return &Remote{Store: c, client: c} }

// Listed implements Lister. Other stores may round the period to days: their samples are read.
func (r *Remote) Listed(ctx context.Context, selector string, from, to time.Time) ([]query.Labels, error) {
	if r.other {
		return listed(ctx, r.Store, selector, from, to)
	}
	return r.client.Listed(ctx, selector, from, to)
}

// Usage implements Keeper.
func (r *Remote) Usage(ctx context.Context, midnight, at time.Time) (*Day, error) {
	if r.other {
		return nil, ErrNotKept
	}
	body, ok, err := r.client.Page(ctx, UsagePage+"?"+url.Values{"day": {midnight.UTC().Format(time.DateOnly)}, "until": {strconv.FormatInt(at.UnixMilli(), 10)}}.Encode())
	if err != nil {
		return nil, err
	}
	d := &Day{}
	if ok && json.Unmarshal(body, d) != nil {
		return nil, fmt.Errorf("the usage of %s that the hub sent is invalid", midnight.UTC().Format(time.DateOnly))
	}
	if r.other = !ok; r.other {
		return nil, ErrNotKept
	}
	return d, nil
}

// UsagePage is the path of a day's usage in the API of a hub's page.
const UsagePage = "usage"

// wireDay is a Day in JSON.
type wireDay struct {
	Known   bool      `json:"known"`
	Refused int       `json:"refused_values"`
	Dropped int64     `json:"reported_twice_us"`
	Rows    []wireRow `json:"rows"`
	Late    []wireRow `json:"late,omitempty"`
}

type wireRow struct {
	Labels     query.Labels `json:"labels"`
	At         int64        `json:"at_ms,omitempty"` // of late rows
	Held       int64        `json:"held_us"`
	Unmeasured int64        `json:"unmeasured_us,omitempty"`
	Active     *int64       `json:"active_us,omitempty"` // absent: unknown
	Energy     *int64       `json:"energy_mj,omitempty"` // absent: unknown
}

// MarshalJSON implements json.Marshaler.
func (d *Day) MarshalJSON() ([]byte, error) {
	out := wireDay{Known: d.Known, Refused: d.Refused, Dropped: int64(d.Dropped), Rows: make([]wireRow, 0, len(d.Rows))}
	for _, r := range d.Rows {
		x := wireRow{Labels: r.Labels, Held: int64(r.Held), Unmeasured: int64(r.Unmeasured)}
		if r.HasActive {
			x.Active = (*int64)(&r.Active)
		}
		if r.HasEnergy {
			x.Energy = (*int64)(&r.Energy)
		}
		out.Rows = append(out.Rows, x)
	}
	for _, l := range d.Late {
		out.Late = append(out.Late, wireRow{Labels: l.Labels, At: l.At.UnixMilli(), Held: int64(l.Held)})
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Day) UnmarshalJSON(b []byte) error {
	var in wireDay
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*d = Day{Known: in.Known, Refused: in.Refused, Dropped: Seconds(in.Dropped), Rows: make(map[string]*DayRow, len(in.Rows))}
	for _, x := range in.Rows {
		r := &DayRow{Labels: x.Labels, Sums: Sums{Held: Seconds(x.Held), Unmeasured: Seconds(x.Unmeasured)}}
		if x.Active != nil {
			r.Active, r.HasActive = Seconds(*x.Active), true
		}
		if x.Energy != nil {
			r.Energy, r.HasEnergy = Energy(*x.Energy), true
		}
		d.Rows[x.Labels.Key()] = r
	}
	for _, x := range in.Late {
		d.Late = append(d.Late, LateRow{Labels: x.Labels, Held: Seconds(x.Held), At: time.UnixMilli(x.At).UTC()})
	}
	return nil
}
