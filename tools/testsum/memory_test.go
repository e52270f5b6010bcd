package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Catches the files of a killed run that stay in memory, and those of another run that are deleted.
func TestInMemory(t *testing.T) {
	other := inMemory()
	if other == "" {
		t.Skip("/dev/shm is too small, or no programs may be run in it")
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	killed := filepath.Join(shm, shmPrefix+"-killed")
	if err := os.MkdirAll(filepath.Join(killed, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(killed) })
	before := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(killed, before, before); err != nil {
		t.Fatal(err)
	}
	dir := inMemory()
	t.Cleanup(func() { os.RemoveAll(dir) })
	if _, err := os.Stat(killed); !os.IsNotExist(err) {
		t.Errorf("the files of a killed run: %v", err)
	}
	if _, err := os.Stat(other); err != nil || dir == other {
		t.Errorf("%s and %s: %v", dir, other, err)
	}
}
