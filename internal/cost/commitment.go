package cost

import (
	"errors"
	"fmt"
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
	Name     string            `yaml:"name"`
	Match    map[string]string `yaml:"match"`
	GPUs     int64             `yaml:"gpus"`
	From     string            `yaml:"from"`
	To       string            `yaml:"to"`
	PerHour  string            `yaml:"per_hour"`
	PerMonth string            `yaml:"per_month"`
	Discount string            `yaml:"discount"`
}

// maxGPUs bounds a commitment.
const maxGPUs = 1_000_000

func commitments(list []commitmentFile) ([]commitment, error) {
	if len(list) > maxRules {
		return nil, fmt.Errorf("commitments: more than %d", maxRules)
	}
	var out []commitment
	for i, f := range list {
		c := commitment{name: f.Name, gpus: f.GPUs}
		var err error
		if c.match, err = matchers(f.Match); err == nil {
			c.from, c.to, err = dates(f.From, f.To)
		}
		if err == nil {
			c.hour, err = hourly(f.PerHour, f.PerMonth, f.Discount)
		}
		if err == nil && (f.GPUs < 1 || f.GPUs > maxGPUs) {
			err = fmt.Errorf("gpus: must be from 1 to %d", maxGPUs)
		}
		if err == nil && f.Name == "" {
			err = errors.New("name: missing")
		}
		if err != nil {
			return nil, fmt.Errorf("commitments[%d]: %w", i, err)
		}
		out = append(out, c)
	}
	return out, nil
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
