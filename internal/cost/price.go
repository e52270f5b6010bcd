package cost

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
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

// Prices are the rules of a price file. The zero Prices price nothing. Bills of the same Prices, or of
// copies, share what they find out about the rows of a fleet; those of the zero Prices do not.
type Prices struct {
	Currency    string
	rules       []rule
	power       []rule
	commitments []commitment
	changes     []time.Time // start and end of every rate, in order
	text        []byte
	matched     []string // labels that rules look at
	books       *books
}

// None returns Prices that price nothing, for many bills.
func None() Prices { return Prices{books: &books{}} }

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

	currency string   // of hour and kwh; empty or that of the file once parsed
	exchange *big.Rat // of that currency; nil: none
	place    int      // in the rule
	rule     int      // in its section of the file
}

// Limits of a price file.
const (
	maxFile  = 4 << 20
	maxRules = 10_000
	maxRates = 10_000 // per rule
)

type (
	priceFile struct {
		Currency    string                    `yaml:"currency"`
		TimeZone    string                    `yaml:"time_zone"`
		Labels      []string                  `yaml:"labels"`
		Exchange    map[string][]exchangeFile `yaml:"exchange"`
		Prices      []ruleFile                `yaml:"prices"`
		Power       []ruleFile                `yaml:"power"`
		Commitments []commitmentFile          `yaml:"commitments"`
	}
	ruleFile struct {
		Match map[string]*string `yaml:"match"`
		Rates []rateFile         `yaml:"rates"`
	}
	rateFile struct {
		Currency string `yaml:"currency"`
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

// reader reads a price file.
type reader struct {
	doc      document
	zone     *time.Location // of dates
	labels   labelSet
	currency string
	exchange map[string][]exchangeRate
}

// Parse parses a price file.
func Parse(text []byte) (Prices, error) {
	var f priceFile
	if err := notEmpty(text); err != nil {
		return Prices{}, fmt.Errorf("cannot parse the price file: %w", err)
	}
	doc, err := decodeYAML(text, &f)
	if err != nil {
		return Prices{}, fmt.Errorf("cannot parse the price file: %w", err)
	}
	r := reader{doc: doc, currency: f.Currency}
	p := Prices{Currency: f.Currency, text: bytes.Clone(text)}
	if f.Currency != "" || len(f.Prices)+len(f.Power)+len(f.Commitments)+len(f.Exchange) > 0 {
		if err := currencyCode(f.Currency); err != nil {
			return Prices{}, doc.at(err, "currency")
		}
	}
	if r.zone, err = Zone(f.TimeZone); err != nil {
		return Prices{}, doc.at(err, "time_zone")
	}
	if r.labels, err = declared(f.Labels); err != nil {
		return Prices{}, doc.at(err, "labels")
	}
	if err := r.readExchange(f.Exchange); err != nil {
		return Prices{}, err
	}
	if p.rules, err = r.rules("prices", f.Prices, capacityRate); err != nil {
		return Prices{}, err
	}
	if p.power, err = r.rules("power", f.Power, powerRate); err != nil {
		return Prices{}, err
	}
	if p.commitments, err = r.commitments(f.Commitments); err != nil {
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
	p.matched, p.books = matchedLabels(p.rules, p.power), &books{}
	slices.SortFunc(p.changes, time.Time.Compare)
	p.changes = slices.CompactFunc(p.changes, time.Time.Equal)
	return p, nil
}

func (f *reader) rules(section string, list []ruleFile, read func(rateFile) (rate, error)) ([]rule, error) {
	if len(list) > maxRules {
		return nil, f.doc.at(fmt.Errorf("more than %d rules", maxRules), section)
	}
	out := make([]rule, 0, len(list))
	for i := range list {
		r, err := f.rule(&list[i], read)
		if bad := (*rateError)(nil); errors.As(err, &bad) {
			return nil, f.doc.at(bad.err, section, i, "rates", bad.place)
		}
		if err != nil {
			return nil, f.doc.at(err, section, i)
		}
		for j := range r.rates {
			r.rates[j].rule = i
		}
		out = append(out, r)
	}
	return out, nil
}

// rateError is an error about one rate of a rule.
type rateError struct {
	place int
	err   error
}

func (e *rateError) Error() string { return e.err.Error() }

func (f *reader) rule(file *ruleFile, read func(rateFile) (rate, error)) (r rule, err error) {
	if r.match, err = f.labels.matchers(file.Match); err != nil {
		return r, err
	}
	if len(file.Rates) == 0 || len(file.Rates) > maxRates {
		return r, of("rates", fmt.Errorf("must have 1 to %d entries", maxRates))
	}
	for i := range file.Rates {
		t, err := read(file.Rates[i])
		if err == nil {
			t.from, t.to, err = f.dates(file.Rates[i].From, file.Rates[i].To)
		}
		if err != nil {
			return r, &rateError{i, err}
		}
		t.currency, t.place = file.Rates[i].Currency, i
		r.rates = append(r.rates, t)
	}
	slices.SortStableFunc(r.rates, func(a, b rate) int { return a.from.Compare(b.from) })
	for i := 1; i < len(r.rates); i++ {
		if r.rates[i].from.Equal(r.rates[i-1].from) {
			return r, &rateError{r.rates[i].place, fmt.Errorf("two rates start at %s", r.rates[i].from.Format(time.RFC3339))}
		}
		if r.rates[i-1].to.After(r.rates[i].from) {
			return r, &rateError{r.rates[i].place, fmt.Errorf("the rate from %s begins before the rate before it ends", r.rates[i].from.Format(time.RFC3339))}
		}
	}
	r.rates, err = f.convert(r.rates)
	return r, err
}

// dates parses the first moment of a rate and, if it has one, the first moment after it.
func (f *reader) dates(from, to string) (begin, end time.Time, err error) {
	if begin, err = f.day(from); err != nil {
		return begin, end, of("from", err)
	}
	if to == "" {
		return begin, end, nil
	}
	if end, err = f.day(to); err != nil {
		return begin, end, of("to", err)
	}
	if !begin.Before(end) {
		return begin, end, of("to", errors.New("must be after from"))
	}
	return begin, end, nil
}

// day parses a date, which starts at midnight in the time zone of the file, or a timestamp.
func (f *reader) day(text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, f.zone); err == nil && t.Year() >= 1970 && t.Year() < 3000 {
			return t.UTC().Truncate(time.Millisecond), nil
		}
	}
	return time.Time{}, fmt.Errorf("%.40q is neither a date such as 2026-01-31 nor a timestamp such as 2026-01-31T12:00:00Z", text)
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

// Hourly returns what an hour costs under the labels of a row. It implements fleet.Pricer with the
// prices of bills.
func (p Prices) Hourly(row query.Labels, at time.Time) (fleet.Hourly, bool) {
	price, ok := p.At(row, at)
	return fleet.Hourly{Device: price.PerHour.Float(), Kilowatt: price.PerKWh.Float()}, ok
}

// Text returns the price file.
func (p Prices) Text() []byte { return bytes.Clone(p.text) }

// Empty reports whether no device has a price.
func (p Prices) Empty() bool { return len(p.rules) == 0 }
