//go:build linux

package cli

import (
	"fmt"
	"os"

	"github.com/gpumeter/gpumeter/internal/cost"
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
