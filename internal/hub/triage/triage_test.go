package triage

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type log []events.Event

func (l log) Events(context.Context, events.Query) ([]events.Event, error) { return l, nil }

func event(state, cluster, host, since string) events.Event {
	return events.Event{Time: noon, Name: "gpu.finding", Severity: "WARN", Body: "missing", Attributes: map[string]string{
		"gpu.finding.rule": "fleet_missing_node", "gpu.finding.state": state, "k8s.cluster.name": cluster, "host.name": host, "gpu.finding.since": since,
	}}
}

// Catches nodes of the same name in two clusters that share a finding, and a finding that is open
// although its latest event closed it.
func TestOpen(t *testing.T) {
	t.Parallel()
	list := log{event("closed", "a", "n1", "1"), event("open", "b", "n1", "1"), event("open", "a", "n1", "1"), event("open", "a", "n2", "1")}
	if diff := cmp.Diff([]events.Event{list[1], list[3]}, Open(list)); diff != "" {
		t.Errorf("open (-want +got):\n%s", diff)
	}
}

// Catches a mark that is lost in a restart, applies to another finding or to its return, or
// outlasts its end.
func TestMarks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "triage.json")
	now := noon
	open := func() *Marks {
		m, err := Load(path, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open()
	n1, n2 := event("open", "a", "n1", "s1"), event("open", "a", "n2", "s2")
	do := func(method, path string, form url.Values) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		m.Handler(log{n1, n2})(w, r, access.Grant{Name: "ops", Admin: true})
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	id1, id2 := ID(n1.Attributes), ID(n2.Attributes)
	for _, c := range []struct {
		method, path string
		form         url.Values
		want         int
	}{
		{"POST", "/api/findings/0123456789abcdef/acknowledge", nil, 404},
		{"POST", "/api/findings/" + id1 + "/acknowledge", url.Values{"comment": {strings.Repeat("x", maxComment+1)}}, 400},
		{"POST", "/api/findings/" + id1 + "/acknowledge", url.Values{"comment": {"new board ordered"}}, 200},
		{"POST", "/api/findings/" + id2 + "/silence", nil, 400},
		{"POST", "/api/findings/" + id2 + "/silence", url.Values{"for": {"-1h"}}, 400},
		{"POST", "/api/findings/" + id2 + "/silence", url.Values{"for": {"9000h"}}, 400},
		{"POST", "/api/findings/" + id2 + "/silence", url.Values{"until": {"tomorrow"}}, 400},
		{"POST", "/api/findings/" + id2 + "/silence", url.Values{"for": {"2h"}}, 200},
		{"PUT", "/api/findings/" + id2, nil, 405},
	} {
		if code, text := do(c.method, c.path, c.form); code != c.want {
			t.Errorf("%s %s %v: %d %s, want %d", c.method, c.path, c.form, code, text, c.want)
		}
	}
	m = open() // a restart
	ack := Mark{Finding: id1, Since: "s1", By: "ops", At: noon, Comment: "new board ordered"}
	silence := Mark{Finding: id2, Until: noon.Add(2 * time.Hour), By: "ops", At: noon}
	of := func(id, since string, want Mark) {
		t.Helper()
		got, _ := m.Of(id, since)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s since %s at %s (-want +got):\n%s", id, since, now, diff)
		}
	}
	of(id1, "s1", ack)
	of(id1, "later", Mark{}) // the finding closed and opened again
	of(id2, "s2", silence)
	of(id2, "later", silence)
	of("other", "s1", Mark{})
	if _, text := do("GET", "/api/findings", nil); strings.Count(text, `"mark"`) != 2 || !strings.Contains(text, `"comment":"new board ordered"`) {
		t.Errorf("the list has not both marks: %s", text)
	}
	now = noon.Add(2 * time.Hour)
	of(id2, "s2", Mark{})
	of(id1, "s1", ack)
	if code, text := do("DELETE", "/api/findings/"+id1, nil); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	m = open()
	of(id1, "s1", Mark{})
	if got, ok := (*Marks)(nil).Of(id1, "s1"); ok {
		t.Errorf("nobody marked %v", got)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
}

// Catches a link that was planted in the data folder and makes the hub write elsewhere, and a
// damaged file that is silently replaced.
func TestMarksOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, other := filepath.Join(dir, "triage.json"), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("[]"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, time.Now); err == nil {
		t.Error("a link is read")
	}
	m := &Marks{path: path, now: time.Now, all: map[string]Mark{}}
	if err := m.set(Mark{Finding: "x", Since: "s", At: time.Now()}, false); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "[]" {
		t.Errorf("the target of the link has %s %v", text, err)
	}
	if err := os.WriteFile(path, []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, time.Now); err == nil {
		t.Error("half a file is read")
	}
}
