package view

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a dead node that vanishes from the page: "8 of 8 GPUs", at half of the cost.
func TestDeadNodeStays(t *testing.T) {
	m := querytest.NewMemory()
	for node, last := range map[string]time.Time{"alive": noon, "dead": noon.Add(-17 * time.Minute)} {
		for i := range 8 {
			for name, v := range map[string]float64{fleet.SeriesUp: 1, fleet.SeriesPower: 100, fleet.SeriesUtilization: 0.5} {
				l := query.Labels{fleet.LabelName: name, "gpu_uuid": fmt.Sprint(node, i), "gpu_index": fmt.Sprint(i), "host_name": node}
				for at := noon.Add(-2 * time.Hour); !at.After(last); at = at.Add(time.Minute) {
					m.Add(l, at, v)
				}
			}
		}
	}
	prices := Accounts{Currency: "EUR", Price: func(query.Labels, time.Time) (fleet.Hourly, bool) { return fleet.Hourly{Device: 2}, true }}
	type page struct {
		Headline json.RawMessage `json:"headline"`
		GPUs     struct {
			UUID   []string         `json:"uuid"`
			Since  map[string]int64 `json:"since"`
			Health []*float64       `json:"health"`
			Power  []*float64       `json:"power"`
			Rate   []*float64       `json:"rate"`
		} `json:"gpus"`
	}
	ask := func(o Options) (p page) {
		t.Helper()
		code, body := get(t, Handler(m, prices, nil, o), "/fleet")
		if err := json.Unmarshal([]byte(body), &p); err != nil || code != http.StatusOK {
			t.Fatal(code, body, err)
		}
		return p
	}
	got := ask(at(noon))
	if diff := cmp.Diff(`{"gpus":16,"silent":8,"held":0,"idle":0,"free":8,"sick":0,"warning":0,"uninvited":0,"simulated":0,"nodes":2,"silentNodes":1,"owners":0,"teams":0,`+
		`"watts":800,"utilization":0.5,"lostPerDay":0,"costPerHour":32,"silentPerHour":16}`, string(got.Headline)); diff != "" {
		t.Error(diff)
	}
	for i, uuid := range got.GPUs.UUID {
		g := &got.GPUs
		since, silent := g.Since[fmt.Sprint(i)]
		if dead := i >= 8; silent != dead || dead && since != noon.Add(-17*time.Minute).Unix() || (g.Power[i] == nil) != dead || g.Health[i] != nil || g.Rate[i] == nil || math.Abs(*g.Rate[i]-2) > 0 {
			t.Errorf("%s: silent %t since %d, power %v, health %v, rate %v", uuid, silent, since, g.Power[i], g.Health[i], g.Rate[i])
		}
	}
	if code, body := get(t, Handler(m, prices, nil, at(noon)), "/gpu?uuid=dead3"); code != http.StatusOK {
		t.Errorf("the page of a silent GPU: %d %s", code, body)
	}
	team := at(noon)
	team.Team = "red" // its store shows no other device
	if got := ask(team); len(got.GPUs.UUID) != 8 {
		t.Errorf("a team sees %v", got.GPUs.UUID)
	}
}
