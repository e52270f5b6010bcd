package cost

import (
	"errors"
	"fmt"
	"math/big"
	"time"
)

// commitment is capacity that is paid for whether devices are there or not.
type commitment struct {
	name     string
	match    []matcher
	gpus     int64
	hour     Nano // per GPU
	from, to time.Time
}

type commitmentFile struct {
	Name     string             `yaml:"name"`
	Match    map[string]*string `yaml:"match"`
	GPUs     string             `yaml:"gpus"`
	From     string             `yaml:"from"`
	To       string             `yaml:"to"`
	PerHour  string             `yaml:"per_hour"`
	PerMonth string             `yaml:"per_month"`
	Discount string             `yaml:"discount"`
}

// maxGPUs bounds a commitment.
const maxGPUs = 1_000_000

func (f *reader) commitments(list []commitmentFile) ([]commitment, error) {
	if len(list) > maxRules {
		return nil, f.doc.at(fmt.Errorf("more than %d", maxRules), "commitments")
	}
	var out []commitment
	for i := range list {
		c, err := f.commitment(&list[i])
		if err != nil {
			return nil, f.doc.at(err, "commitments", i)
		}
		out = append(out, c)
	}
	return out, nil
}

func (f *reader) commitment(file *commitmentFile) (c commitment, err error) {
	if c.name = file.Name; c.name == "" {
		return c, of("name", errors.New("missing"))
	}
	if c.match, err = f.labels.matchers(file.Match); err != nil {
		return c, err
	}
	if c.from, c.to, err = f.dates(file.From, file.To); err != nil {
		return c, err
	}
	if c.hour, err = hourly(file.PerHour, file.PerMonth, file.Discount); err != nil {
		return c, err
	}
	n, err := decimal(file.GPUs)
	if err != nil || !n.IsInt() || n.Sign() <= 0 || n.Cmp(big.NewRat(maxGPUs, 1)) > 0 {
		return c, of("gpus", fmt.Errorf("must be a whole number from 1 to %d", maxGPUs))
	}
	c.gpus = n.Num().Int64()
	return c, nil
}

// Committed is a commitment in a period. Its cost is no part of a bill: the time of devices is
// billed by their prices. Unmetered is what was paid for and not seen.
type Committed struct {
	Name      string  `json:"name"`
	GPUs      int64   `json:"gpus"`
	Time      Seconds `json:"committed_seconds"`
	Metered   Seconds `json:"metered_seconds"` // of the devices that match, held or free
	Unmetered Seconds `json:"unmetered_seconds"`

	Cost          Money `json:"cost"`
	UnmeteredCost Money `json:"unmetered_cost"`
}

// committed compares the commitments with the device time of a bill.
func (p Prices) committed(s *Statement) []Committed {
	var out []Committed
	for _, c := range p.commitments {
		from, to := s.From, s.To
		if c.from.After(from) {
			from = c.from
		}
		if !c.to.IsZero() && c.to.Before(to) {
			to = c.to
		}
		if !from.Before(to) {
			continue
		}
		x := Committed{Name: c.name, GPUs: c.gpus, Time: Seconds(to.Sub(from).Microseconds() * c.gpus)}
		for i := range s.Rows {
			if matches(c.match, s.Rows[i].Labels) {
				x.Metered += s.Rows[i].Time()
			}
		}
		x.Unmetered = max(0, x.Time-x.Metered)
		x.Cost, x.UnmeteredCost = c.hour.Capacity(x.Time), c.hour.Capacity(x.Unmetered)
		out = append(out, x)
	}
	return out
}

// Note says how much of a commitment was not metered. It is empty if nothing is missing.
func (c Committed) Note(currency string) string {
	if c.Unmetered == 0 {
		return ""
	}
	return fmt.Sprintf("Commitment %s: %.1f of %.1f GPU-hours were not metered. Their %s %s are paid and in no row.",
		c.Name, c.Unmetered.Hours(), c.Time.Hours(), c.UnmeteredCost, currency)
}
