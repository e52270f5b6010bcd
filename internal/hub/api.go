package hub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpumeter/gpumeter/internal/hub/growth"
	"github.com/gpumeter/gpumeter/internal/query"
)

// prometheusVersion is the version of the embedded database and of PromQL, for clients that
// derive the available features from it.
const prometheusVersion = "3.13.2"

// maxPoints bounds the points per series of a range query, as in Prometheus.
const maxPoints = 11_000

// maxList bounds lists of series and label values.
const maxList = 200_000

// routes registers the API that Grafana and other Prometheus clients use.
func (h *handler) routes(mux *http.ServeMux) {
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request, Grant){
		"/api/v1/query":               h.instant,
		"/api/v1/query_range":         h.span,
		"/api/v1/series":              h.series,
		"/api/v1/labels":              h.labelNames,
		"/api/v1/label/{name}/values": h.labelValues,
		"/api/v1/metadata":            h.metadata,
		"/api/v1/status/buildinfo":    h.buildInfo,
		"/api/v1/query_exemplars":     func(w http.ResponseWriter, _ *http.Request, _ Grant) { answer(w, []any{}) },
		"/api/v1/rules": func(w http.ResponseWriter, _ *http.Request, _ Grant) {
			answer(w, map[string]any{"groups": []any{}})
		},
		"/api/v1/alerts": h.alerts,
		"/api/events":    h.listEvents,
	} {
		mux.Handle("GET "+path, h.reader(h.inTurn(serve)))
		mux.Handle("POST "+path, h.reader(h.inTurn(serve)))
	}
	mux.Handle("/api/", h.reader(func(w http.ResponseWriter, r *http.Request, _ Grant) {
		fail(w, http.StatusNotFound, "not_found", fmt.Errorf("unknown path %s", r.URL.Path))
	}))
}

// bad answers an invalid request.
func (h *handler) bad(w http.ResponseWriter, err error) {
	if _, ok := errors.AsType[growth.ErrBytes](err); ok || errors.Is(err, errLong) || errors.Is(err, growth.ErrRegexp) {
		h.opt.Refusals.Add(QueryLimit, 1)
		fail(w, http.StatusUnprocessableEntity, "execution", err)
		return
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		h.opt.Refusals.Add(BodySize, 1)
		fail(w, http.StatusRequestEntityTooLarge, "bad_data", err)
		return
	}
	fail(w, http.StatusBadRequest, "bad_data", err)
}

// failed answers a query whose evaluation failed.
func (h *handler) failed(w http.ResponseWriter, err error) {
	var timeout promql.ErrQueryTimeout
	var canceled promql.ErrQueryCanceled
	var syntax parser.ParseErrors
	var stored promql.ErrStorage
	switch {
	case errors.As(err, &timeout), errors.Is(err, context.DeadlineExceeded):
		fail(w, http.StatusServiceUnavailable, "timeout", err)
	case errors.As(err, &canceled):
		fail(w, http.StatusServiceUnavailable, "canceled", err)
	case errors.As(err, &syntax):
		fail(w, http.StatusBadRequest, "bad_data", err)
	case errors.As(err, &stored):
		fail(w, http.StatusInternalServerError, "internal", err)
	default:
		fail(w, http.StatusUnprocessableEntity, "execution", err)
	}
}

func (h *handler) instant(w http.ResponseWriter, r *http.Request, g Grant) {
	at, err := parseTime(r, "time", time.Now())
	if err != nil {
		h.bad(w, err)
		return
	}
	h.query(w, r, g, func(ctx context.Context, s *Store, expr string) (*promql.Result, func(), error) {
		return s.instant(ctx, expr, at)
	}, func(ctx context.Context, expr string, kind parser.ValueType) (any, error) {
		if kind == parser.ValueTypeScalar { // query.Store has no scalars
			samples, err := h.store.Instant(ctx, "vector("+expr+"\n)", at) // the expression may end with a comment
			return scalarOf(samples), err
		}
		if kind == parser.ValueTypeMatrix { // raw samples, which bills need around the edges of a period
			series, err := h.raw(ctx, expr, at)
			return matrixOf(series), err
		}
		samples, err := h.store.Instant(ctx, expr, at)
		return vectorOf(samples), err
	})
}

