// Package process is the workload source of last resort: it names a process that no
// scheduler started and that is in no container, by its executable and its user.
//
// It reads /proc/PID/stat, /proc/PID/status and the host's etc/passwd; no privilege is
// needed, but only processes in the agent's PID namespace are visible. It never grants
// devices and reads neither command lines nor environments.
package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

const (
	source    = "process"
	maxStatus = 1 << 16 // maximum bytes read from /proc/PID/status
	maxPasswd = 1 << 22 // maximum bytes read from /etc/passwd
	maxUsers  = 10_000
	lookAgain = 10 * time.Second // shortest time between two checks of /etc/passwd
	recently  = time.Minute      // how long an invisible process is reported as a problem
)

// Source names processes by the process files of this machine. It caches nothing about a
// process: one that executes another program gets a new name.
type Source struct {
	proc, root string
	reader     *cgroup.Reader
	now        func() time.Time

	mu     sync.Mutex
	users  map[string]string // names by uid
	looked time.Time         // last check of the passwd file
	passwd fs.FileInfo       // state of the file that users was read from
	seen   bool              // any process was found yet
	unseen time.Time         // last time a process was not found
	failed error             // error of the latest process
}

// New returns the source for the procfs at proc, normally "/proc", and the users in root's
// etc/passwd; root is "/" or where the host's file system is mounted.
func New(proc, root string) *Source {
	return &Source{proc: proc, root: root, reader: cgroup.NewReader(proc), now: time.Now}
}

// Grants implements workload.Source. Processes are not allocated devices.
func (s *Source) Grants() []workload.Grant { return nil }

// Process implements workload.Source. It reports false for a process that is not visible.
func (s *Source) Process(pid uint32) (workload.Workload, bool) {
	stat, err := cgroup.ReadStat(s.proc, pid)
	var uid string
	if err == nil {
		uid, err = s.uid(pid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = nil
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.unseen = s.now()
		return workload.Workload{}, false
	case err != nil && stat.Comm == "":
		s.failed = err
		return workload.Workload{}, false
	}
	s.seen = true
	// All processes of a user with the same name are one workload: no exported label
	// distinguishes them, and series with the same label set would collide.
	w := workload.Workload{Kind: "process", Name: strings.ToValidUTF8(stat.Comm, string(utf8.RuneError))}
	if uid != "" {
		w.Attributes = map[string]string{"user.name": s.user(uid)}
	}
	w.ID = fmt.Sprintf("process/%s/%s", uid, w.Name)
	return w, true
}

// Statuses implements workload.Source.
func (s *Source) Statuses() []workload.Status {
	host, err := s.reader.HostPIDNamespace()
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := !s.unseen.IsZero() && s.now().Sub(s.unseen) < recently
	switch {
	case err == nil && !host && (missing || !s.seen):
		return []workload.Status{{Source: source, Reason: workload.NoPIDNamespace, Detail: "only the processes of this container are visible, " +
			"so processes on a device have no name; run the agent in the host's PID namespace " +
			"(hostPID: true in Kubernetes, --pid=host with Docker and Podman)"}}
	case s.failed != nil:
		reason := workload.Failed
		if errors.Is(s.failed, fs.ErrPermission) {
			reason = workload.PermissionDenied
		}
		return []workload.Status{{Source: source, Reason: reason, Detail: s.failed.Error()}}
	}
	return []workload.Status{{Source: source, Reason: workload.OK}}
}

// uid returns the effective user of a process. The owner of its directory may differ: it is
// root if the process may not be traced.
func (s *Source) uid(pid uint32) (string, error) {
	f, err := os.Open(filepath.Join(s.proc, strconv.FormatUint(uint64(pid), 10), "status"))
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxStatus))
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	return parseUID(string(b)), nil
}

// parseUID returns the second number of the line "Uid:" in /proc/PID/status, or "" if there
// is none; see proc_pid_status(5).
func parseUID(status string) string {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		if fields := strings.Fields(rest); len(fields) == 4 && isNumber(fields[1]) {
			return fields[1]
		}
	}
	return ""
}

// user returns the name of a user, or the number if the user is not in the file, as with
// users of a directory service.
func (s *Source) user(uid string) string {
	if now := s.now(); s.looked.IsZero() || now.Sub(s.looked) >= lookAgain {
		s.looked = now
		s.look()
	}
	if name := s.users[uid]; name != "" {
		return name
	}
	return uid
}

// look reads the users if the file has changed.
func (s *Source) look() {
	path := filepath.Join(s.root, "etc/passwd")
	info, err := os.Stat(path)
	if err != nil || s.passwd != nil && os.SameFile(s.passwd, info) && info.ModTime().Equal(s.passwd.ModTime()) && info.Size() == s.passwd.Size() {
		return // fall back to numbers
	}
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	s.users, s.passwd = parsePasswd(io.LimitReader(f, maxPasswd)), info
}

// parsePasswd returns the user names in a passwd(5) file by UID, the first name of each.
func parsePasswd(r io.Reader) map[string]string {
	users := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() && len(users) < maxUsers {
		f := strings.Split(lines.Text(), ":")
		if len(f) < 4 || f[0] == "" || !utf8.ValidString(f[0]) || !isNumber(f[2]) {
			continue
		}
		if _, taken := users[f[2]]; !taken {
			users[f[2]] = f[0]
		}
	}
	return users
}

func isNumber(s string) bool { return s != "" && len(s) <= 10 && strings.Trim(s, "0123456789") == "" }
