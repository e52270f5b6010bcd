package cost

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Row is one workload on one device or partition, or the free time of the device.
type Row struct {
	Labels query.Labels `json:"labels"` // of its series, without scrape labels
	Amounts

	facts *facts // nil: see about
}

// facts follow from the labels of a row. They are found once for all bills: to look labels up takes
// longer than to add rows up.
type facts struct {
	kind      string // of the holder
	device    string // see fleet.DeviceKey
	team      string // its group by team
	simulated bool
}

func factsOf(l query.Labels) facts {
	return facts{l[fleet.LabelKind], fleet.DeviceKey(l), teams.NameOf(l), l[fleet.LabelSimulated] == "true"}
}

// about returns what follows from the labels.
func (r *Row) about() *facts {
	if r.facts != nil {
		return r.facts
	}
	f := factsOf(r.Labels)
	return &f
}

// Device returns the key of the device that the row is about, see fleet.DeviceKey.
func (r *Row) Device() string { return r.about().device }

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
	// Commitments are paid whatever was used, and are no part of Total.
	Commitments []Committed `json:"commitments,omitempty"`
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
	// Twice is device time that was reported more than once, such as by two agents on one host,
	// and is counted once.
	Twice Seconds `json:"reported_twice_seconds,omitempty"`
}

// TwiceNote says how much was reported more than once. It is empty below a tenth of a GPU-hour: the
// samples of a workload that ends and of the next one overlap a little.
func (m *Missing) TwiceNote() string {
	if m.Twice < 360e6 {
		return ""
	}
	return fmt.Sprintf("%.1f GPU-hours were reported more than once, such as by two agents on one host, and are counted once.", m.Twice.Hours())
}

