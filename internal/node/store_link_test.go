package node

import (
	"os"
	"path/filepath"
	"testing"
)

// Catches a state file that is written or locked through a link of another user.
func TestStoreOfAnother(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"state.lock", stateName} {
		dir := t.TempDir()
		target := filepath.Join(t.TempDir(), "target")
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(filepath.Join(dir, name), 12345, -1); err != nil {
			t.Skip("only root can make a link of another user:", err)
		}
		if s, err := openStore(dir); err == nil {
			t.Errorf("%s: %v", name, s.close())
		}
		if _, err := os.Lstat(target); err == nil {
			t.Errorf("%s: the target of the link was made", name)
		}
	}
}
