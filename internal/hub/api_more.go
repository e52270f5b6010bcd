package hub

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/events"
)

func (h *handler) buildInfo(w http.ResponseWriter, _ *http.Request, _ Grant) {
	answer(w, map[string]string{
		"version": prometheusVersion, "revision": "", "branch": "", "buildUser": "gpumeter", "buildDate": "", "goVersion": "",
		"gpumeter": h.opt.Version,
	})
}

// metadata describes metrics. A team sees only the metrics that it has.
func (h *handler) metadata(w http.ResponseWriter, r *http.Request, g Grant) {
	limit, err := parseLimit(r)
	if err != nil {
		h.bad(w, err)
		return
	}
	s, ok := h.store.(*Store)
	if !ok {
		answer(w, map[string]any{})
		return
	}
	all := s.Families(r.FormValue("metric"))
	if !g.Scope.All() {
		selectors, err := h.selectors(r, g)
		if err != nil {
			h.bad(w, err)
			return
		}
		now := time.Now()
		names, _, err := s.LabelValues(r.Context(), "__name__", selectors, now.Add(-24*time.Hour), now, maxList)
		if err != nil {
			h.failed(w, err)
			return
		}
		own := map[string]bool{}
		for _, n := range names {
			own[n] = true
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				own[strings.TrimSuffix(n, suffix)] = true
			}
		}
		for name := range all {
			if !own[name] {
				delete(all, name)
			}
		}
	}
	out := map[string][]Family{}
	for name, f := range all {
		if len(out) == limit {
			break
		}
		out[name] = []Family{f}
	}
	answer(w, out)
}

// alerts lists the findings of the fleet rules. Rules cover the devices of all teams, so a
// team or namespace sees only the alerts that name it.
func (h *handler) alerts(w http.ResponseWriter, _ *http.Request, g Grant) {
	list := []Alert{}
	if h.opt.Alerts != nil {
		for _, a := range h.opt.Alerts() {
			if g.Scope.Has(a.Labels) {
				list = append(list, a)
			}
		}
	}
	answer(w, map[string]any{"alerts": list})
}

// listEvents answers GET /api/events?start=&end=&name=&text=&limit=&attr.KEY=VALUE.
func (h *handler) listEvents(w http.ResponseWriter, r *http.Request, g Grant) {
	_, log := h.of(g)
	if log == nil {
		answer(w, []events.Event{})
		return
	}
	now := time.Now()
	from, err := parseTime(r, "start", now.Add(-24*time.Hour))
	to, other := parseTime(r, "end", now)
	limit, third := parseLimit(r)
	if err = errors.Join(err, other, third); err != nil {
		h.bad(w, err)
		return
	}
	q := events.Query{From: from, To: to, Names: r.Form["name"], Text: r.FormValue("text"), Limit: min(limit, 10*events.DefaultLimit), Attributes: map[string]string{}}
	for key, values := range r.Form {
		if name, ok := strings.CutPrefix(key, "attr."); ok {
			q.Attributes[name] = values[0]
		}
	}
	list, err := log.Events(r.Context(), q)
	if err != nil {
		h.late(err)
		h.failed(w, err)
		return
	}
	if list == nil {
		list = []events.Event{}
	}
	answer(w, list)
}