func (b *biller) statement(from, to time.Time) Statement {
	s := Statement{From: from, To: to, Currency: b.prices.Currency}
	s.Rows = slices.Grow(s.Rows, b.billed)
	rows, order := b.book.sorted(b.billed)
	for _, place := range order {
		if place >= len(b.rows) || !b.rows[place].in {
			continue
		}
		a, labels := &b.rows[place].Amounts, rows[place].labels
		s.Rows = append(s.Rows, Row{labels, *a, &rows[place].facts})
		s.Total = s.Total.Add(*a)
		part := s.part(rows[place].kind)
		*part = part.Add(*a)
		if a.Unpriced > 0 {
			if s.Missing.NoPrice == nil {
				s.Missing.NoPrice = map[string]Seconds{}
			}
			s.Missing.NoPrice[labels[fleet.LabelModel]] += a.Unpriced
		}
	}
	s.Commitments = b.prices.committed(&s)
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

// Group is the sum of rows with the same values of some dimensions.
type Group struct {
	Name string   `json:"name"`           // the keys, joined
	Keys []string `json:"keys,omitempty"` // the value of each dimension
	Amounts

	Devices   int `json:"devices"`
	Workloads int `json:"workloads"`
}

// Uses returns what the rows had of their devices.
func (s *Statement) Uses() []sizing.Row {
	out := make([]sizing.Row, 0, len(s.Rows))
	for i := range s.Rows {
		if r := &s.Rows[i]; fleet.IsWorkload(r.about().kind) {
			out = append(out, sizing.Row{Labels: r.Labels, Held: r.Allocated(), Used: r.Used, Unmeasured: r.Unmeasured})
		}
	}
	return out
}

// Dimension is a property by which rows can be grouped.
type Dimension struct {
	Name string
	// Group returns the group of a row, empty if the row has none.
	Group func(query.Labels) string
	// OfDevice: it also groups free time.
	OfDevice bool
}

// workloadOf returns the display name of the workload of a row.
func workloadOf(l query.Labels) string {
	o, _ := fleet.OwnerOf(l)
	if o.Name == "" {
		return ""
	}
	return o.Label()
}

// Names of dimensions that By treats specially.
const byWorkload, byNamespace, byNode, byCluster = "workload", "namespace", "node", "cluster"

// teams is the dimension of the page.
var teams = Dimension{"team", fleet.TeamOf, false}

// Dimensions returns all dimensions.
func Dimensions() []Dimension {
	return []Dimension{
		teams,
		{byNamespace, func(l query.Labels) string { return l[fleet.LabelNamespace] }, false},
		{"user", fleet.UserOf, false},
		{"account", func(l query.Labels) string { return l[fleet.LabelSlurmAccount] }, false},
		{"queue", fleet.QueueOf, false},
		{byWorkload, workloadOf, false},
		{"model", func(l query.Labels) string { return l[fleet.LabelModel] }, true},
		{byCluster, clusterOf, true},
		{byNode, fleet.NodeOf, true},
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
	if kind := labels[fleet.LabelKind]; kind != "" && !fleet.IsWorkload(kind) && !d.OfDevice {
		return "(" + kind + ")"
	}
	return cmp.Or(d.Group(labels), "(none)")
}

// clusterOf returns the cluster of a row.
func clusterOf(l query.Labels) string {
	return cmp.Or(l[fleet.LabelCluster], l[fleet.LabelSlurmCluster])
}

// workloadKey distinguishes workloads. It is zero for what is not one, such as free time.
type workloadKey struct{ kind, cluster, namespace, name string }

func workloadKeyOf(l query.Labels) workloadKey {
	kind := l[fleet.LabelKind]
	if !fleet.IsWorkload(kind) {
		return workloadKey{}
	}
	return workloadKey{kind, clusterOf(l), l[fleet.LabelNamespace], l[fleet.LabelWorkload]}
}

// inCluster reports whether a dimension has names that are unique only within a cluster, and a row
// has such a name: free time belongs to a node, but to no workload or namespace.
func (d Dimension) inCluster(l query.Labels) bool {
	return d.Name == byNode || (d.Name == byWorkload || d.Name == byNamespace) && fleet.IsWorkload(l[fleet.LabelKind])
}

// Apart returns a function that names the group of a row's labels, so that workloads, namespaces and
// nodes of the same name in different clusters are different groups.
func (s *Statement) Apart(dims []Dimension) func(Dimension, query.Labels) string {
	if slices.ContainsFunc(dims, func(d Dimension) bool { return d.Name == byCluster }) {
		return Dimension.NameOf
	}
	type group struct{ dimension, name string }
	clusters := map[group]map[string]bool{}
	for _, r := range s.Rows {
		for _, d := range dims {
			if !d.inCluster(r.Labels) {
				continue
			}
			g := group{d.Name, d.NameOf(r.Labels)}
			if clusters[g] == nil {
				clusters[g] = map[string]bool{}
			}
			clusters[g][clusterOf(r.Labels)] = true
		}
	}
	return func(d Dimension, l query.Labels) string {
		name := d.NameOf(l)
		if d.inCluster(l) && len(clusters[group{d.Name, name}]) > 1 {
			return fleet.InCluster(name, clusterOf(l))
		}
		return name
	}
}

// Counts returns the number of devices and workloads in the statement.
func (s *Statement) Counts() (devices, workloads int) {
	d, w := map[string]bool{}, map[workloadKey]bool{}
	for i := range s.Rows {
		d[s.Rows[i].about().device] = true
		w[workloadKeyOf(s.Rows[i].Labels)] = true
	}
	delete(w, workloadKey{})
	return len(d), len(w)
}

// Simulated returns all or some if all or some of the devices do not exist, else "".
func (s *Statement) Simulated() string {
	n := 0
	for i := range s.Rows {
		if s.Rows[i].about().simulated {
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case len(s.Rows):
		return "all"
	}
	return "some"
}

// By groups rows by one or more dimensions. The groups add up to Total and are ordered by
// descending cost, then time.
func (s *Statement) By(dims ...Dimension) []Group {
	type members struct {
		devices   map[string]bool
		workloads map[workloadKey]bool
	}
	in := map[*Group]members{}
	return s.group(dims, func(g *Group, r *Row) {
		m, ok := in[g]
		if !ok {
			m = members{map[string]bool{}, map[workloadKey]bool{}}
			in[g] = m
		}
		m.devices[r.about().device] = true
		if key := workloadKeyOf(r.Labels); key != (workloadKey{}) {
			m.workloads[key] = true
		}
		g.Devices, g.Workloads = len(m.devices), len(m.workloads)
	})
}

// Sums is By without the numbers of devices and workloads, which take most of its time.
func (s *Statement) Sums(d Dimension) []Group {
	return s.group([]Dimension{d}, func(*Group, *Row) {})
}

// group groups rows, and calls each with the group of each row.
func (s *Statement) group(dims []Dimension, each func(*Group, *Row)) []Group {
	groups := map[string]*Group{}
	nameOf := s.Apart(dims)
	keys := make([]string, len(dims))
	for i := range s.Rows {
		r := &s.Rows[i]
		for j, d := range dims {
			if d.Name == teams.Name {
				keys[j] = r.about().team
			} else {
				keys[j] = nameOf(d, r.Labels)
			}
		}
		id := strings.Join(keys, "\x00")
		g := groups[id]
		if g == nil {
			g = &Group{Name: strings.Join(keys, " / "), Keys: slices.Clone(keys)}
			groups[id] = g
		}
		g.Amounts = g.Add(r.Amounts)
		each(g, r)
	}
	out := make([]Group, 0, len(groups))
	for _, g := range groups {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Amounts.Total(), a.Amounts.Total()), cmp.Compare(b.Time(), a.Time()), slices.Compare(a.Keys, b.Keys))
	})
	return out
}
