//go:build linux

package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpumeter/gpumeter/internal/local"
)

// Catches an agent that waits for a machine elsewhere because both keep their state on a file server, one that
// waits for itself, one that reads devices beside another agent, and a lock that outlives its agent.
func TestClaim(t *testing.T) {
	t.Parallel()
	uuid := func() (root, file string) {
		root = t.TempDir()
		file = filepath.Join(root, "sys/class/dmi/id/product_uuid")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return root, file
	}
	held := func(path, text string) {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := lock(f); err != nil {
			t.Fatal(err)
		}
	}
	f := func(name string, s standby, taken bool) {
		t.Helper()
		var c claim
		if err := s.claim(&c); errors.Is(err, errTaken) != taken || (err != nil) != taken {
			t.Errorf("%s: %v, taken: want %v", name, err, taken)
		}
		c.release()
	}
	root, file := uuid()
	state := t.TempDir()
	f("alone", standby{root: root, state: state}, false)
	f("again", standby{root: root, state: state}, false)
	var first claim
	if err := (&standby{root: root, state: t.TempDir()}).claim(&first); err != nil {
		t.Fatal(err)
	}
	f("the machine is taken", standby{root: root, state: state}, true)
	free, _ := uuid()
	f("the folder was released with the claim", standby{root: free, state: state}, false)
	first.release()
	f("the first agent ended", standby{root: root, state: state}, false)

	folder := func(boot string) string {
		dir := t.TempDir()
		held(filepath.Join(dir, "agent.lock"), boot)
		return dir
	}
	f("the folder is taken", standby{root: free, state: folder(local.BootID())}, true)
	f("the folder was taken a moment ago", standby{root: free, state: folder("")}, true)
	f("the folder is taken by another machine", standby{root: free, state: folder("3fa1b9f0-4d3c-4e5a-8b7e-000000000000")}, false)
	f("no folder", standby{root: free}, false)
	f("an unusable folder", standby{root: free, state: file + "/below"}, false)

	own, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if c := (claim{files: []*os.File{own}}); !c.has(own) {
		t.Error("an agent does not know its own lock")
	}
}
