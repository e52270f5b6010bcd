//go:build unix

package folder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Catches a link of another user in a folder of ours, or in place of it, and a link of the
// administrator that is refused.
func TestMake(t *testing.T) {
	t.Parallel()
	link := func(path, target string, uid int) {
		t.Helper()
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(path, uid, -1); err != nil {
			t.Skip("only root can make a link of another user:", err)
		}
	}
	ours, other := os.Geteuid(), 12345
	f := func(what string, want string, prepare func(dir string)) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "data")
		prepare(dir)
		err := Make(dir, 0o700)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	const refused = "a symbolic link of another user (UID 12345)"
	made := func(dir string) string {
		if err := os.MkdirAll(filepath.Join(dir, "tsdb", "wal"), 0o700); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "tsdb", "wal", "00000001")
	}
	f("a new folder", "", func(string) {})
	f("an own link", "", func(dir string) { link(made(dir), t.TempDir(), ours) })
	f("another's link inside", refused, func(dir string) { link(made(dir), "/etc/passwd", other) })
	f("another's dangling link", refused, func(dir string) { link(made(dir), "/nowhere", other) })
	f("an own link in place of the folder", "", func(dir string) { link(dir, t.TempDir(), ours) })
	f("another's link in place of the folder", refused, func(dir string) { link(dir, t.TempDir(), other) })
	f("another's link behind an own one", refused, func(dir string) {
		disk := t.TempDir()
		link(filepath.Join(disk, "lock"), "/etc/passwd", other)
		link(dir, disk, ours)
	})
	f("a file in place of the folder", "not a directory", func(dir string) {
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
}

// Catches a folder that everybody can write to and that nobody is told about.
func TestShared(t *testing.T) {
	t.Parallel()
	for mode, want := range map[os.FileMode]string{0o700: "", 0o755: "", 0o770: "0770", 0o777: "chmod go-w", 0o777 | os.ModeSticky: "0777"} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if got := Shared(dir); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", mode, got, want)
		}
	}
	if got := Shared("/nowhere"); got != "" {
		t.Error(got)
	}
}
