//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// occupiedSlurm names the folder of the Slurm cluster that runs on this machine. There can be only one: the
// paths of its nodes' control groups are fixed.
const occupiedSlurm = "/run/gpumeter-e2e-slurm"

// occupySlurm waits until this test may run a cluster on this machine, removes the remains of a killed one,
// and returns a folder that all users can read. After the test it removes the remains of this one.
func occupySlurm(t *testing.T) string {
	t.Helper()
	f, err := os.OpenFile(occupiedSlurm, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if last, err := os.ReadFile(occupiedSlurm); err != nil {
		t.Fatal(err)
	} else if len(last) > 0 {
		t.Logf("a cluster was left in %s", last)
		sweepSlurm(t, string(last))
	}
	dir, err := os.MkdirTemp("", "slurm") // t.TempDir belongs to root and is too long for a socket path
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, occupiedSlurm, dir)
	t.Cleanup(func() {
		sweepSlurm(t, dir)
		write(t, occupiedSlurm, "")
		f.Close() // releases the lock
	})
	return dir
}

// sweepSlurm kills the jobs of the cluster in dir, whose daemons have ended, and removes their remains.
func sweepSlurm(t *testing.T, dir string) {
	t.Helper()
	eventually(t, "the jobs have ended", func() error {
		left := 0
		for _, pid := range pids() {
			if ofSlurm(pid, dir) {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL) // no error if it has ended
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes are left", left)
		}
		return nil
	})
	for _, node := range slurmNodes {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/slurm_" + node)
		for _, group := range groups {
			removeGroup(t, group)
		}
	}
	if slurmRoot != "" {
		_ = os.Remove(filepath.Join(slurmRoot, dir)) // the mount point of dir for its processes
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// ofSlurm reports whether a process belongs to the cluster in dir: it is in a control group of its nodes, or
// was started by one of its daemons.
func ofSlurm(pid int, dir string) bool {
	if pid == os.Getpid() || parent(pid) == 0 { // ignore zombies
		return false
	}
	group, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for _, node := range slurmNodes {
		if bytes.Contains(group, []byte("/slurm_"+node+"/")) {
			return true
		}
	}
	environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return bytes.Contains(environment, []byte("SLURM_CONF="+dir+"/"))
}
