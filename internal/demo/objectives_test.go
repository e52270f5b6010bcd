//go:build linux

package demo

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/slo"
)

// Catches a demo in which everybody meets the objectives, or nobody, and a full cache that the hint does not see.
func TestDemoObjectives(t *testing.T) {
	t.Parallel()
	store, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return testNow }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	to, err := Into(store)
	if err != nil {
		t.Fatal(err)
	}
	var moments []time.Time
	for at := testNow.Add(-90 * time.Minute); !at.After(testNow); at = at.Add(30 * time.Second) {
		moments = append(moments, at)
	}
	fleet := slices.DeleteFunc(Fleet(), func(m Machine) bool { return m.Host != "h100-01" && m.Host != "mi300x-01" })
	lived(t, to, fleet, moments)
	file, err := slo.Parse(Objectives())
	if err != nil {
		t.Fatal(err)
	}
	r, err := slo.NewJudge(file).Look(t.Context(), store, testNow)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, row := range r.Rows {
		for i := range row.Results {
			x := &row.Results[i]
			ok, known := x.Ok()
			a, _ := x.Alert()
			got[row.Owner.Name+" "+x.Name] = fmt.Sprint(known, ok, " ", a.Severity)
			t.Log(row.Owner.Name, x.Text(), x.Bad.Ratio(), x.Burn)
		}
		if row.Limits != nil {
			got[row.Owner.Name] = fmt.Sprint(row.Limits[0].Cause, row.Limits[0].Share > 0.8)
		}
		t.Log(row.Owner.Name, slo.Sentence(row.Limits))
	}
	want := map[string]string{
		"chat-api ttft_p95": "true true ", "chat-api tpot_p95": "true true ", "chat-api errors": "true true ", "chat-api availability": "true true ",
		"summarizer ttft_p95": "true false page", "summarizer availability": "true true ", "summarizer": "kv_cachetrue",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
