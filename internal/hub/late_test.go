package hub

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub/access"
)

// Catches a team that sees the usage of another one, and one that is billed for time that the bill of
// the fleet gives to somebody else.
func TestScopedUsage(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir(), Options{})
	a := s.Appender(t.Context())
	for i := range 31 {
		for _, team := range []string{"red", "blue"} { // both claim all of the device
			l := name(fleet.SeriesAllocatedTime, fleet.LabelUUID, "g", fleet.LabelHost, "n", fleet.LabelPodUID, team, TeamLabel, team, fleet.LabelKind, "job")
			a.Gauge(l, ago(time.Duration(30-i)*time.Minute), float64(60*i))
		}
	}
	commit(t, a)
	held := func(scope access.Scope) map[string]time.Duration {
		t.Helper()
		k, ok := ScopedStore(s, scope).(fleet.Keeper)
		if !ok {
			t.Fatal("a team's store keeps no usage")
		}
		d, err := k.Usage(t.Context(), now.Truncate(24*time.Hour), now)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]time.Duration{}
		for _, r := range d.Rows {
			out[r.Labels[TeamLabel]] = r.Held.Duration()
		}
		return out
	}
	if diff := cmp.Diff(map[string]time.Duration{"red": 15 * time.Minute, "blue": 15 * time.Minute}, held(access.Scope{})); diff != "" {
		t.Errorf("fleet (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]time.Duration{"red": 15 * time.Minute}, held(access.Scope{Team: "red"})); diff != "" {
		t.Errorf("team (-want +got):\n%s", diff)
	}
}
