package cost

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Row is one workload on one device or partition, or what nobody holds of it.
type Row struct {
	Labels query.Labels `json:"labels"` // of its series, without how they came
	Amounts

	counted bool
}

// Statement is the bill of a fleet for a period. Its rows add up to Total, exactly.
type Statement struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Currency string    `json:"currency"`
	Rows     []Row     `json:"rows"` // by labels

	Total Amounts `json:"total"`
	// By kind of holder. Together they are Total.
	Workloads    Amounts `json:"workloads"`
	Unallocated  Amounts `json:"unallocated"`
	Unattributed Amounts `json:"unattributed"`
	Other        Amounts `json:"other"`

	Missing Missing `json:"missing"`
	// Since is about when the store begins to know anything, if that is in the period.
	Since time.Time `json:"since,omitzero"`
}

// Missing is what a bill does not have.
type Missing struct {
	// NoPrice is device time without a price by model.
	NoPrice map[string]Seconds `json:"no_price,omitempty"`
	// Older sums were first seen with time on them, which is in no bill.
	Older        int     `json:"older_sums,omitempty"`
	OlderSeconds Seconds `json:"older_seconds,omitempty"`
	// Refused are values that no counter can have.
	Refused int `json:"refused,omitempty"`
}

func (b *biller) statement(from, to time.Time) Statement {
	s := Statement{From: from, To: to, Currency: cmp.Or(b.prices.Currency, "USD")}
	for _, key := range slices.Sorted(maps.Keys(b.rows)) {
		r := b.rows[key]
		if !r.counted {
			continue // it is known from before the period
		}
		s.Rows = append(s.Rows, *r)
		s.Total = s.Total.Add(r.Amounts)
		part := s.part(r.Labels["gpu_workload_kind"])
		*part = part.Add(r.Amounts)
		if r.Unpriced > 0 {
			if s.Missing.NoPrice == nil {
				s.Missing.NoPrice = map[string]Seconds{}
			}
			s.Missing.NoPrice[r.Labels["gpu_model"]] += r.Unpriced
		}
	}
	s.Missing.Older, s.Missing.OlderSeconds, s.Missing.Refused = b.older, b.olderOn, b.refused
	return s
}

func (s *Statement) part(kind string) *Amounts {
	switch kind {
	case "unallocated":
		return &s.Unallocated
	case "unattributed":
		return &s.Unattributed
	case "other":
		return &s.Other
	}
	return &s.Workloads
}

// Group are rows that have something in common.
type Group struct {
	Name string `json:"name"`
	Amounts

	Devices   int `json:"devices"`
	Workloads int `json:"workloads"`
}

// Dimension is what rows can be grouped by.
type Dimension struct {
	Name string
	// labels of which the first that is there is the name of the group.
	labels []string
	// device: what nobody holds belongs to a group too.
	device bool
}

// Dimensions are all that there are.
func Dimensions() []Dimension {
	return []Dimension{
		{"team", []string{"gpu_workload_team", "slurm_account", "k8s_namespace_name"}, false},
		{"namespace", []string{"k8s_namespace_name"}, false},
		{"user", []string{"slurm_user", "user_name"}, false},
		{"account", []string{"slurm_account"}, false},
		{"workload", []string{"gpu_workload_name"}, false},
		{"model", []string{"gpu_model"}, true},
		{"cluster", []string{"k8s_cluster_name", "slurm_cluster"}, true},
		{"node", []string{"k8s_node_name", "host_name"}, true},
	}
}

// DimensionOf returns the dimension of a name.
func DimensionOf(name string) (Dimension, bool) {
	list := Dimensions()
	i := slices.IndexFunc(list, func(d Dimension) bool { return d.Name == name })
	if i < 0 {
		return Dimension{}, false
	}
	return list[i], true
}

// NameOf is the group that a row belongs to. Names in parentheses are no names of users.
func (d Dimension) NameOf(labels query.Labels) string {
	if kind := labels["gpu_workload_kind"]; !d.device {
		switch kind {
		case "unallocated", "unattributed", "other":
			return "(" + kind + ")"
		}
	}
	for _, l := range d.labels {
		if v := labels[l]; v != "" {
			if place := cmp.Or(labels["k8s_namespace_name"], labels["slurm_account"], labels["user_name"]); d.Name == "workload" && place != "" {
				return place + "/" + v
			}
			return v
		}
	}
	return "(none)"
}

// By groups rows. The groups add up to Total; the most expensive come first, and of equal
// ones those with most time.
func (s *Statement) By(d Dimension) []Group {
	type members struct{ devices, workloads map[string]bool }
	groups := map[string]*Group{}
	in := map[string]members{}
	for i := range s.Rows {
		r := &s.Rows[i]
		name := d.NameOf(r.Labels)
		g := groups[name]
		if g == nil {
			g = &Group{Name: name}
			groups[name] = g
			in[name] = members{map[string]bool{}, map[string]bool{}}
		}
		g.Amounts = g.Add(r.Amounts)
		in[name].devices[r.Labels["gpu_uuid"]] = true
		if k := r.Labels["gpu_workload_kind"]; k != "unallocated" {
			in[name].workloads[k+"/"+r.Labels["k8s_namespace_name"]+"/"+r.Labels["gpu_workload_name"]] = true
		}
	}
	out := make([]Group, 0, len(groups))
	for name, g := range groups {
		g.Devices, g.Workloads = len(in[name].devices), len(in[name].workloads)
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Amounts.Total(), a.Amounts.Total()), cmp.Compare(b.Time(), a.Time()), cmp.Compare(a.Name, b.Name))
	})
	return out
}
