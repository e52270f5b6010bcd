package kubeapi

import (
	"encoding/json"
	"testing"
	"time"
)

// Catches a start that is the last restart, that of an init container, or one of several that is not the first; and a pod whose
// first start nobody can know any more.
func TestStarted(t *testing.T) {
	f := func(statuses, want string, restarted bool) {
		t.Helper()
		var p podObject
		if err := json.Unmarshal([]byte(`{"status":{"initContainerStatuses":[{"state":{"terminated":{"startedAt":"2026-11-19T12:00:00Z"}}}],"containerStatuses":[`+statuses+`]}}`), &p); err != nil {
			t.Fatal(err)
		}
		at, again := started(p.Status.ContainerStatuses)
		got := ""
		if !at.IsZero() {
			got = at.Format(time.TimeOnly)
		}
		if got != want || again != restarted {
			t.Errorf("%s: %q, restarted %v; want %q, %v", statuses, got, again, want, restarted)
		}
	}
	f(``, "", false)
	f(`{"state":{"waiting":{"reason":"ContainerCreating"}}}`, "", false)
	f(`{"state":{"running":{"startedAt":"2026-11-19T12:00:09Z"}}},{"state":{"running":{"startedAt":"2026-11-19T12:00:05Z"}}}`, "12:00:05", false)
	f(`{"state":{"terminated":{"startedAt":"2026-11-19T12:00:05Z"}}}`, "12:00:05", false)
	f(`{"restartCount":1,"state":{"running":{"startedAt":"2026-11-19T12:00:09Z"}},"lastState":{"terminated":{"startedAt":"2026-11-19T12:00:05Z"}}}`, "12:00:05", false)
	f(`{"restartCount":2,"state":{"running":{"startedAt":"2026-11-19T12:00:09Z"}},"lastState":{"terminated":{"startedAt":"2026-11-19T12:00:05Z"}}}`, "", true)
}
