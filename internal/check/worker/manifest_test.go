//go:build linux

package worker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Catches a manifest of which a part is not checked: a second document, or a key that is given twice.
func TestManifestIsOneDocument(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	for text, want := range map[string]string{
		"nvme: 4\n---\nnvme: 8\n":  "second document",
		"nvme: 4\nnvme: 8\n":       "already defined",
		"# nothing\n":              "empty",
		"nvme: 4\ngovenor: fast\n": "govenor",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readManifest(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
