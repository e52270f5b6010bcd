//go:build linux

package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/logging"
)

// pricing has the prices of the hub. It is safe for concurrent use.
type pricing struct {
	mu     sync.Mutex
	prices cost.Prices
	broken string // why the changed price file is not valid; empty if it is
	state  int    // changes with the fields above
}

func (p *pricing) get() (prices cost.Prices, broken string, state int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.prices, p.broken, p.state
}

func (p *pricing) current() cost.Prices {
	prices, _, _ := p.get()
	return prices
}

// set replaces the prices. If err is not nil, the old ones stay valid.
func (p *pricing) set(prices cost.Prices, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state++
	if err != nil {
		p.broken = logging.OneLine(err)
		return
	}
	p.prices, p.broken = prices, ""
}

// readPrices reads the price file.
func (h *Options) readPrices() (cost.Prices, error) {
	if h.Prices == "" {
		return cost.None(), nil
	}
	text, err := os.ReadFile(h.Prices)
	if err != nil {
		return cost.Prices{}, fmt.Errorf("cannot read --prices: %w", err)
	}
	p, err := cost.Parse(text)
	if err != nil {
		return cost.Prices{}, fmt.Errorf("--prices %s: %w", h.Prices, err)
	}
	return p, nil
}

// money reads the price file and the quotas.
func (h *Options) money(ctx context.Context, log *zap.Logger) (*quotas, error) {
	file := follow(h.Prices, "price file", "prices")
	prices, err := h.readPrices()
	if err != nil {
		return nil, err
	}
	q, err := newQuotas(ctx, h.Quotas, h.Vendors, prices, log)
	if err != nil {
		return nil, err
	}
	if h.Zone != nil {
		q.zone = h.Zone
	}
	if h.Prices != "" {
		q.priceFile = file
		q.followPrices = func(ctx context.Context) {
			file.run(ctx, func() error { return h.reprice(q) }, log)
		}
	}
	return q, nil
}

// reprice reads the price file again.
func (h *Options) reprice(q *quotas) error {
	prices, err := h.readPrices()
	if err == nil {
		err = cost.SameCurrency(q.all(), prices)
	}
	q.prices.set(prices, err)
	return err
}

// repriced is a handler that is built again when the prices change, so that nothing that it caches
// outlives them.
type repriced struct {
	pricing *pricing
	build   func(prices cost.Prices, broken string) http.Handler

	mu      sync.Mutex
	state   int
	handler http.Handler
}

// ServeHTTP implements http.Handler.
func (r *repriced) ServeHTTP(w http.ResponseWriter, req *http.Request) { r.current().ServeHTTP(w, req) }

func (r *repriced) current() http.Handler {
	prices, broken, state := r.pricing.get()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handler == nil || r.state != state {
		r.handler, r.state = r.build(prices, broken), state
	}
	return r.handler
}
