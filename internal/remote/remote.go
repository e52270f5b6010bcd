// Package remote is the usage of a hub over HTTP: what the hub answers and how it is read back, so that a
// report made elsewhere is the same as the hub's page.
package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sighting"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Page is the path of a day's usage in the API of a hub's page, with the parameters day, until and
// uuid.
const Page = "usage"

// MaxNamed is how many devices a question names at most: it is part of a URL.
const MaxNamed = 50

// Store is a store at a URL. If it is a hub, its usage is what the hub keeps.
type Store struct {
	query.Store
	client *query.Client
	uuids  []string // of the devices that matter; nil: all
	other  bool     // it is no hub
	// hourly has the device time of days that were asked for: a bill asks for all of its period, and
	// its coverage needs no more than that.
	hourly map[span]map[string]*fleet.DayHours
}

// span is a day up to a moment, in ms.
type span struct{ midnight, at int64 }

var (
	_ fleet.Keeper    = (*Store)(nil)
	_ sighting.Lister = (*Store)(nil)
)

// New returns a store that may be a hub.
func New(c *query.Client) *Store {
	return &Store{Store: c, client: c, hourly: map[span]map[string]*fleet.DayHours{}}
}

// Keeps reports whether the store is a hub, as far as is known.
func (s *Store) Keeps() bool { return !s.other }

// Narrow returns a store whose usage is that of some devices, if they are few.
func (s *Store) Narrow(uuids []string) query.Store {
	if len(uuids) > MaxNamed {
		return s
	}
	out := New(s.client)
	out.uuids, out.other = uuids, s.other
	return out
}

// Usage implements fleet.Keeper.
func (s *Store) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	if s.other {
		return nil, fleet.ErrNotKept
	}
	day := midnight.UTC().Format(time.DateOnly)
	form := url.Values{"day": {day}, "until": {strconv.FormatInt(at.UnixMilli(), 10)}, "uuid": s.uuids}
	body, ok, err := s.client.Page(ctx, Page+"?"+form.Encode())
	if err != nil {
		return nil, err
	}
	if s.other = !ok; s.other {
		return nil, fleet.ErrNotKept
	}
	var d Day
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("the usage of %s that the hub sent is invalid: %w", day, err)
	}
	used := d.usage()
	s.hourly[span{midnight.UnixMilli(), at.UnixMilli()}] = used.Hourly
	return used, nil
}

// Hourly returns the device time of the hours of a day, from an answer of Usage if there was one.
func (s *Store) Hourly(ctx context.Context, midnight, at time.Time) (map[string]*fleet.DayHours, error) {
	if hourly, ok := s.hourly[span{midnight.UnixMilli(), at.UnixMilli()}]; ok {
		return hourly, nil
	}
	d, err := s.Usage(ctx, midnight, at)
	if err != nil {
		return nil, err
	}
	return d.Hourly, nil
}

// Listed implements sighting.Lister. Stores other than a hub may round the period to days.
func (s *Store) Listed(ctx context.Context, selector string, from, to time.Time) ([]query.Labels, error) {
	if s.other {
		return nil, fleet.ErrNotKept
	}
	return s.client.Listed(ctx, selector, from, to)
}
