//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpumeter/gpumeter/internal/programtest"
)

// serveVariable makes the test binary a program that serves HTTP at the address in this variable, and prints
// the path of each request. It has no metrics.
const serveVariable = "GPUMETER_E2E_SERVE"

func TestMain(m *testing.M) {
	address := os.Getenv(serveVariable)
	if address == "" {
		os.Exit(m.Run())
	}
	err := http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.URL.Path)
		http.NotFound(w, r)
	}))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// plainServer starts a program of some name that serves HTTP and is no engine.
func plainServer(t *testing.T, name string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Processes of a user that run programs of the same name are one workload, whose devices are those of each.
	program := filepath.Join(t.TempDir(), name)
	if os.Link(self, program) != nil { // on another disk
		b, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		programtest.Write(t, program, b)
	}
	address := freeAddress(t)
	p := service(t, "env", serveVariable+"="+address, program)
	const first = "/ready"
	eventually(t, "the server answers", func() error {
		_, err := get(t, "http://"+address+first)
		if err != nil && strings.Contains(err.Error(), "404") {
			return nil
		}
		return err
	})
	return p
}

// asked returns the paths that a plain server was asked for, besides by plainServer.
func asked(p *process) []string {
	var paths []string
	for path := range strings.FieldsSeq(p.said()) {
		if path != "/ready" {
			paths = append(paths, path)
		}
	}
	return paths
}

var services atomic.Int32

// service starts a program as a service manager does: in a session and in control groups of its own.
func service(t *testing.T, argv ...string) *process {
	t.Helper()
	groups := ownGroups(t)
	// Without root it stays in the groups of the test, if that is in any.
	script := `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" 2>/dev/null; shift; done; shift; exec "$@"`
	args := append([]string{"sh", "-c", script, "sh"}, groups...)
	p := start(t, "setsid", append(append(args, "--"), argv...)...)
	p.name = filepath.Base(argv[0])
	return p
}

// ownGroups creates a control group below each group of the test that is not a root, where it may.
func ownGroups(t *testing.T) []string {
	t.Helper()
	file, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("gpumeter-e2e-%d-%d", os.Getpid(), services.Add(1))
	var groups []string
	for line := range strings.Lines(string(file)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[2] == "/" {
			continue
		}
		mounts := []string{"/sys/fs/cgroup/" + strings.TrimPrefix(fields[1], "name=")}
		if fields[1] == "" {
			mounts = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
		}
		for _, mount := range mounts {
			group := filepath.Join(mount, fields[2], name)
			if _, err := os.Stat(filepath.Dir(group) + "/cgroup.procs"); err == nil && os.Mkdir(group, 0o755) == nil {
				groups = append(groups, group)
				t.Cleanup(func() { _ = os.Remove(group) }) // after the process in it has ended: start comes later
			}
		}
	}
	return groups
}

// apart reports whether a service is in no control group with the test.
func apart(t *testing.T, p *process) bool {
	t.Helper()
	group := func(pid string) string {
		text, err := os.ReadFile("/proc/" + pid + "/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	self, init := group("self"), group("1")
	return self == init || group(fmt.Sprint(p.cmd.Process.Pid)) != self
}
