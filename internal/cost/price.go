package cost

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Kind is how a device is paid for.
type Kind string

// Kinds of payment.
const (
	OnDemand Kind = "on_demand"
	Reserved Kind = "reserved"
	Spot     Kind = "spot"
	Owned    Kind = "owned" // capex over years, plus energy
)

// Price is the price of one device at a moment.
type Price struct {
	Kind    Kind `json:"kind"`
	PerHour Nano `json:"per_hour"` // for the whole device
	// PerKWh is charged in addition, PUE included. It is 0 for rented devices, whose hourly
	// price includes energy.
	PerKWh Nano `json:"per_kwh,omitempty"`
}

// Power is the price and emission of energy at a moment, at the facility's meter.
type Power struct {
	PerKWh Nano `json:"per_kwh"` // with PUE
	// Milligrams of CO2 equivalent per kWh drawn by a device, PUE included.
	Milligrams int64 `json:"co2_mg_per_kwh"`
	// Priced and Emits report which of the two is known.
	Priced bool `json:"-"`
	Emits  bool `json:"-"`
}

// Prices are the rules of a price file. The zero Prices price nothing.
type Prices struct {
	Currency    string
	rules       []rule
	power       []rule
	commitments []commitment
	changes     []time.Time // start and end of every rate, in order
	text        []byte
}

// rule assigns a price that changes over time to devices with matching labels.
type rule struct {
	match []matcher
	rates []rate // in order of start
}

type rate struct {
	from   time.Time
	to     time.Time // zero: until the next rate of the rule
	kind   Kind
	hour   Nano
	kwh    Nano // with PUE
	priced bool // kwh is known
	carbon int64
	emits  bool
}

type matcher struct {
	label string
	glob  *regexp.Regexp
}

// Limits of a price file.
const (
	maxFile  = 4 << 20
	maxRules = 10_000
	maxRates = 10_000 // per rule
)

type (
	priceFile struct {
		Currency    string           `yaml:"currency"`
		Prices      []ruleFile       `yaml:"prices"`
		Power       []ruleFile       `yaml:"power"`
		Commitments []commitmentFile `yaml:"commitments"`
	}
	ruleFile struct {
		Match map[string]string `yaml:"match"`
		Rates []rateFile        `yaml:"rates"`
	}
	rateFile struct {
		From     string `yaml:"from"`
		To       string `yaml:"to"`
		Kind     Kind   `yaml:"kind"`
		PerHour  string `yaml:"per_hour"`
		PerMonth string `yaml:"per_month"`
		Discount string `yaml:"discount"`
		Capex    string `yaml:"capex"`
		Years    string `yaml:"years"`
		PerKWh   string `yaml:"per_kwh"`
		PUE      string `yaml:"pue"`
		CO2      string `yaml:"co2_g_per_kwh"`
	}
)

// Parse parses a price file.
func Parse(text []byte) (Prices, error) {
	var f priceFile
	if err := decodeYAML(text, &f); err != nil {
		return Prices{}, fmt.Errorf("cannot parse the price file: %w", err)
	}
	p := Prices{Currency: f.Currency, text: bytes.Clone(text)}
	if p.Currency == "" && len(f.Prices)+len(f.Power)+len(f.Commitments) > 0 {
		return Prices{}, errors.New("currency: missing: add the currency of the prices, such as currency: EUR")
	}
	if len(p.Currency) > 8 || strings.ContainsFunc(p.Currency, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return Prices{}, fmt.Errorf("currency: %.20q is not a currency code", p.Currency)
	}
	var err error
	if p.rules, err = rules("prices", f.Prices, capacityRate); err != nil {
		return Prices{}, err
	}
	if p.power, err = rules("power", f.Power, powerRate); err != nil {
		return Prices{}, err
	}
	if p.commitments, err = commitments(f.Commitments); err != nil {
		return Prices{}, err
	}
	for _, r := range slices.Concat(p.rules, p.power) {
		for _, t := range r.rates {
			p.changes = append(p.changes, t.from)
			if !t.to.IsZero() {
				p.changes = append(p.changes, t.to)
			}
		}
	}
	slices.SortFunc(p.changes, time.Time.Compare)
	p.changes = slices.CompactFunc(p.changes, time.Time.Equal)
	return p, nil
}

