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
}

var (
	_ fleet.Keeper    = (*Store)(nil)
	_ sighting.Lister = (*Store)(nil)
)

// New returns a store that may be a hub.
func New(c *query.Client) *Store { return &Store{Store: c, client: c} }

// Keeps reports whether the store is a hub, as far as is known.
func (s *Store) Keeps() bool { return !s.other }

// Narrow returns a store whose usage is that of some devices, if they are few.
func (s *Store) Narrow(uuids []string) query.Store {
	if len(uuids) > MaxNamed {
		return s
	}
	out := *s
	out.uuids = uuids
	return &out
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
	return d.usage(), nil
}

// Listed implements sighting.Lister. Stores other than a hub may round the period to days.
func (s *Store) Listed(ctx context.Context, selector string, from, to time.Time) ([]query.Labels, error) {
	if s.other {
		return nil, fleet.ErrNotKept
	}
	return s.client.Listed(ctx, selector, from, to)
}
