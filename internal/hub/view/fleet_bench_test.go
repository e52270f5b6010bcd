package view

import (
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
)

// BenchmarkFleet renders the first page for 10,000 GPUs with a cold cache, with and without prices.
func BenchmarkFleet(b *testing.B) {
	s, err := hub.Open(b.TempDir(), hub.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	now := time.Now().Truncate(time.Minute)
	simulated{nodes: 1250, perNode: 8, history: 15 * time.Minute, step: time.Minute}.fill(b, s, now)
	prices, err := cost.Parse([]byte(`
currency: USD
prices:
- {match: {model: "NVIDIA H200*", namespace: inference}, rates: [{from: 2020-01-01, kind: spot, per_hour: 4}]}
- {match: {model: "NVIDIA*", cluster: "prod-*"}, rates: [{from: 2020-01-01, kind: spot, per_hour: 3}]}
- {rates: [{from: 2020-01-01, kind: owned, capex: 20000, years: 4}]}
power: [{rates: [{from: 2020-01-01, per_kwh: 0.2}]}]
`))
	if err != nil {
		b.Fatal(err)
	}
	for name, accounts := range map[string]Accounts{"plain": {}, "priced": {Price: prices.Hourly}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				h := Handler(s, accounts, nil, Options{Now: func() time.Time { return now }})
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/fleet", nil)
				r.Header.Set("Accept-Encoding", "gzip")
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatalf("status %d: %s", w.Code, w.Body)
				}
				b.ReportMetric(float64(w.Body.Len()), "bytes")
			}
			b.ReportMetric(float64((processorTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op") // unlike wall time, independent of other load
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
