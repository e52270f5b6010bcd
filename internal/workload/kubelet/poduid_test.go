package kubelet

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A pod of a StatefulSet comes back under its name, and the directory of its predecessor
// remains for a while: the new pod must not get the old UID.
func TestLogsUID(t *testing.T) {
	root := t.TempDir()
	folder := func(name string, at time.Time) {
		t.Helper()
		dir := filepath.Join(root, "var/log/pods", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Unix(1_000_000, 0)
	l := NewLogs(root)
	l.now = func() time.Time { return now }
	f := func(namespace, pod, want string) {
		t.Helper()
		if got, ok := l.UID(namespace, pod); got != want || ok != (want != "") {
			t.Errorf("uid of %s/%s = %q, want %q", namespace, pod, got, want)
		}
	}
	folder("ml_web-0_old", now)
	folder("ml_other_x", now)
	f("ml", "web-0", "old")
	f("ml", "missing", "")
	f("other", "web-0", "")
	folder("ml_web-0_new", now.Add(time.Minute))
	now = now.Add(readAgain)
	f("ml", "web-0", "new")
}
