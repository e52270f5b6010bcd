//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches a record that is lost because the agent before was killed while it wrote: the record
// was appended to the truncated one.
func TestDropTruncated(t *testing.T) {
	long := `{"x":"` + strings.Repeat("x", 1<<17)
	for text, want := range map[string]string{
		"":                   "",
		"{\"a\":1}\n":        "{\"a\":1}\n",
		"{\"a\":1}\n{\"b\":": "{\"a\":1}\n",
		"{\"b\":":            "",
		"{}\n" + long:        "{}\n",
		long:                 "",
		"root:x:0\nbin:x:1":  "root:x:0\nbin:x:1", // not ours
	} {
		path := filepath.Join(t.TempDir(), "otlp.jsonl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := dropTruncated(path); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%.20q (-want +got):\n%s", text, diff)
		}
	}
	if err := dropTruncated(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Error(err)
	}
	if err := dropTruncated("/dev/null"); err != nil {
		t.Error(err)
	}
}
