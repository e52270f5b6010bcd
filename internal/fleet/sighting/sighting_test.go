package sighting

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// keeper keeps usage, and counts the devices whose samples it is asked for.
type keeper struct {
	*querytest.Memory
	searched map[string]int // by UUID
	gone     bool           // the samples are
}

func (k *keeper) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	out := &fleet.Day{Hourly: map[string]*fleet.DayHours{}}
	used, err := fleet.NewHours(k.Memory).Between(ctx, nil, midnight, []time.Time{at})
	if err != nil {
		return nil, err
	}
	used.AddTo(out)
	return out, nil
}

func (k *keeper) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	for _, uuid := range []string{"whole", "away", "new", "dead", "brief", "idle"} {
		if strings.Contains(expr, uuid) {
			k.searched[uuid]++
		}
	}
	if k.gone {
		return nil, nil
	}
	return k.Memory.Range(ctx, expr, start, end, step)
}

// Catches a search that reads the samples of a month although the kept hours say when devices were there,
// one that finds other times in kept hours than in samples, one that calls a device without accounts
// absent, and one that finds nothing when the samples are gone.
func TestSearch(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	to := from.Add(30 * day)
	m := querytest.NewMemory()
	keys := map[string]string{}
	seen := func() map[string]*Device {
		out := map[string]*Device{}
		for key, uuid := range keys {
			out[key] = &Device{Labels: query.Labels{fleet.LabelUUID: uuid}}
		}
		return out
	}
	// run writes a device that reports every five minutes, from a moment to another.
	held := map[string]float64{}
	run := func(uuid string, accounts bool, a, b time.Duration) {
		for at := a; at <= b; at += 5 * time.Minute {
			labels := query.Labels{fleet.LabelName: fleet.SeriesUp, fleet.LabelUUID: uuid, fleet.LabelHost: "n1"}
			keys[fleet.DeviceKey(labels)] = uuid
			m.Add(labels, from.Add(at), 1)
			if accounts {
				m.Add(query.Labels{fleet.LabelName: fleet.SeriesUnallocatedTime, fleet.LabelUUID: uuid, fleet.LabelHost: "n1", fleet.LabelKind: fleet.KindUnallocated}, from.Add(at), held[uuid])
				held[uuid] += 300
			}
		}
	}
	const minute, hour = time.Minute, time.Hour
	run("whole", true, -hour, 30*day)
	run("away", true, -hour, 10*day)
	run("away", true, 20*day+2*hour, 30*day)
	run("new", true, 10*day+12*hour+35*minute, 30*day)
	run("dead", true, -hour, 12*day+20*minute)
	run("brief", true, 3*day+5*hour+20*minute, 3*day+5*hour+50*minute)
	run("idle", false, -hour, 30*day) // no account
	list := []string{}
	for key := range keys {
		list = append(list, key)
	}

	search := func(s query.Store) map[string]*Device {
		t.Helper()
		out := seen()
		if err := Search(t.Context(), s, out, list, from, to); err != nil {
			t.Fatal(err)
		}
		byUUID := map[string]*Device{}
		for _, d := range out {
			byUUID[d.Labels[fleet.LabelUUID]] = d
		}
		return byUUID
	}
	near := cmp.Comparer(func(a, b time.Time) bool { return a.Sub(b).Abs() <= 90*time.Minute }) // the step is 86 min
	samples, k := search(m), &keeper{m, map[string]int{}, false}
	kept := search(k)
	delete(samples, "brief") // between two steps
	brief := kept["brief"]
	delete(kept, "brief")
	if diff := cmp.Diff(samples, kept, near); diff != "" {
		t.Errorf("samples and kept hours (-samples +kept):\n%s", diff)
	}
	at := from.Add
	exact := cmp.Comparer(func(a, b time.Time) bool { return a.Sub(b).Abs() <= 5*time.Minute })
	want := map[string]*Device{
		"whole": {First: from, Last: to},
		"away":  {First: from, Last: to, Gaps: []Span{{at(10 * day), at(20*day + 2*hour)}}},
		"new":   {First: at(10*day + 12*hour + 35*minute), Last: to},
		"dead":  {First: from, Last: at(12*day + 20*minute)},
	}
	for uuid := range want {
		want[uuid].Labels = query.Labels{fleet.LabelUUID: uuid}
	}
	delete(kept, "idle")
	if diff := cmp.Diff(want, kept, exact); diff != "" {
		t.Errorf("kept hours (-want +got):\n%s", diff)
	}
	if brief.First.Before(at(3*day+5*hour)) || brief.Last.After(at(3*day+6*hour)) || brief.First.IsZero() {
		t.Errorf("half an hour was seen from %s to %s", brief.First, brief.Last)
	}
	if k.searched["whole"] != 0 || k.searched["idle"] != 30 {
		t.Errorf("samples were searched for on so many days: %v", k.searched)
	}
	k.gone = true
	kept = search(k)
	delete(kept, "brief")
	delete(kept, "idle")
	if diff := cmp.Diff(want, kept, exact); diff != "" {
		t.Errorf("kept hours without samples (-want +got):\n%s", diff)
	}
}