// raw evaluates a range selector, such as x{a="b"}[10m], on a store that is not the hub's.
func (h *handler) raw(ctx context.Context, expr string, at time.Time) ([]query.Series, error) {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return nil, err
	}
	m, ok := e.(*parser.MatrixSelector)
	if !ok {
		return nil, fmt.Errorf("%.100s is not a range selector: its store has no subqueries", expr)
	}
	v, ok := m.VectorSelector.(*parser.VectorSelector)
	if !ok || v.OriginalOffset != 0 || v.Timestamp != nil || v.StartOrEnd != 0 || m.Range <= 0 {
		return nil, fmt.Errorf("%.100s has an offset or a modifier, which its store does not support", expr)
	}
	return h.store.Raw(ctx, v.String(), at.Add(-m.Range), at)
}

func (h *handler) span(w http.ResponseWriter, r *http.Request, g Grant) {
	start, err := parseTime(r, "start", time.Time{})
	end, other := parseTime(r, "end", time.Time{})
	step, third := parseDuration(r.FormValue("step"))
	switch err = errors.Join(err, other); {
	case err != nil:
	case end.Before(start):
		err = errors.New(`invalid parameter "end": end timestamp must not be before start time`)
	case third != nil:
		err = fmt.Errorf(`invalid parameter "step": %w`, third)
	case step <= 0:
		err = errors.New(`invalid parameter "step": zero or negative query resolution step widths are not accepted. Try a positive integer`)
	case end.Sub(start)/step > maxPoints:
		err = errors.New("exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)")
	}
	if err != nil {
		h.bad(w, err)
		return
	}
	h.query(w, r, g, func(ctx context.Context, s *Store, expr string) (*promql.Result, func(), error) {
		return s.span(ctx, expr, start, end, step)
	}, func(ctx context.Context, expr string, _ parser.ValueType) (any, error) {
		series, err := h.store.Range(ctx, expr, start, end, step)
		return matrixOf(series), err
	})
}

