package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload"
)

var _ workload.Source = (*Source)(nil)

// machine is a fake file system that a test changes.
type machine string

func (m machine) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(string(m), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start starts a process that root started and that runs as user 1000.
func (m machine) start(t *testing.T, pid int, start uint64, comm string) {
	t.Helper()
	m.write(t, "proc/"+strconv.Itoa(pid)+"/stat", fmt.Sprintf("%d (%s) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 0\n", pid, comm, start))
	m.write(t, "proc/"+strconv.Itoa(pid)+"/status", "Name:\tx\nUid:\t0\t1000\t0\t1000\nGid:\t0\t0\t0\t0\n")
}

// namespace puts the machine into a PID namespace.
func (m machine) namespace(t *testing.T, link string) {
	t.Helper()
	m.write(t, "proc/self/ns/x", "")
	if err := os.Symlink(link, filepath.Join(string(m), "proc/self/ns/pid")); err != nil {
		t.Fatal(err)
	}
}

const (
	initial = "pid:[4026531836]"
	nested  = "pid:[4026532501]"
)

func TestProcess(t *testing.T) {
	m := machine(t.TempDir())
	s := New(string(m)+"/proc", string(m))
	now := time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	f := func(want workload.Workload) {
		t.Helper()
		got, ok := s.Process(7)
		if diff := cmp.Diff(want, got); diff != "" || ok != (want.ID != "") {
			t.Errorf("got %v (-want +got):\n%s", ok, diff)
		}
	}
	of := func(name, user string) workload.Workload {
		return workload.Workload{ID: "process/1000/" + name, Kind: "process", Name: name, Attributes: map[string]string{"user.name": user}}
	}
	f(workload.Workload{})
	m.start(t, 7, 100, "python3 (a) b")
	f(of("python3 (a) b", "1000")) // no passwd file
	m.write(t, "etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\nalias:x:1000:1000::/:/bin/sh\n")
	f(of("python3 (a) b", "1000")) // it was checked just now
	now = now.Add(lookAgain)
	f(of("python3 (a) b", "alice")) // the effective user, with the first name in the file
	m.write(t, "etc/passwd", "carol:x:1000:1000::/:/bin/sh\n")
	now = now.Add(lookAgain)
	f(of("python3 (a) b", "carol"))
	m.start(t, 7, 100, "vllm") // the process executes another program
	f(of("vllm", "carol"))
	m.start(t, 8, 101, "vllm") // next to another one: no exported label distinguishes them
	if got, _ := s.Process(8); !got.Equal(of("vllm", "carol")) {
		t.Errorf("a second process of the same name and user is %+v", got)
	}
	m.start(t, 7, 101, "bad\xffname")
	f(of("bad\ufffdname", "carol"))
	m.write(t, "proc/7/status", "Name:\tx\n") // truncated
	f(workload.Workload{ID: "process//bad\ufffdname", Kind: "process", Name: "bad\ufffdname"})
	if got := s.Grants(); got != nil {
		t.Errorf("processes were given %v", got)
	}
}

func TestStatuses(t *testing.T) {
	now := time.Unix(1000, 0)
	f := func(s *Source, want workload.Reason) {
		t.Helper()
		s.now = func() time.Time { return now }
		got := s.Statuses()
		if len(got) != 1 || got[0].Reason != want || got[0].Source != "process" || (want != workload.OK) != (got[0].Detail != "") {
			t.Errorf("got %+v, want %s", got, want)
		}
	}
	m := machine(t.TempDir())
	s := New(string(m)+"/proc", string(m))
	f(s, workload.OK) // nothing is known, and nothing was missed
	m.namespace(t, nested)
	f(s, workload.NoPIDNamespace)
	m.start(t, 7, 100, "vllm") // in a kind node it is visible nevertheless
	s.Process(7)
	f(s, workload.OK)
	s.Process(8)
	f(s, workload.NoPIDNamespace)
	if got := s.Statuses()[0].Detail; !strings.Contains(got, "hostPID: true") {
		t.Errorf("the advice is %q", got)
	}
	now = now.Add(recently)
	f(s, workload.OK)

	m = machine(t.TempDir())
	m.namespace(t, initial)
	s = New(string(m)+"/proc", string(m))
	f(s, workload.OK)
	s.Process(8) // processes exit
	f(s, workload.OK)
	m.write(t, "proc/7/stat", "torn")
	s.Process(7)
	f(s, workload.Failed)
	m.start(t, 7, 100, "vllm")
	s.Process(7)
	f(s, workload.OK)
}

func TestThisMachine(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skipf("no process files: %v", err)
	}
	s := New("/proc", "/")
	w, ok := s.Process(uint32(os.Getpid()))
	if !ok || w.Name == "" || w.Attributes["user.name"] == "" {
		t.Errorf("this test is %+v, %v", w, ok)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("Uid:\t0\t1000\t0\t1000\n")
	f.Add("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
	f.Fuzz(func(t *testing.T, s string) {
		if uid := parseUID(s); uid != "" && (!isNumber(uid) || !strings.Contains(s, uid)) {
			t.Errorf("uid %q was invented", uid)
		}
		for uid, name := range parsePasswd(strings.NewReader(s)) {
			if !isNumber(uid) || name == "" || !strings.Contains(s, name+":") {
				t.Errorf("user %q, %q was invented", uid, name)
			}
		}
	})
}
