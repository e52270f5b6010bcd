//go:build linux

package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a broken file of which /readyz says nothing, one that makes the hub not ready, a line that
// stays when the file is valid again, and paths, secrets or contents where everyone can read them.
func TestReadyzSaysWhatIsStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // begins on 2000-01-01
		dir := t.TempDir()
		prices, limits, tokens := filepath.Join(dir, "prices.yaml"), filepath.Join(dir, "quotas.yaml"), filepath.Join(dir, "tokens")
		const goodQuotas, goodTokens = "quotas: [{team: a, gpus: 5}]\n", "# ours\nread read-0123456789abcdef\n"
		put(t, prices, priceText("2"))
		put(t, limits, goodQuotas)
		put(t, tokens, goodTokens)
		h := Options{Prices: prices, Quotas: []string{limits, "kubernetes:" + filepath.Join(dir, "kubeconfig")}, Tokens: tokens}
		money, err := h.money(t.Context(), zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		file := follow(tokens, "token file", "tokens")
		known, err := h.readTokens()
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go money.followPrices(ctx)
		go h.watchTokens(ctx, file, known, zap.NewNop())
		handler := hub.NewHandler(querytest.NewMemory(), nil, hub.HandlerOptions{State: states(money.state, file.state), Tokens: known})
		f := func(want string) {
			t.Helper()
			time.Sleep(quotasEvery)
			if err := money.look(ctx, querytest.NewMemory(), time.Now()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
			if diff := cmp.Diff("ok\n"+want, w.Body.String()); diff != "" || w.Code != http.StatusOK {
				t.Errorf("%d (-want +got):\n%s", w.Code, diff)
			}
		}
		const kubernetes = "quotas: kubernetes cannot be read: there are none from it\n"
		f(kubernetes)
		put(t, prices, priceText("0b1"))
		put(t, limits, "quotas:\n- {team: secret, gpus: x}\n")
		put(t, tokens, "# ours\nadmn read-0123456789abcdef\n")
		f("prices: prices.yaml is not valid, see line 2: the last valid prices, from 2000-01-01 00:00 UTC, are in use\n" +
			"quotas: quotas.yaml is not valid, see line 2: the last valid quotas, from 2000-01-01 00:05 UTC, are in use\n" + kubernetes +
			"tokens: tokens is not valid, see line 2: the last valid tokens, from 2000-01-01 00:00 UTC, are in use\n")
		put(t, limits, goodQuotas)
		put(t, tokens, goodTokens)
		if err := errors.Join(os.Chmod(tokens, 0o644), os.Remove(prices)); err != nil {
			t.Fatal(err)
		}
		f("prices: prices.yaml cannot be read: the last valid prices, from 2000-01-01 00:00 UTC, are in use\n" + kubernetes +
			"tokens: tokens is not valid: the last valid tokens, from 2000-01-01 00:00 UTC, are in use\n")
		put(t, prices, priceText("3"))
		if err := os.Chmod(tokens, 0o600); err != nil {
			t.Fatal(err)
		}
		f(kubernetes)
		put(t, prices, "currency: EUR\ncurrency: EUR\n")
		f("prices: prices.yaml is not valid, see line 2: the last valid prices, from 2000-01-01 00:15 UTC, are in use\n" + kubernetes)
	})
}
