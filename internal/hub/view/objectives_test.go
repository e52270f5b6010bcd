package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/slo"
)

// Catches an objective of another team on the page of a team, an unknown number that is 0, a lost field, and a page that fails because
// its objectives cannot be read.
func TestServingObjectives(t *testing.T) {
	t.Parallel()
	all := servingHub(t)
	file, err := slo.Parse([]byte(`window: 1d
objectives: [{model: "llama-*", ttft: {p95: 50ms}, tpot: {p95: 1s}, errors: 1%}]`))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Model               string
		Objectives, Goodput json.RawMessage
		Limits              []struct {
			Cause, Name string
			Share       float64
		}
	}
	ask := func(judge func(context.Context, time.Time) (*slo.Report, error)) []row {
		t.Helper()
		store := hub.ScopedStore(all, access.Scope{Team: "red"})
		o := at(noon)
		o.Objectives = judge
		code, body := get(t, Handler(store, Cost(store, servingPrices(t), nil), nil, o), "/serving?from=1794740400")
		var a struct{ Serving []row }
		if err := json.Unmarshal([]byte(rounded(t, body)), &a); err != nil || code != http.StatusOK {
			t.Fatalf("status %d, %v: %s", code, err, body)
		}
		return a.Serving
	}
	const (
		known = `{"objective":"ttft_p95","text":"TTFT within 50ms for 95 %","target":0.95,"threshold":0.05,"window":86400,"bad":0.5,"badLow":0,"badHigh":1,"below":0,"above":0.1,
			"burn":{"1h":10,"30m":10,"3d":10,"5m":10,"6h":10},"budget":-9,"ok":false,"alert":"page"}`
		unknown = `,"window":86400,"bad":null,"badLow":null,"badHigh":null,"below":null,"above":null,
			"burn":{"1h":null,"30m":null,"3d":null,"5m":null,"6h":null},"budget":null,"ok":null}`
		objectives = `[` + known + `,{"objective":"tpot_p95","text":"TPOT within 1s for 95 %","target":0.95,"threshold":1` + unknown +
			`,{"objective":"errors","text":"errors at most 1 %","target":0.99,"threshold":null` + unknown + `]`
	)
	// The whole fleet is judged, and the page of a team has what is its own.
	got := ask(func(ctx context.Context, at time.Time) (*slo.Report, error) {
		return slo.NewJudge(file).Look(ctx, all, at)
	})
	if len(got) != 1 {
		t.Fatalf("%d rows", len(got))
	}
	if diff := cmp.Diff(indent(t, objectives), indent(t, string(got[0].Objectives))); diff != "" {
		t.Errorf("objectives (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(indent(t, `{"low":null,"high":0.5,"of":1}`), indent(t, string(got[0].Goodput))); diff != "" {
		t.Errorf("goodput (-want +got):\n%s", diff)
	}
	if len(got[0].Limits) != 1 || got[0].Limits[0].Cause != "unexplained" || got[0].Limits[0].Name != "Unexplained" || got[0].Limits[0].Share != 1 {
		t.Errorf("limits: %+v", got[0].Limits)
	}
	// Another team has a workload of the same name.
	got = ask(func(_ context.Context, at time.Time) (*slo.Report, error) {
		of := func(team string, cause slo.Cause) slo.Row {
			return slo.Row{Model: "llama-red", Owner: fleet.Owner{ID: "deployment///chat-red/", Team: team}, Limits: []slo.Share{{Cause: cause, Share: 1}}}
		}
		return &slo.Report{At: at, Rows: []slo.Row{of("red", slo.Prefill), of("blue", slo.Host)}}, nil
	})
	if len(got) != 1 || len(got[0].Limits) != 1 || got[0].Limits[0].Name != "Prefill" {
		t.Errorf("of two teams: %+v", got)
	}
	got = ask(func(context.Context, time.Time) (*slo.Report, error) { return nil, errors.New("the store is away") })
	if diff := cmp.Diff([]row{{Model: "llama-red"}}, got); diff != "" {
		t.Errorf("without objectives (-want +got):\n%s", diff)
	}
}

// Catches a row that has the requests and the cost of two teams whose workloads have the same name, on the page of those who see both.
func TestServingKeepsTeamsApart(t *testing.T) {
	t.Parallel()
	store := servingHubOf(t, func(what, _ string) string { return what })
	_, body := get(t, Handler(store, Cost(store, servingPrices(t), nil), nil, at(noon)), "/serving?from=1794740400")
	var a struct {
		Serving []struct {
			Owner     struct{ ID, Team string }
			Engines   int
			TokensOut float64
			Period    struct{ TokensOut, Cost float64 }
		}
	}
	if err := json.Unmarshal([]byte(rounded(t, body)), &a); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	got := map[string]string{}
	for _, s := range a.Serving {
		got[s.Owner.Team] = fmt.Sprint(s.Owner.ID, " ", s.Engines, " ", s.TokensOut, " ", s.Period.TokensOut, " ", s.Period.Cost)
	}
	const each = "deployment///chat/ 1 10 36000 4"
	if diff := cmp.Diff(map[string]string{"red": each, "blue": each}, got); diff != "" || len(a.Serving) != 2 {
		t.Errorf("%d rows (-want +got):\n%s", len(a.Serving), diff)
	}
}
