//go:build linux

package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cli/billing"
)

// queueFacts is what waits, and in front of what.
type queueFacts struct {
	Jobs, Pools, Teams []string
	Missed             bool
}

// demoQueueAgrees compares what the page and the report in each format say of a demo's queue, at one moment of the history.
func demoQueueAgrees(t *testing.T, url string, at time.Time) {
	t.Helper()
	from := at.Add(-20 * time.Minute)
	body := get(t, fmt.Sprintf("%s/api/page/queue?from=%d&to=%d&at=%d", url, from.Unix(), at.Unix(), at.Unix()))
	var page struct {
		Jobs []struct {
			Name, Queue, Team, Reason string
			GPUs                      float64
		}
		Pools []struct{ All, Free, Pending, Blocked float64 }
		Teams []struct {
			Team                  string
			Asked, Given, Waiting float64
			Quota                 *float64
		}
		Missed struct{ Time float64 }
	}
	if err := json.Unmarshal(body, &page); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	var want queueFacts
	blocked := 0.0
	for _, j := range page.Jobs {
		want.Jobs = append(want.Jobs, fmt.Sprintf("%s/%s of %s wants %g: %s", j.Queue, j.Name, j.Team, j.GPUs, j.Reason))
	}
	for _, p := range page.Pools {
		want.Pools = append(want.Pools, fmt.Sprintf("%g of %g free, %g pending, %g blocked", p.Free, p.All, p.Pending, p.Blocked))
		blocked += p.Blocked
	}
	for _, p := range page.Teams {
		want.Teams = append(want.Teams, fmt.Sprintf("%s asks %g, has %g, waits for %g", p.Team, p.Asked, p.Given, p.Waiting))
		if p.Quota == nil {
			t.Errorf("%s has no quota", p.Team)
		}
	}
	want.Missed = page.Missed.Time > 0
	if len(want.Jobs) < 3 || blocked == 0 || !want.Missed {
		t.Fatalf("the queue of the demo is dull: %+v", want)
	}

	ask := func(args ...string) string {
		t.Helper()
		text, err := reportOutput(t, append([]string{"queue", "--url", url, "--from", from.UTC().Format(time.RFC3339), "--to", at.UTC().Format(time.RFC3339)}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var report billing.Queued
	if err := json.Unmarshal([]byte(ask("-o", "json")), &report); err != nil {
		t.Fatal(err)
	}
	got := queueFacts{Missed: len(report.Blocked) > 0}
	for _, j := range report.Jobs {
		got.Jobs = append(got.Jobs, fmt.Sprintf("%s/%s of %s wants %g: %s", j.Queue, j.Name, j.Team, j.GPUs, j.Reason))
	}
	for _, p := range report.Pools {
		got.Pools = append(got.Pools, fmt.Sprintf("%g of %g free, %g pending, %g blocked", p.Free, p.All, p.Pending, p.Blocked))
	}
	for _, p := range report.Teams {
		got.Teams = append(got.Teams, fmt.Sprintf("%s asks %g, has %g, waits for %g", p.Team, p.Asked, p.Given, p.Waiting))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the report says otherwise than the page (-page +report):\n%s", diff)
	}
	rows, err := csv.NewReader(strings.NewReader(ask("-o", "csv", "--now"))).ReadAll()
	if err != nil || len(rows) != len(page.Jobs)+1 || slices.ContainsFunc(rows[1:], func(r []string) bool { return r[len(r)-1] != "all" }) {
		t.Errorf("csv --now has %d rows, want %d, all simulated: %v", len(rows), len(page.Jobs)+1, err)
	}
	for _, format := range []string{"table", "html"} {
		text := ask("-o", format)
		for _, j := range page.Jobs {
			if !strings.Contains(text, j.Queue+"/"+j.Name) || !strings.Contains(text, "SIMULATED") {
				t.Errorf("the %s has no %s, or does not say that it is simulated", format, j.Name)
			}
		}
	}
	screen, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := (&top{store: storeFlags{url: url}, once: true, env: func(string) string { return "" }}).run(t.Context(), screen); err != nil {
		t.Fatal(err)
	}
	shown, err := os.ReadFile(screen.Name())
	if err != nil || !regexp.MustCompile(`, \d+ jobs wait for \d+ GPUs, \d+ free meanwhile`).Match(shown) {
		t.Errorf("top does not say what waits: %v\n%s", err, shown)
	}
}
