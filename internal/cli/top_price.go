//go:build linux

package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/device"
)

// pricing is what an hour of a device costs. The zero pricing knows nothing.
type pricing struct {
	prices   cost.Prices
	currency string
}

// openPrices reads a file of prices; none has no price.
func openPrices(file string) (pricing, error) {
	if file == "" {
		return pricing{}, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return pricing{}, fmt.Errorf("cannot read the prices: %w", err)
	}
	p, err := cost.Parse(text)
	if err != nil {
		return pricing{}, fmt.Errorf("%s: %w", file, err)
	}
	return pricing{p, p.Currency}, nil
}

// of returns what a device with these labels costs an hour as it is used now: of one that
// is owned the energy is on top.
func (p pricing) of(labels map[string]string, at time.Time, watts device.Value) device.Value {
	if p.currency == "" {
		return device.Value{}
	}
	price, ok := p.prices.At(labels, at)
	if !ok {
		return device.Value{}
	}
	w, _ := watts.Get()
	return device.Of(price.PerHour.Float() + price.PerKWh.Float()*w/1000)
}
