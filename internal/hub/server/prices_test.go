//go:build linux

package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

func priceText(n string) string {
	return "currency: EUR\nprices: [{rates: [{from: 2020-01-01, kind: spot, per_hour: " + n + "}]}]\n"
}

// Catches a changed price file that is not read, one that is broken and takes the prices away, is not
// said, or is said every five seconds, and a page that keeps costs of old prices.
func TestPricesAreReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file, limits := filepath.Join(dir, "prices.yaml"), filepath.Join(dir, "quotas.yaml")
		put(t, file, priceText("2"))
		put(t, limits, "currency: EUR\nquotas: [{team: a, money_per_month: 5}]\n")
		core, said := observer.New(zapcore.InfoLevel)
		h := Options{Prices: file, Quotas: []string{limits}}
		q, err := h.money(t.Context(), zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go q.followPrices(ctx)
		all, team := q.view("", nil)(access.Scope{}, querytest.NewMemory(), nil), q.view("", nil)(access.Scope{Team: "a"}, querytest.NewMemory(), nil)
		ask := func(h http.Handler, path string, into any) {
			t.Helper()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s %v", path, w.Code, w.Body, err)
			}
		}
		n := 0
		f := func(price, note string, log ...string) {
			t.Helper()
			time.Sleep(2 * followEvery)
			synctest.Wait()
			var prices struct{ File string }
			ask(all, "/prices", &prices)
			if !strings.Contains(prices.File, "per_hour: "+price+"}") {
				t.Errorf("want a price of %s: %s", price, prices.File)
			}
			for h, want := range map[http.Handler]string{all: note, team: strings.TrimSuffix(strings.SplitAfter(note+" ", "change. ")[0], " ")} {
				var cost struct{ Notes []string }
				ask(h, "/cost", &cost)
				if got := strings.Join(cost.Notes, "|"); got != want {
					t.Errorf("note %q, want %q", got, want)
				}
			}
			var got []string
			for _, e := range said.All()[n:] {
				reason, _ := e.ContextMap()["reason"].(string)
				got = append(got, strings.TrimSpace(e.Message+" "+strings.ReplaceAll(reason, file, "FILE")))
			}
			n = said.Len()
			if diff := cmp.Diff(log, got); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		}
		const kept = "The changed price file is not valid: the hub keeps the current prices "
		note := func(reason string) string {
			return "The price file was changed and is not valid: the prices are those from before the change. " + strings.ReplaceAll(reason, "FILE", file)
		}
		f("2", "")
		put(t, file, priceText("3"))
		f("3", "", "Reloaded the price file")
		const spoilt = `--prices FILE: line 2: prices[0].rates[0]: per_hour: "0b1" is not a plain number such as 2.50`
		put(t, file, priceText("0b1"))
		f("3", note(spoilt), kept+spoilt)
		put(t, file, priceText("0b1")+"\n") // broken as before
		f("3", note(spoilt))
		put(t, file, "") // in the middle of a write, or on a full disk
		const empty = "--prices FILE: cannot parse the price file: the file is empty: a file without rules has at least a comment"
		f("3", note(empty), kept+empty)
		put(t, file, strings.Replace(priceText("7"), "EUR", "USD", 1))
		const other = "the quota a is in EUR, but the prices are in USD"
		f("3", note(other), kept+other)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		const gone = "cannot read --prices: open FILE: no such file or directory"
		f("3", note(gone), kept+gone)
		put(t, file, priceText("4"))
		f("4", "", "Reloaded the price file")
		// A ConfigMap is replaced by a link.
		put(t, filepath.Join(dir, "next"), priceText("5"))
		if err := os.Rename(filepath.Join(dir, "next"), file); err != nil {
			t.Fatal(err)
		}
		f("5", "", "Reloaded the price file")
	})
}

// Catches a file that changes between its first read and the first check, and is never read again.
func TestFollowBeforeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "f")
		put(t, file, "a")
		f := follow(file, "file", "text")
		put(t, file, "bc") // after the first read
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		reads := 0
		go f.run(ctx, func() error { reads++; return nil }, zap.NewNop())
		time.Sleep(3 * followEvery)
		synctest.Wait()
		if reads != 1 {
			t.Errorf("read %d times", reads)
		}
	})
}
