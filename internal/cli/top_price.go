//go:build linux

package cli

import (
	"fmt"
	"os"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// pricing holds the prices of devices. The zero value has no prices.
type pricing struct {
	prices   cost.Prices
	currency string
}

// openPrices reads a price file. An empty name is the zero pricing.
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