// decodeYAML decodes one document and rejects unknown keys: otherwise a misspelled key would
// silently drop a price.
func decodeYAML(text []byte, into any) error {
	if len(text) > maxFile {
		return fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func rules(section string, list []ruleFile, read func(rateFile) (rate, error)) ([]rule, error) {
	if len(list) > maxRules {
		return nil, fmt.Errorf("%s: more than %d rules", section, maxRules)
	}
	out := make([]rule, 0, len(list))
	for i, f := range list {
		where := fmt.Sprintf("%s[%d]", section, i)
		m, err := matchers(f.Match)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if len(f.Rates) == 0 || len(f.Rates) > maxRates {
			return nil, fmt.Errorf("%s: rates: must have 1 to %d entries", where, maxRates)
		}
		r := rule{match: m}
		for j, rf := range f.Rates {
			t, err := read(rf)
			if err != nil {
				return nil, fmt.Errorf("%s.rates[%d]: %w", where, j, err)
			}
			if t.from, t.to, err = dates(rf.From, rf.To); err != nil {
				return nil, fmt.Errorf("%s.rates[%d]: %w", where, j, err)
			}
			r.rates = append(r.rates, t)
		}
		slices.SortStableFunc(r.rates, func(a, b rate) int { return a.from.Compare(b.from) })
		for j := 1; j < len(r.rates); j++ {
			if r.rates[j].from.Equal(r.rates[j-1].from) {
				return nil, fmt.Errorf("%s: two rates start at %s", where, r.rates[j].from.Format(time.RFC3339))
			}
			if r.rates[j-1].to.After(r.rates[j].from) {
				return nil, fmt.Errorf("%s: the rate from %s begins before the rate before it ends", where, r.rates[j].from.Format(time.RFC3339))
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// dates parses the first moment of a rate and, if it has one, the first moment after it.
func dates(from, to string) (begin, end time.Time, err error) {
	if begin, err = day(from); err != nil {
		return begin, end, fmt.Errorf("from: %w", err)
	}
	if to == "" {
		return begin, end, nil
	}
	if end, err = day(to); err != nil {
		return begin, end, fmt.Errorf("to: %w", err)
	}
	if !begin.Before(end) {
		return begin, end, errors.New("to: must be after from")
	}
	return begin, end, nil
}

// day parses a date, which starts at midnight UTC, or a timestamp.
func day(text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 && t.Year() < 3000 {
			return t.UTC().Truncate(time.Millisecond), nil
		}
	}
	return time.Time{}, fmt.Errorf("%.40q is neither a date such as 2026-01-31 nor a timestamp such as 2026-01-31T12:00:00Z", text)
}

// aliases are short label names for the match sections of rules and quotas.
var aliases = map[string]string{
	"model": fleet.LabelModel, "cluster": fleet.LabelCluster, "node": fleet.LabelNode, "host": fleet.LabelHost, "instance_type": fleet.LabelHostType,
	"team": fleet.LabelTeam, "namespace": fleet.LabelNamespace, "account": fleet.LabelSlurmAccount, "user": fleet.LabelSlurmUser,
	"region": fleet.LabelRegion, "provider": fleet.LabelCloudProvider,
}

// matchers compiles globs by label. Label names may use OpenTelemetry's dots.
func matchers(globs map[string]string) ([]matcher, error) {
	var out []matcher
	for label, glob := range globs {
		label = strings.NewReplacer(".", "_", "-", "_", "/", "_").Replace(label)
		label = cmp.Or(aliases[label], label)
		if label == "" || len(glob) > 1000 {
			return nil, errors.New("match: a label name is empty or a pattern exceeds 1000 characters")
		}
		text := regexp.QuoteMeta(glob)
		text = strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(text)
		g, err := regexp.Compile(`^(?s:` + text + `)$`)
		if err != nil {
			return nil, fmt.Errorf("match: %.40q: %w", glob, err)
		}
		out = append(out, matcher{label, g})
	}
	slices.SortFunc(out, func(a, b matcher) int { return cmp.Compare(a.label, b.label) })
	return out, nil
}

// matches reports whether all matchers match. An absent label is empty, which * matches.
func matches(list []matcher, labels map[string]string) bool {
	for _, m := range list {
		if !m.glob.MatchString(labels[m.label]) {
			return false
		}
	}
	return true
}

// find returns the current rate of the first matching rule with one. Before a rule's first rate
// starts, and after a rate ended without a successor, the rules below it apply.
func find(list []rule, labels map[string]string, at time.Time) (rate, bool) {
	for _, r := range list {
		if at.Before(r.rates[0].from) || !matches(r.match, labels) {
			continue
		}
		i, exact := slices.BinarySearchFunc(r.rates, at, func(t rate, at time.Time) int { return t.from.Compare(at) })
		if !exact {
			i--
		}
		if end := r.rates[i].to; !end.IsZero() && !at.Before(end) {
			continue
		}
		return r.rates[i], true
	}
	return rate{}, false
}

// At returns the price of a device with these labels at a moment. It returns false if no rule
// applies.
func (p Prices) At(labels map[string]string, at time.Time) (Price, bool) {
	r, ok := find(p.rules, labels, at)
	if !ok {
		return Price{}, false
	}
	price := Price{Kind: r.kind, PerHour: r.hour}
	if r.kind == Owned {
		power, _ := p.PowerAt(labels, at)
		price.PerKWh = power.PerKWh
	}
	return price, true
}

// PowerAt returns the price and emission of energy at the location of a device. It returns false
// if no rule applies.
func (p Prices) PowerAt(labels map[string]string, at time.Time) (Power, bool) {
	r, ok := find(p.power, labels, at)
	return Power{PerKWh: r.kwh, Milligrams: r.carbon, Priced: r.priced, Emits: r.emits}, ok
}

// Rate returns the hourly cost of a device with these labels at this power draw: the price of its
// capacity and, if the device is owned, of its energy. The rate is absent if no rule has a price.
func (p Prices) Rate(labels query.Labels, at time.Time, watts optional.Float) optional.Float {
	price, ok := p.At(labels, at)
	if !ok {
		return optional.Float{}
	}
	w, _ := watts.Get()
	return optional.Of(price.PerHour.Float() + price.PerKWh.Float()*w/1000)
}

// Text returns the price file.
func (p Prices) Text() []byte { return bytes.Clone(p.text) }

// Empty reports whether no device has a price.
func (p Prices) Empty() bool { return len(p.rules) == 0 }
