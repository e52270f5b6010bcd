//go:build linux

package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub/ui"
)

// pageUI returns the page.
func pageUI() http.Handler { return ui.Handler() }

// money reads the prices and quotas of the flags.
func (h *hubOptions) money(ctx context.Context, log *zap.Logger) (*quotas, error) {
	var prices cost.Prices
	if h.prices != "" {
		text, err := os.ReadFile(h.prices)
		if err != nil {
			return nil, fmt.Errorf("cannot read --prices: %w", err)
		}
		if prices, err = cost.Parse(text); err != nil {
			return nil, fmt.Errorf("--prices %s: %w", h.prices, err)
		}
	}
	return newQuotas(ctx, h.quotas, prices, log)
}
