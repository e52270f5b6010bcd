//go:build linux

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	names "github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
)

// Catches a check whose exit code, text or JSON does not tell a damaged store from a healthy one.
func TestHubCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := hub.Open(dir, hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got := regexp.MustCompile(`(?m)[\d.]+ [KMGT]?i?B free| +$`).ReplaceAllString(output(t, "hub", "check", dir), "")
	want := dir + `: no hub uses it,  on the disk

BLOCK  FROM (UTC)  TO  SERIES  SAMPLES  SIZE  CHECKSUMS

FOLDER            FROM (UTC)  TO  FILES  SAMPLES OR EVENTS  SIZE
tsdb/wal          -           -   1      0                  0 B
tsdb/wbl          -           -   1      0                  0 B
tsdb/chunks_head  -           -   0      0                  0 B
events            -           -   0      0                  0 B
days              -           -   0      -                  0 B

Everything can be read.
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("an empty store (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "events", "00000001.jsonl"), []byte("rubbish\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, "hub", "check", dir)
	if r.code != 1 || !strings.Contains(r.stdout, "DAMAGED events/00000001.jsonl") || !strings.Contains(r.stderr, "1 parts of the store") {
		t.Errorf("a damaged store: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	r = run(t, "hub", "check", "--json", dir)
	var report struct{ Problems []struct{ Path string } }
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != 1 || len(report.Problems) != 1 || report.Problems[0].Path != "events/00000001.jsonl" {
		t.Errorf("exit code %d, %v, %+v", r.code, err, report)
	}
	for _, args := range [][]string{{filepath.Join(dir, "none")}, {t.TempDir()}, {dir, dir}} {
		if r := run(t, append([]string{"hub", "check"}, args...)...); r.code != 1 || r.stdout != "" || r.stderr == "" {
			t.Errorf("hub check %s: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
		}
	}
}

// Catches damaged days that are not reported, that end the check with an error although their samples
// exist, or with none although they are gone.
func TestHubCheckDays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begin := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	const hours = 51
	s, err := hub.Open(dir, hub.Options{OutOfOrder: hours * time.Hour, Now: func() time.Time { return begin.Add(hours * time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := labels.FromStrings(model.MetricNameLabel, names.SeriesUnallocatedTime, names.LabelUUID, "GPU-1", names.LabelVendor, "nvidia", names.LabelHost, "n1")
	a := s.Appender(t.Context())
	for at := time.Duration(0); at <= hours*time.Hour; at += time.Minute {
		a.Counter(l, begin.UnixMilli(), begin.Add(at).UnixMilli(), at.Seconds())
	}
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		midnight := begin.AddDate(0, 0, i)
		if _, err := s.Usage(t.Context(), midnight, midnight.Add(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(code int, want ...string) {
		t.Helper()
		r := run(t, "hub", "check", dir)
		text := regexp.MustCompile(` +`).ReplaceAllString(r.stdout, " ")
		_, text, _ = strings.Cut(text, "\ndays ")
		text = regexp.MustCompile(`[\d.]+ K?i?B`).ReplaceAllString(text, "SIZE")
		if diff := cmp.Diff(strings.Join(want, "\n"), text); diff != "" || r.code != code {
			t.Errorf("exit code %d, want %d (-want +got):\n%s%s", r.code, code, diff, r.stderr)
		}
	}
	check(0, "2026-03-01 00:00:00 2026-03-03 01:00:00 3 - SIZE ", "", "Everything can be read.", "")

	path := func(name string) string { return filepath.Join(dir, "days", name) }
	damage := func(name string, change func([]byte) []byte) {
		t.Helper()
		b, err := os.ReadFile(path(name))
		if err == nil {
			err = os.WriteFile(path(name), change(b), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	damage("2026-03-01.day", func(b []byte) []byte { return b[:len(b)-1] })
	damage("2026-03-02.day", func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b })
	if err := os.WriteFile(path("2026-03-03.day.damaged"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const reason, low = " the file is damaged: its checksum is wrong", " low severity: the hub makes it again from samples"
	check(0, "2026-03-03 00:00:00 2026-03-03 01:00:00 1 - SIZE ",
		"", "DAMAGED days/2026-03-01.day (SIZE)", reason, low,
		"", "DAMAGED days/2026-03-02.day (SIZE)", reason, low,
		"", "set aside: days/2026-03-03.day.damaged (SIZE)", " low severity: the day was made again from samples",
		"", "Everything else can be read.", "")

	if err := os.Rename(path("2026-03-02.day"), path("2026-02-28.day")); err != nil { // before the first sample
		t.Fatal(err)
	}
	if r := run(t, "hub", "check", dir); r.code != 1 || !strings.Contains(r.stdout, "the usage of the day is lost, at least in part") || strings.Contains(r.stdout, "can be read") || !strings.Contains(r.stderr, "1 parts of the store") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	var report struct {
		Days struct {
			Files   int
			Damaged []struct{ Path, Severity string }
		}
	}
	r := run(t, "hub", "check", "--json", dir)
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != 1 {
		t.Fatalf("exit code %d, %v", r.code, err)
	}
	want := []struct{ Path, Severity string }{{"days/2026-02-28.day", "high"}, {"days/2026-03-01.day", "low"}}
	if diff := cmp.Diff(want, report.Days.Damaged); diff != "" || report.Days.Files != 1 {
		t.Errorf("%d files (-want +got):\n%s", report.Days.Files, diff)
	}
}
