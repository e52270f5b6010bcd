package hub

import (
	"context"
	"maps"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Whose a series and an event is.
const (
	TeamLabel     = fleet.LabelTeam
	TeamAttribute = "gpu.workload.team"
)

// restrict returns expr with every selector limited to the series of one team.
func restrict(p parser.Parser, expr, team string) (string, error) {
	e, err := p.ParseExpr(expr)
	if err != nil {
		return "", err
	}
	m, err := labels.NewMatcher(labels.MatchEqual, TeamLabel, team)
	if err != nil {
		return "", err
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			s.LabelMatchers = append(s.LabelMatchers, m)
		}
		return nil
	})
	return e.String(), nil
}

// TeamStore returns a store in which only the series of one team are. It works on any
// store.
func TeamStore(s query.Store, team string) query.Store {
	return teamStore{s, parser.NewParser(parser.Options{}), team}
}

type teamStore struct {
	store  query.Store
	parser parser.Parser
	team   string
}

// Instant implements query.Store.
func (t teamStore) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	expr, err := restrict(t.parser, expr, t.team)
	if err != nil {
		return nil, err
	}
	return t.store.Instant(ctx, expr, at)
}

// Range implements query.Store.
func (t teamStore) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	expr, err := restrict(t.parser, expr, t.team)
	if err != nil {
		return nil, err
	}
	return t.store.Range(ctx, expr, start, end, step)
}

// Raw implements query.Store.
func (t teamStore) Raw(ctx context.Context, selector string, from, to time.Time) ([]query.Series, error) {
	selector, err := restrict(t.parser, selector, t.team)
	if err != nil {
		return nil, err
	}
	return t.store.Raw(ctx, selector, from, to)
}

// TeamEvents returns a log in which only the events of one team are, and to which nothing
// can be added.
func TeamEvents(log EventLog, team string) EventLog { return teamEvents{log, team} }

type teamEvents struct {
	log  EventLog
	team string
}

// AppendEvents implements EventLog.
func (teamEvents) AppendEvents(context.Context, []Event) error { return errReadOnly }

// Events implements EventLog.
func (t teamEvents) Events(ctx context.Context, q EventQuery) ([]Event, error) {
	q.Attributes = maps.Clone(q.Attributes)
	if q.Attributes == nil {
		q.Attributes = map[string]string{}
	}
	q.Attributes[TeamAttribute] = t.team
	return t.log.Events(ctx, q)
}
