package cost

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches a quota that counts rows of others, or misses its own, because rows were taken for alike: a label
// that only another quota matches, an absent label beside an empty one, and a pattern.
func TestAlike(t *testing.T) {
	t.Parallel()
	quotas, err := ParseQuotas([]byte(`quotas:
- {name: a, match: {team: red}, gpu_hours_per_month: 1}
- {name: b, match: {team: "r*", namespace: "?l"}, gpu_hours_per_month: 1}
- {name: c, match: {cluster: ""}, gpu_hours_per_month: 1}
- {name: d, match: {model: H100, user: "*"}, gpu_hours_per_month: 1}
- {name: e, match: {namespace: "*"}, gpu_hours_per_month: 1}
`))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var s Statement
	for range 2000 {
		l := query.Labels{fleet.LabelUUID: fmt.Sprint(r.IntN(100))}
		for name, values := range map[string][]string{
			fleet.LabelTeam: {"red", "ros", "blue", ""}, fleet.LabelNamespace: {"ml", "dl", "web"}, fleet.LabelCluster: {"east", ""},
			fleet.LabelModel: {"H100", "A100"}, fleet.LabelSlurmUser: {"ada", "bob"}, fleet.LabelKind: {"job", fleet.KindUnallocated, fleet.KindOther},
		} {
			if n := r.IntN(len(values) + 1); n < len(values) {
				l[name] = values[n]
			}
		}
		s.Rows = append(s.Rows, Row{Labels: l, Amounts: Amounts{Used: Seconds(r.Int64N(1e12))}})
	}
	for i, use := range Check(quotas, s, nil) {
		var want Seconds
		for _, row := range s.Rows {
			if fleet.IsHeld(row.Labels[fleet.LabelKind]) && quotas[i].Matches(row.Labels) {
				want += row.Used
			}
		}
		if use.Used != want.Hours() || want == 0 {
			t.Errorf("%s has %v hours, want %v", use.Quota, use.Used, want.Hours())
		}
	}
	if n := len(alike(quotas, s.Rows)); n > 500 {
		t.Errorf("%d rows are left of %d", n, len(s.Rows))
	}
}
