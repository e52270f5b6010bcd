package hub

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/audit"
)

// Catches a finding that somebody without the role, or a foreign page in the browser of an admin,
// acknowledges; a request that is missing in the audit log; and a secret in it.
func TestAdminAndAudit(t *testing.T) {
	t.Parallel()
	tokens, err := access.ParseTokens([]byte(testTokens))
	if err != nil {
		t.Fatal(err)
	}
	s := twoTeams(t)
	path := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(path, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	o := HandlerOptions{
		Tokens: tokens, Refusals: s.Refusals(), OTLP: ok, UI: ok, Audit: log,
		Findings: func(w http.ResponseWriter, _ *http.Request, g Grant) { _, _ = io.WriteString(w, g.Name) },
	}
	h := NewHandler(s, s, o)
	const admin, read, team = "admin-0123456789abcdef", "read-0123456789abcdef", "team-0123456789abcdef"
	for _, c := range []struct {
		method, token string
		want          int
	}{
		{"GET", admin, 200},
		{"GET", read, 200},
		{"GET", team, 403},
		{"GET", "", 401},
		{"GET", "write-0123456789abcdef", 403},
		{"POST", admin, 200},
		{"POST", read, 403},
		{"POST", team, 403},
		{"POST", "", 401},
		{"DELETE", read, 403},
		{"DELETE", admin, 200},
	} {
		if code, text, _ := ask(t, h, c.token, c.method, "/api/findings/x/acknowledge", nil); code != c.want {
			t.Errorf("%s with %.5q: %d %s, want %d", c.method, c.token, code, text, c.want)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/findings/x/acknowledge", nil)
	r.SetBasicAuth("me", admin) // which browsers send by themselves
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("basic authentication: %d", w.Code)
	}
	o.Tokens, o.Audit = nil, nil
	if code, text, _ := ask(t, NewHandler(s, s, o), "", "POST", "/api/findings/x/acknowledge", nil); code != http.StatusForbidden {
		t.Errorf("a hub without tokens: %d %s", code, text)
	}

	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	ask(t, h, team, "POST", "/api/v1/query", url.Values{"query": {"up{a=\"b\"}\n"}, "token": {team}})
	ask(t, h, "wrong-0123456789abcdef", "GET", "/api/v1/query?query=1", nil)
	ask(t, h, "write-0123456789abcdef", "POST", "/v1/metrics", nil) // every few seconds
	ask(t, h, read, "POST", "/v1/metrics", nil)
	ask(t, h, "", "GET", "/", nil)
	ask(t, h, "", "GET", "/healthz", nil)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []audit.Entry
	for line := range strings.Lines(string(text)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(line, err)
		}
		got = append(got, e)
	}
	want := []audit.Entry{
		{Token: "red team", Role: "team", Scope: "red team", Peer: "192.0.2.1", Method: "POST", Path: "/api/v1/query", Query: "query=up{a=\"b\"}\n&token=[REDACTED]", Status: 200},
		{Peer: "192.0.2.1", Method: "GET", Path: "/api/v1/query", Query: "query=1", Status: 401},
		{Token: "sha256:" + got[2].Token[7:], Role: "read", Peer: "192.0.2.1", Method: "POST", Path: "/v1/metrics", Status: 403},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(audit.Entry{}, "Time", "Duration")); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
	if strings.Contains(string(text), "0123456789abcdef") {
		t.Errorf("a secret is in the audit log: %s", text)
	}
}
