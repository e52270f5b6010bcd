//go:build linux

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
