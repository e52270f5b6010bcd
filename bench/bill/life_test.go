//go:build bench

package bill

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/days"
	"github.com/gpumeter/gpumeter/internal/query"
)

// turn is how much of a history arrives at a time.
const turn = 10 * day

// live writes a history that is longer than samples are kept, as in the life of a hub: samples of some days
// arrive, the store keeps the usage of the days that have ended, and deletes samples beyond its retention. It
// continues where a run that was stopped was.
func (s shape) live(t *testing.T, dir string, begin, end time.Time) (samples int) {
	t.Helper()
	done := filepath.Join(dir, "turns")
	turns := 0
	if b, err := os.ReadFile(done); err == nil {
		turns = len(b)
	}
	for from := begin.Add(time.Duration(turns) * turn); from.Before(end); from = from.Add(turn) {
		start := time.Now()
		to := from.Add(turn)
		if to.After(end) {
			to = end
		}
		samples += s.arrive(t, dir, begin, from, to)
		written := time.Since(start)
		store := open(t, dir)
		_, newest := store.Samples()
		for d := from.Add(-day); d.Before(newest); d = d.Add(day) { // the last one was not over
			if d.Before(begin) {
				continue
			}
			if _, err := store.Usage(t.Context(), d, d.Add(day)); err != nil {
				t.Fatal(err)
			}
		}
		oldest, newest := store.Samples()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		turns++
		if err := os.WriteFile(done, []byte(strings.Repeat("x", turns)), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Logf("%.0f days: samples written in %.1f s, then kept in %.1f s; the store has samples of %.0f days",
			to.Sub(begin).Hours()/24, written.Seconds(), (time.Since(start) - written).Seconds(), newest.Sub(oldest).Hours()/24)
	}
	return samples
}

// lived checks that a bill has all hours of a history, and that its last days are as their samples say.
func (s shape) lived(t *testing.T, dir string, store *hub.Store, p cost.Prices, bill *cost.Statement) {
	t.Helper()
	// Each GPU is held all the time. What workloads had before the history is not in it.
	if got, most := bill.Total.Time().Hours(), float64(s.gpus)*bill.To.Sub(bill.From).Hours(); got > most || got < most-2*float64(s.gpus) {
		t.Errorf("the bill has %.1f GPU-hours of %.1f", got, most)
	}
	from := bill.To.Add(-2 * day)
	var of [2]cost.Statement
	for i, x := range []query.Store{plain{store}, store} {
		var err error
		if of[i], err = cost.Bill(t.Context(), x, p, from, bill.To, cost.Options{}); err != nil {
			t.Fatal(err)
		}
		of[i].Rows = slices.DeleteFunc(of[i].Rows, func(r cost.Row) bool { return r.Time() == 0 }) // ended before
	}
	if diff := cmp.Diff(of[0], of[1], cmpopts.IgnoreUnexported(cost.Row{})); diff != "" {
		t.Errorf("two days (-computed +kept):\n%s", diff)
	}
	r, err := days.Check(t.Context(), filepath.Join(dir, days.Folder), bill.To)
	if err != nil {
		t.Fatal(err)
	}
	if oldest, _ := store.Samples(); len(r.Damaged) > 0 || r.From.After(bill.From) || oldest.Before(bill.To.Add(-retention-turn)) {
		t.Errorf("days since %s and samples since %s", r.From, oldest)
	}
	t.Logf("%d kept days take %.0f MiB; %d rows of the last two days are as computed from samples", r.Files, float64(r.Bytes)/(1<<20), len(of[0].Rows))
}
