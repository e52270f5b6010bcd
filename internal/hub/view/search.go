package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/natural"
)

// hit is a search result.
type hit struct {
	Type   string `json:"type"` // gpu, workload, node or team
	ID     string `json:"id"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	rank   int
}

type searchAnswer struct {
	Query string `json:"query"`
	More  bool   `json:"more"`
	Hits  []hit  `json:"hits"`
}

// searchPage finds the GPUs, workloads, nodes and teams that contain all words of q: those of the
// current fleet, and the workloads that ended in the period.
func (v *viewer) searchPage(ctx context.Context, r request) (any, error) {
	q := strings.TrimSpace(r.values.Get("q"))
	if len(q) > 200 {
		return nil, fmt.Errorf("%w: q is longer than 200 characters", errBad)
	}
	a := searchAnswer{Query: q, Hits: []hit{}}
	words := strings.Fields(strings.ToLower(q))
	if len(words) == 0 {
		return a, nil
	}
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	add := func(h hit, more ...string) {
		title := strings.ToLower(h.Title)
		all := strings.ToLower(strings.Join(append(more, h.Title, h.Detail, h.ID), "\n"))
		for _, w := range words {
			if !strings.Contains(all, w) {
				return
			}
			switch {
			case title == w:
			case strings.HasPrefix(title, w):
				h.rank++
			case strings.Contains(title, w):
				h.rank += 2
			default:
				h.rank += 4
			}
		}
		a.Hits = append(a.Hits, h)
	}
	held, used, teams := make([]int, len(f.Owners)), make([]int, len(f.Owners)), map[string]int{}
	type node struct{ cluster, name string } // the name is unique within the cluster
	nodes := map[node]int{}
	models := map[node]string{}
	for i := range f.Devices {
		g := &f.Devices[i]
		at := node{g.Cluster, g.Node}
		nodes[at]++
		models[at] = g.Model
		var names []string
		for _, n := range g.Uninvited {
			used[n]++
			names = append(names, "used by "+f.Owners[n].Name+" without an allocation")
		}
		for _, n := range g.Owners {
			held[n]++
			names = append(names, f.Owners[n].Name)
			if team := f.Owners[n].Team; team != "" {
				teams[team]++
			}
		}
		add(hit{Type: "gpu", ID: g.UUID, Title: fmt.Sprintf("%s GPU %v", g.Node, float(g.Index)), Detail: g.Model + detail(strings.Join(names, ", "))}, g.Cluster, g.Rack)
	}
	present := map[string]bool{}
	workload := func(o fleet.Owner, holds string) {
		if fleet.IsWorkload(o.Kind) {
			add(hit{Type: "workload", ID: o.ID, Title: o.Name, Detail: o.Kind + detail(o.Namespace) + detail(o.Team) + detail(holds)}, o.Job, o.User, o.Account)
		}
	}
	for n, o := range f.Owners {
		present[o.ID] = true
		holds := gpusOf(held[n])
		if used[n] > 0 {
			holds = "uses " + gpusOf(used[n]) + " without an allocation"
		}
		workload(o, holds)
	}
	// A store that cannot compute the bill still finds what there is now.
	if bill, err := v.bill(ctx, r.from, r.to); err == nil {
		for i := range bill.Rows {
			if o, ok := fleet.OwnerOf(bill.Rows[i].Labels); ok && !present[o.ID] {
				present[o.ID] = true
				workload(o, "ended")
			}
		}
	}
	for at, n := range nodes {
		add(hit{Type: "node", ID: at.name, Title: at.name, Detail: gpusOf(n) + detail(models[at]) + detail(at.cluster)})
	}
	for team, n := range teams {
		add(hit{Type: "team", ID: team, Title: team, Detail: "team, " + gpusOf(n)})
	}
	order := map[string]int{"team": 0, "workload": 1, "node": 2, "gpu": 3}
	slices.SortFunc(a.Hits, func(x, y hit) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(order[x.Type], order[y.Type]), natural.Compare(x.Title, y.Title), cmp.Compare(x.ID, y.ID), cmp.Compare(x.Detail, y.Detail))
	})
	if a.More = len(a.Hits) > maxSearch; a.More {
		a.Hits = a.Hits[:maxSearch]
	}
	return a, nil
}

func gpusOf(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

func detail(text string) string {
	if text == "" {
		return ""
	}
	return " · " + text
}
