package cost

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Row is one workload on one device or partition, or the free time of the device.
type Row struct {
	Labels query.Labels `json:"labels"` // of its series, without scrape labels
	Amounts
}

// Statement is the bill of a fleet for a period. Its rows add up to Total exactly.
type Statement struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Currency string    `json:"currency"`
	Rows     []Row     `json:"rows"` // in order of labels

	Total Amounts `json:"total"`
	// Amounts by kind of holder. They add up to Total.
	Workloads    Amounts `json:"workloads"`
	Unallocated  Amounts `json:"unallocated"`
	Unattributed Amounts `json:"unattributed"`
	Other        Amounts `json:"other"`

	Missing Missing `json:"missing"`
	// Since is approximately when the store's data begins, if that is within the period.
	Since time.Time `json:"since,omitzero"`
}

// Missing is what a bill omits.
type Missing struct {
	// NoPrice is device time without a price, by model.
	NoPrice map[string]Seconds `json:"no_price,omitempty"`
	// Unseen is what counters had accrued before the store first saw them.
	Unseen fleet.Unseen `json:"unseen,omitzero"`
	// Refused counts rejected values that no counter can have.
	Refused int `json:"refused,omitempty"`
}

func (b *biller) statement(from, to time.Time) Statement {
	s := Statement{From: from, To: to, Currency: cmp.Or(b.prices.Currency, "USD")}
	for _, key := range slices.Sorted(maps.Keys(b.rows)) {
		r := b.rows[key]
		s.Rows = append(s.Rows, *r)
		s.Total = s.Total.Add(r.Amounts)
		part := s.part(r.Labels[fleet.LabelKind])
		*part = part.Add(r.Amounts)
		if r.Unpriced > 0 {
			if s.Missing.NoPrice == nil {
				s.Missing.NoPrice = map[string]Seconds{}
			}
			s.Missing.NoPrice[r.Labels[fleet.LabelModel]] += r.Unpriced
		}
	}
	return s
}

func (s *Statement) part(kind string) *Amounts {
	switch kind {
	case fleet.KindUnallocated:
		return &s.Unallocated
	case fleet.KindUnattributed:
		return &s.Unattributed
	case fleet.KindOther:
		return &s.Other
	}
	return &s.Workloads
}

// Group is the sum of rows with the same value of a dimension.
type Group struct {
	Name string `json:"name"`
	Amounts

	Devices   int `json:"devices"`
	Workloads int `json:"workloads"`
}

// Dimension is a property by which rows can be grouped.
type Dimension struct {
	Name string
	// group returns the group of a row, empty if the row has none.
	group func(query.Labels) string
	// device dimensions also group free time.
	device bool
}

// workloadOf returns the display name of the workload of a row.
func workloadOf(l query.Labels) string {
	o, _ := fleet.OwnerOf(l)
	if o.Name == "" {
		return ""
	}
	return o.Label()
}

// Dimensions returns all dimensions.
func Dimensions() []Dimension {
	return []Dimension{
		{"team", fleet.TeamOf, false},
		{"namespace", func(l query.Labels) string { return l[fleet.LabelNamespace] }, false},
		{"user", fleet.UserOf, false},
		{"account", func(l query.Labels) string { return l[fleet.LabelSlurmAccount] }, false},
		{"workload", workloadOf, false},
		{"model", func(l query.Labels) string { return l[fleet.LabelModel] }, true},
		{"cluster", func(l query.Labels) string { return cmp.Or(l[fleet.LabelCluster], l[fleet.LabelSlurmCluster]) }, true},
		{"node", fleet.NodeOf, true},
	}
}

// DimensionOf returns the dimension with this name.
func DimensionOf(name string) (Dimension, bool) {
	list := Dimensions()
	i := slices.IndexFunc(list, func(d Dimension) bool { return d.Name == name })
	if i < 0 {
		return Dimension{}, false
	}
	return list[i], true
}

// NameOf returns the group of a row. A name in parentheses was not given by a user.
func (d Dimension) NameOf(labels query.Labels) string {
	if kind := labels[fleet.LabelKind]; kind != "" && !fleet.IsWorkload(kind) && !d.device {
		return "(" + kind + ")"
	}
	return cmp.Or(d.group(labels), "(none)")
}

// By groups rows. The groups add up to Total and are ordered by descending cost, then time.
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
		in[name].devices[r.Labels[fleet.LabelUUID]] = true
		if k := r.Labels[fleet.LabelKind]; fleet.IsWorkload(k) {
			in[name].workloads[k+"/"+r.Labels[fleet.LabelNamespace]+"/"+r.Labels[fleet.LabelWorkload]] = true
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
