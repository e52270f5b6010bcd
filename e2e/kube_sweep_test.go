//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// occupied names the folder of the cluster that runs on this machine. There can be only one: the paths of
// device plugins and of pods' control groups are fixed.
const occupied = "/run/gpumeter-e2e"

// containerLogs is where every kubelet links the logs of containers.
const containerLogs = "/var/log/containers"

// occupy waits until this test may run a cluster on this machine and removes the remains of a killed one.
// After the test it removes the remains of this one.
func occupy(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(occupied, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if last, err := os.ReadFile(occupied); err != nil {
		t.Fatal(err)
	} else if len(last) > 0 {
		t.Logf("a cluster was left in %s", last)
		sweep(t, string(last))
		os.RemoveAll(string(last))
	}
	write(t, occupied, dir)
	t.Cleanup(func() {
		sweep(t, dir)
		write(t, occupied, "")
		f.Close() // releases the lock
	})
}

// sweep kills the containers of the cluster in dir, whose daemons have ended, and removes their kernel
// state.
func sweep(t *testing.T, dir string) {
	t.Helper()
	// containerd leaves one shim per pod, with the containers as its children.
	eventually(t, "the containers have ended", func() error {
		left := 0
		for shim, parent := range shims(dir) {
			left++
			if parent { // the children first: they cannot be found afterwards
				_ = syscall.Kill(shim, syscall.SIGKILL) // no error if it has ended
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes are left", left)
		}
		return nil
	})
	addresses, _ := filepath.Glob(filepath.Join(dir, "run/io.containerd.runtime.v2.task/k8s.io/*/address"))
	for _, file := range addresses {
		if address, err := os.ReadFile(file); err == nil {
			os.RemoveAll(strings.TrimPrefix(string(address), "unix://"))
		}
	}
	unmount(t, dir)
	for _, pattern := range []string{"/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/*/kubepods"} {
		groups, _ := filepath.Glob(pattern)
		for _, group := range groups {
			removeGroup(t, group)
		}
	}
	logs, _ := filepath.Glob(containerLogs + "/*")
	for _, log := range logs {
		if target, err := os.Readlink(log); err == nil && strings.HasPrefix(target, dir+"/") {
			os.RemoveAll(log)
		}
	}
	_ = os.Remove(containerLogs) // unless there is more
	os.RemoveAll(deviceplugin.DevicePluginPath)
	_ = os.Remove(filepath.Dir(filepath.Clean(deviceplugin.DevicePluginPath)))
}

// shims returns the processes of the cluster in dir: true for those without children, which may be killed.
func shims(dir string) map[int]bool {
	found := map[int]bool{}
	parents := map[int][]int{}
	for _, pid := range pids() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.Contains(line, []byte("containerd-shim")) && bytes.Contains(line, []byte(dir+"/")) {
			found[pid] = true
		}
		parents[parent(pid)] = append(parents[parent(pid)], pid)
	}
	for shim := range found {
		for _, child := range parents[shim] {
			found[child], found[shim] = true, false
		}
	}
	return found
}

func pids() []int {
	var list []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// parent returns the parent of a process, 0 if it has ended or is a zombie.
func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := bytes.Cut(text, []byte(") ")) // state, parent
	if words := strings.Fields(string(rest)); len(words) > 1 && words[0] != "Z" {
		ppid, _ := strconv.Atoi(words[1])
		return ppid
	}
	return 0
}

// unmount unmounts everything below dir, last mount first.
func unmount(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); strings.HasPrefix(words[1], dir+"/") {
			points = append(points, words[1])
		}
	}
	for _, point := range slices.Backward(points) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
			t.Errorf("cannot unmount %s: %v", point, err)
		}
	}
}

// removeGroup removes a control group and all below it, which have no processes.
func removeGroup(t *testing.T, group string) {
	t.Helper()
	eventually(t, group+" is gone", func() error {
		var groups []string
		err := filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return nil // already gone
		})
		for _, g := range slices.Backward(groups) {
			if e := os.Remove(g); e != nil && !os.IsNotExist(e) {
				err = e // the kernel may still be cleaning up
			}
		}
		return err
	})
}
