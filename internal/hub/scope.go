package hub

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/query"
)

// The label and the attribute that hold the team.
const (
	TeamLabel     = fleet.LabelTeam
	TeamAttribute = "gpu.workload.team"
)

// matchers returns the matchers of labels, ordered by label.
func matchers(all map[string]string) []*labels.Matcher {
	var out []*labels.Matcher
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, labels.MustNewMatcher(labels.MatchEqual, name, all[name])) // only a regular expression can fail
	}
	return out
}

// restrict adds the matchers of a scope to every selector of expr.
func restrict(p parser.Parser, expr string, scope access.Scope) (string, error) {
	e, err := p.ParseExpr(expr)
	if err != nil {
		return "", err
	}
	own, queued := matchers(scope.Labels()), matchers(queueLabels(scope))
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			if len(queued) > 0 && ofSchedulers(s.LabelMatchers) {
				s.LabelMatchers = append(s.LabelMatchers, queued...)
			} else {
				s.LabelMatchers = append(s.LabelMatchers, own...)
			}
		}
		return nil
	})
	return e.String(), nil
}

// queueLabels returns a scope as the series of schedulers say it: their team is the same as that of a workload, and the queue of
// a pod is its namespace.
func queueLabels(scope access.Scope) map[string]string {
	out := map[string]string{}
	if scope.Team != "" {
		out[queue.LabelTeam] = scope.Team
	}
	if scope.Namespace != "" {
		out[queue.LabelQueue], out[queue.LabelScheduler] = scope.Namespace, queue.Kubernetes
	}
	if scope.Cluster != "" {
		out[queue.LabelCluster] = scope.Cluster
	}
	return out
}

// ofSchedulers reports whether matchers select series of schedulers only.
func ofSchedulers(all []*labels.Matcher) bool {
	return slices.ContainsFunc(all, func(m *labels.Matcher) bool {
		if m.Name != fleet.LabelName {
			return false
		}
		names := []string{m.Value}
		switch m.Type {
		case labels.MatchEqual:
		case labels.MatchRegexp:
			names = m.SetMatches()
		default:
			return false
		}
		return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !strings.HasPrefix(name, queue.Prefix) })
	})
}

// ScopedStore returns a view of any store that contains only the series of a scope.
func ScopedStore(s query.Store, scope access.Scope) query.Store {
	scoped := scopedStore{s, parser.NewParser(parser.Options{}), scope}
	if k, ok := s.(fleet.Keeper); ok {
		return scopedKeeper{scoped, k}
	}
	return scoped
}

// scopedKeeper has the rows of a scope as they are in the bill of the fleet: no device counts twice,
// also if others, who are outside of the scope, claim it.
type scopedKeeper struct {
	scopedStore
	keeper fleet.Keeper
}

// Usage implements fleet.Keeper.
func (t scopedKeeper) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	d, err := t.keeper.Usage(ctx, midnight, at)
	if err != nil {
		return nil, err
	}
	return d.Only(t.scope.Labels()), nil
}

type scopedStore struct {
	store  query.Store
	parser parser.Parser
	scope  access.Scope
}

// Instant implements query.Store.
func (t scopedStore) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	expr, err := restrict(t.parser, expr, t.scope)
	if err != nil {
		return nil, err
	}
	return t.store.Instant(ctx, expr, at)
}

// Range implements query.Store.
func (t scopedStore) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	expr, err := restrict(t.parser, expr, t.scope)
	if err != nil {
		return nil, err
	}
	return t.store.Range(ctx, expr, start, end, step)
}

// Raw implements query.Store.
func (t scopedStore) Raw(ctx context.Context, selector string, from, to time.Time) ([]query.Series, error) {
	selector, err := restrict(t.parser, selector, t.scope)
	if err != nil {
		return nil, err
	}
	return t.store.Raw(ctx, selector, from, to)
}

// ScopedEvents returns a view of a log that contains only the events of a scope.
func ScopedEvents(log events.Log, scope access.Scope) events.Log { return scopedEvents{log, scope} }

type scopedEvents struct {
	log   events.Log
	scope access.Scope
}

// Events implements events.Log.
func (t scopedEvents) Events(ctx context.Context, q events.Query) ([]events.Event, error) {
	all := t.scope.Attributes()
	for key, value := range q.Attributes {
		if own, ok := all[key]; ok && own != value {
			return nil, nil // outside of the scope
		}
		all[key] = value
	}
	q.Attributes = all
	return t.log.Events(ctx, q)
}
