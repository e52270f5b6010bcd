//go:build linux

package server

import (
	"context"
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// money reads the price file and the quotas.
func (h *Options) money(ctx context.Context, log *zap.Logger) (*quotas, error) {
	var prices cost.Prices
	if h.Prices != "" {
		text, err := os.ReadFile(h.Prices)
		if err != nil {
			return nil, fmt.Errorf("cannot read --prices: %w", err)
		}
		if prices, err = cost.Parse(text); err != nil {
			return nil, fmt.Errorf("--prices %s: %w", h.Prices, err)
		}
	}
	return newQuotas(ctx, h.Quotas, h.Vendors, prices, log)
}
