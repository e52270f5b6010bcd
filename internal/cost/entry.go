package cost

import (
	"cmp"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Entry is a rate of the price file.
type Entry struct {
	Number int `json:"number"`
	// Where and Line are its place in the file, Match the labels that its rule matches and Text the
	// rate, as they are written there.
	Where string            `json:"where"`
	Line  int               `json:"line"`
	Match map[string]string `json:"match"`
	Text  string            `json:"text"`
	// From and To are when it applies, unless a rule above it does. To is zero if nothing ends it.
	From time.Time `json:"from"`
	To   time.Time `json:"to,omitzero"`

	Kind    Kind `json:"kind,omitempty"`
	PerHour Nano `json:"per_hour,omitempty"`
	// PerKWh has PUE, as Milligrams of CO2 have.
	PerKWh     Nano  `json:"per_kwh,omitempty"`
	Milligrams int64 `json:"co2_mg_per_kwh,omitempty"`
	// Exchange is the value of one unit of the rate's currency in that of the file; empty if both are
	// the same.
	Exchange string `json:"exchange,omitempty"`
}

// Change is when one entry takes the place of another. A number is 0 if there is no entry.
type Change struct {
	At        time.Time `json:"at"`
	Power     bool      `json:"power"` // of energy, else of device time
	OldNumber int       `json:"old"`
	NewNumber int       `json:"new"`
}

// entryKey identifies a rate. The zero key is none.
type entryKey struct {
	valid       bool
	power       bool
	rule, place int
	from        time.Time // a rate in another currency is divided where the exchange rate changes
}

func keyOf(r *rate, ok, power bool) entryKey {
	if !ok {
		return entryKey{power: power}
	}
	return entryKey{true, power, r.rule, r.place, r.from}
}

// entryAt returns the rates that a biller uses for a row at a moment.
func (p Prices) entryAt(labels query.Labels, at time.Time) (price, power entryKey) {
	a, ok := find(p.rules, labels, at)
	b, ok2 := find(p.power, labels, at)
	return keyOf(&a, ok, false), keyOf(&b, ok2, true)
}

// change is a Change before entries have numbers.
type change struct {
	at       time.Time
	old, now entryKey
}

// entries numbers the rates that the lines used, and finds where they changed.
func (e *explainer) entries() error {
	used, changes := map[entryKey]int{}, map[change]bool{}
	for i := range e.out.Holders {
		h := &e.out.Holders[i]
		for j := range h.Lines {
			used[h.Lines[j].price], used[h.Lines[j].power] = 0, 0
		}
		e.prices.changed(h, func(c change) {
			changes[c] = true
			used[c.old], used[c.now] = 0, 0
		})
	}
	maps.DeleteFunc(used, func(k entryKey, _ int) bool { return !k.valid })
	var file priceFile
	doc, err := decodeYAML(e.prices.text, &file)
	if err != nil {
		return err // it was valid before
	}
	keys := slices.SortedFunc(maps.Keys(used), func(a, b entryKey) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), a.from.Compare(b.from))
	})
	for _, k := range keys {
		list, section, rules, names := &e.out.Prices, "prices", e.prices.rules, file.Prices
		if k.power {
			list, section, rules, names = &e.out.Power, "power", e.prices.power, file.Power
		}
		used[k] = len(*list) + 1
		x := rules[k.rule].entry(k, doc, section)
		x.Number, x.Match = used[k], map[string]string{}
		for name, glob := range names[k.rule].Match {
			x.Match[name] = *glob
		}
		*list = append(*list, x)
	}
	for i := range e.out.Holders {
		for j := range e.out.Holders[i].Lines {
			l := &e.out.Holders[i].Lines[j]
			l.Price, l.Power = used[l.price], used[l.power]
		}
	}
	for c := range changes {
		e.out.Changes = append(e.out.Changes, Change{c.at, c.now.power, used[c.old], used[c.now]})
	}
	slices.SortFunc(e.out.Changes, func(a, b Change) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.OldNumber, b.OldNumber), cmp.Compare(a.NewNumber, b.NewNumber))
	})
	return nil
}

// changed calls each for every change of the rates of a row between its first and its last line.
func (p Prices) changed(h *Holder, each func(change)) {
	price, power := h.Lines[0].price, h.Lines[0].power
	end := h.Lines[len(h.Lines)-1].To
	first, _ := slices.BinarySearchFunc(p.changes, h.Lines[0].From.Add(1), time.Time.Compare)
	for _, at := range p.changes[first:] {
		if !at.Before(end) {
			return
		}
		a, b := p.entryAt(h.Labels, at)
		if a != price {
			each(change{at, price, a})
		}
		if b != power {
			each(change{at, power, b})
		}
		price, power = a, b
	}
}

// entry returns one of the rates of a rule.
func (r *rule) entry(k entryKey, doc document, section string) Entry {
	i := slices.IndexFunc(r.rates, func(x rate) bool { return x.place == k.place && x.from.Equal(k.from) })
	x := &r.rates[i]
	out := Entry{From: x.from, To: x.to, Kind: x.kind, PerHour: x.hour, PerKWh: x.kwh, Milligrams: x.carbon}
	if x.to.IsZero() && i+1 < len(r.rates) {
		out.To = r.rates[i+1].from
	}
	if x.exchange != nil {
		out.Exchange = decimals(x.exchange)
	}
	path := []any{section, k.rule, "rates", k.place}
	out.Where, out.Line, out.Text = pathText(path), doc.line(path), flow(doc.find(path))
	return out
}

// decimals returns all digits of a number that was written as a decimal.
func decimals(r *big.Rat) string {
	return strings.TrimSuffix(strings.TrimRight(r.FloatString(40), "0"), ".")
}

// flow returns a value of a file on one line, without comments.
func flow(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	b, err := yaml.Marshal(inline(n))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func inline(n *yaml.Node) *yaml.Node {
	out := *n
	out.Style = n.Style&^yaml.LiteralStyle&^yaml.FoldedStyle | yaml.FlowStyle
	if n.Kind == yaml.ScalarNode {
		out.Style = n.Style
	}
	out.HeadComment, out.LineComment, out.FootComment, out.Content = "", "", "", nil
	for _, c := range n.Content {
		out.Content = append(out.Content, inline(c))
	}
	return &out
}
