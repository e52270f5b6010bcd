package cost

import (
	"slices"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Use is the usage of one limit of a quota.
type Use struct {
	Quota  string `json:"quota"`
	Source string `json:"source"`
	Team   string `json:"team,omitempty"` // if the quota is about exactly one team
	// Namespace and Cluster are set if the quota is about exactly one.
	Namespace string `json:"namespace,omitempty"`
	Cluster   string `json:"cluster,omitempty"`

	What  string  `json:"what"` // gpus, gpu_hours or money
	Used  float64 `json:"used"`
	Limit float64 `json:"limit"`
	Over  bool    `json:"over"`
}

// Check compares quotas with the bill of the month so far and with current holdings. A series
// counts toward every quota that it matches.
func Check(quotas []Quota, month Statement, held []query.Sample) []Use {
	var out []Use
	rows := alike(quotas, month.Rows)
	for _, q := range quotas {
		add := func(what string, used, limit float64) {
			out = append(out, Use{Quota: q.Name, Source: q.Source, Team: q.team, Namespace: q.namespace, Cluster: q.cluster, What: what, Used: used, Limit: limit, Over: used > limit})
		}
		var sum Amounts
		for i := range rows {
			if q.Matches(rows[i].Labels) {
				sum = sum.Add(rows[i].Amounts)
			}
		}
		if q.GPUs != nil {
			add("gpus", fleet.Parts(held, q.Matches), *q.GPUs)
		}
		if q.Hours != nil {
			add("gpu_hours", sum.Allocated().Hours(), *q.Hours)
		}
		if q.Money != nil {
			add("money", float64(sum.Total())/1e6, float64(*q.Money)/1e6)
		}
	}
	return out
}

// alike returns the sums of held rows that no quota tells apart: a fleet has a hundred thousand rows a
// month, but few teams and namespaces.
func alike(quotas []Quota, rows []Row) []Row {
	var names []string
	for i := range quotas {
		for _, m := range quotas[i].match {
			names = append(names, m.label)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var out []Row
	index := map[string]int{}
	var key []byte
	for i := range rows {
		r := &rows[i]
		if !fleet.IsHeld(r.about().kind) {
			continue
		}
		key = key[:0]
		for _, name := range names {
			key = append(append(key, r.Labels[name]...), 0xff) // no UTF-8 has it
		}
		n, ok := index[string(key)]
		if !ok {
			n = len(out)
			index[string(key)] = n
			out = append(out, Row{Labels: r.Labels})
		}
		out[n].Amounts = out[n].Add(r.Amounts)
	}
	return out
}
