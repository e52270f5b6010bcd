package layers

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// mostLines is how many lines one package may have. Beyond that it has more than one idea.
const mostLines = 4000

// Catches a package that grew until nobody knows what lives in it. Tests and generated files do not count.
func TestPackagesFit(t *testing.T) {
	lines := map[string]int{}
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || len(d.Name()) > 1 && d.Name()[0] == '.'):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, file)
		if err != nil {
			return err
		}
		head, _, _ := bytes.Cut(text, []byte("\npackage "))
		if !bytes.Contains(head, []byte("DO NOT EDIT")) {
			lines[path.Dir(file)] += bytes.Count(text, []byte("\n"))
		}
		return nil
	})
	if err != nil || len(lines) < 50 {
		t.Fatalf("%d packages: %v", len(lines), err)
	}
	for pkg, n := range lines {
		if n > mostLines {
			t.Errorf("%s has %d lines, at most %d fit into one package: find the second idea in it and move that out", pkg, n, mostLines)
		}
	}
}