// query evaluates an expression with own, or with foreign if the store is not the hub's.
func (h *handler) query(w http.ResponseWriter, r *http.Request, g Grant,
	own func(context.Context, *Store, string) (*promql.Result, func(), error), foreign func(context.Context, string, parser.ValueType) (any, error),
) {
	ctx := r.Context()
	if text := r.FormValue("timeout"); text != "" {
		d, err := parseDuration(text)
		if err != nil {
			h.bad(w, fmt.Errorf(`invalid parameter "timeout": %w`, err))
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	expr, kind, err := h.parse(r.FormValue("query"), g)
	if err != nil {
		h.bad(w, fmt.Errorf(`invalid parameter "query": %w`, err))
		return
	}
	s, ok := h.store.(*Store)
	if !ok {
		data, err := foreign(ctx, expr, kind)
		if errors.Is(err, context.DeadlineExceeded) {
			h.opt.Refusals.Add(QueryTimeout, 1) // the hub's own store counts timeouts itself
		}
		if err != nil {
			h.failed(w, err)
			return
		}
		answer(w, data)
		return
	}
	result, done, err := own(ctx, s, expr)
	if err != nil {
		h.failed(w, err)
		return
	}
	defer done()
	free, err := h.hold(r, result)
	if err != nil {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "unavailable", err)
		return
	}
	defer free()
	writeResult(w, result, expr)
}

// selectors returns the match[] selectors, restricted to the scope of a grant.
func (h *handler) selectors(r *http.Request, g Grant) ([]string, error) {
	p := parser.NewParser(parser.Options{})
	list := r.Form["match[]"]
	if err := checkLength(list...); err != nil {
		return nil, err
	}
	if g.Scope.All() {
		_, err := p.ParseMetricSelectors(list)
		return list, err
	}
	if len(list) == 0 {
		s := parser.VectorSelector{LabelMatchers: matchers(g.Scope.Labels())}
		return []string{s.String()}, nil
	}
	var out []string
	for _, s := range list {
		if _, err := p.ParseMetricSelector(s); err != nil {
			return nil, err
		}
		s, err := restrict(p, s, g.Scope)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// list parses the parameters common to all lists and answers with the result of ask.
func (h *handler) list(w http.ResponseWriter, r *http.Request, g Grant, ask func(s *Store, selectors []string, from, to time.Time, limit int) (any, bool, error)) {
	selectors, err := h.selectors(r, g)
	if err != nil {
		h.bad(w, fmt.Errorf(`invalid parameter "match[]": %w`, err))
		return
	}
	from, err := parseTime(r, "start", minTime)
	to, other := parseTime(r, "end", maxTime)
	limit, third := parseLimit(r)
	if err = errors.Join(err, other, third); err != nil {
		h.bad(w, err)
		return
	}
	s, ok := h.store.(*Store)
	if !ok {
		fail(w, http.StatusNotImplemented, "not_implemented", errors.New("this hub has no store of its own: query the --backend store instead"))
		return
	}
	data, more, err := ask(s, selectors, from, to, limit)
	switch {
	case err != nil:
		h.late(err)
		h.failed(w, err)
	case more:
		answer(w, data, "results truncated due to limit")
	default:
		answer(w, data)
	}
}

func (h *handler) series(w http.ResponseWriter, r *http.Request, g Grant) {
	if len(r.Form["match[]"]) == 0 {
		h.bad(w, errors.New("no match[] parameter provided"))
		return
	}
	h.list(w, r, g, func(s *Store, selectors []string, from, to time.Time, limit int) (any, bool, error) {
		list, more, err := s.Series(r.Context(), selectors, from, to, limit)
		if list == nil {
			list = []Labels{}
		}
		return list, more, err
	})
}

func (h *handler) labelNames(w http.ResponseWriter, r *http.Request, g Grant) {
	h.list(w, r, g, func(s *Store, selectors []string, from, to time.Time, limit int) (any, bool, error) {
		list, more, err := s.LabelNames(r.Context(), selectors, from, to, limit)
		return orEmpty(list), more, err
	})
}

func (h *handler) labelValues(w http.ResponseWriter, r *http.Request, g Grant) {
	name := r.PathValue("name")
	if !model.UTF8Validation.IsValidLabelName(name) {
		h.bad(w, fmt.Errorf("invalid label name: %q", name))
		return
	}
	h.list(w, r, g, func(s *Store, selectors []string, from, to time.Time, limit int) (any, bool, error) {
		list, more, err := s.LabelValues(r.Context(), name, selectors, from, to, limit)
		return orEmpty(list), more, err
	})
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

var (
	minTime = time.UnixMilli(math.MinInt64 / 1000)
	maxTime = time.UnixMilli(math.MaxInt64 / 1000)
)

// parseTime parses a time like Prometheus: Unix seconds or RFC 3339.
func parseTime(r *http.Request, name string, otherwise time.Time) (time.Time, error) {
	text := r.FormValue(name)
	if text == "" {
		if otherwise.IsZero() {
			return otherwise, fmt.Errorf("invalid parameter %q: cannot parse \"\" to a valid timestamp", name)
		}
		return otherwise, nil
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(f) < 1e15 {
		whole, part := math.Modf(f)
		return time.Unix(int64(whole), int64(math.Round(part*1000)*1e6)).UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("invalid parameter %q: cannot parse %q to a valid timestamp", name, text)
}

func parseDuration(text string) (time.Duration, error) {
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		if f *= float64(time.Second); !(math.Abs(f) < math.MaxInt64) {
			return 0, fmt.Errorf("cannot parse %q to a valid duration. It overflows int64", text)
		}
		return time.Duration(f), nil
	}
	if d, err := model.ParseDuration(text); err == nil {
		return time.Duration(d), nil
	}
	return 0, fmt.Errorf("cannot parse %q to a valid duration", text)
}

// parseLimit returns the maximum length of a list.
func parseLimit(r *http.Request) (int, error) {
	text := r.FormValue("limit")
	if text == "" {
		return maxList, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, errors.New(`invalid parameter "limit": limit must be non-negative`)
	}
	if n == 0 {
		n = maxList
	}
	return min(n, maxList), nil
}
