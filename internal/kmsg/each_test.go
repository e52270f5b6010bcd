package kmsg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A log in a regular file is read to its end, past garbage and overlong lines.
func TestEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	text := "6,1,5,-;first\n SUBSYSTEM=pci\ngarbage\n" + strings.Repeat("x", 3*maxRecord) + "\n4,2,7,-;" + strings.Repeat("y", 900) + "\n3,3,9,-;last"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := Each(path, func(r Record) { got = append(got, r.Text) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"first", strings.Repeat("y", 900), "last"}, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if err := Each(path+"x", nil); err == nil {
		t.Error("no error for a missing log")
	}
}

// Each returns at the end of the real kernel log instead of waiting for more records.
func TestEachReal(t *testing.T) {
	n := 0
	if err := Each("/dev/kmsg", func(Record) { n++ }); err != nil {
		t.Skip(err)
	}
	t.Logf("%d records", n)
}
