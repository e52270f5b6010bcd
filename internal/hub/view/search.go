package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

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

// searchPage finds the GPUs, workloads, nodes and teams of the current fleet that contain all
// words of q.
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
	held, teams := make([]int, len(f.Owners)), map[string]int{}
	nodes := map[string]int{}
	models := map[string]string{}
	for i := range f.Devices {
		g := &f.Devices[i]
		nodes[g.Node]++
		models[g.Node] = g.Model
		names := make([]string, len(g.Owners))
		for j, n := range g.Owners {
			held[n]++
			names[j] = f.Owners[n].Name
			if team := f.Owners[n].Team; team != "" {
				teams[team]++
			}
		}
		add(hit{Type: "gpu", ID: g.UUID, Title: fmt.Sprintf("%s GPU %v", g.Node, float(g.Index)), Detail: g.Model + detail(strings.Join(names, ", "))}, g.Cluster, g.Rack)
	}
	for n, o := range f.Owners {
		add(hit{
			Type: "workload", ID: o.ID, Title: o.Name,
			Detail: o.Kind + detail(o.Namespace) + detail(o.Team) + detail(fmt.Sprintf("%d GPUs", held[n])),
		}, o.Job, o.User, o.Account)
	}
	for node, n := range nodes {
		add(hit{Type: "node", ID: node, Title: node, Detail: fmt.Sprintf("%d GPUs", n) + detail(models[node])})
	}
	for team, n := range teams {
		add(hit{Type: "team", ID: team, Title: team, Detail: fmt.Sprintf("team, %d GPUs", n)})
	}
	order := map[string]int{"team": 0, "workload": 1, "node": 2, "gpu": 3}
	slices.SortFunc(a.Hits, func(x, y hit) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(order[x.Type], order[y.Type]), natural.Compare(x.Title, y.Title), cmp.Compare(x.ID, y.ID))
	})
	if a.More = len(a.Hits) > maxSearch; a.More {
		a.Hits = a.Hits[:maxSearch]
	}
	return a, nil
}

func detail(text string) string {
	if text == "" {
		return ""
	}
	return " · " + text
}
