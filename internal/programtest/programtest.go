// Package programtest writes programs that a test then runs: scripts in place of Slurm's tools,
// copies of compiled programs.
//
// The kernel refuses to run a file that any process has open for writing ("text file busy"). A test
// that writes a program beside tests that start processes can meet that: a child that is forked
// while the file is being written inherits it, and holds it until it runs its own program.
package programtest

import (
	"os"
	"syscall"
	"testing"
)

// Write creates the program at path. No process is forked meanwhile, so none inherits the file.
func Write[T string | []byte](t testing.TB, path string, program T) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(program), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatalf("cannot write the program: %v", err)
	}
}
