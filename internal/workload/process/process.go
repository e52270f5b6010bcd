// Package process names what nobody else knows: a process that no scheduler started and
// that is in no container, by its executable and its user. It is the last source.
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
	maxStatus = 1 << 16 // bytes read of /proc/PID/status
	maxPasswd = 1 << 22 // bytes read of /etc/passwd
	maxUsers  = 10_000
	lookAgain = 10 * time.Second // at /etc/passwd, at the earliest
	recently  = time.Minute      // a process that was not seen is a problem for so long
)

// Source is the process files of this machine. It keeps nothing of a process: one that
// runs another program is called otherwise from then on.
type Source struct {
	proc, root string
	reader     *cgroup.Reader
	now        func() time.Time

	mu     sync.Mutex
	users  map[string]string // names by uid
	looked time.Time         // at the file of users
	passwd fs.FileInfo       // of the file that users is from
	seen   bool              // any process yet
	unseen time.Time         // the last time that one was not found
	failed error             // of the latest process
}

// New returns the source for the process files at proc, normally "/proc", and the users
// in root's etc/passwd; root is "/" or where the host's files are mounted.
func New(proc, root string) *Source {
	return &Source{proc: proc, root: root, reader: cgroup.NewReader(proc), now: time.Now}
}

// Grants implements workload.Source. A process is given nothing.
func (s *Source) Grants() []workload.Grant { return nil }

// Process implements workload.Source. It does not know a process that it cannot see.
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
	// All processes of a user that have one name are one workload: nothing that is shown
	// tells them apart, and two series with the same labels are none.
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
		return []workload.Status{{Source: source, Reason: workload.NoPIDNamespace, Detail: "only the processes of this container are seen, " +
			"so that those on a device have no name; run the agent in the host's PID namespace " +
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

// uid returns the effective user of a process. The owner of its folder is another:
// root, where the process may not be traced.
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

// parseUID returns the second number of the line "Uid:" in /proc/PID/status, see
// proc_pid_status(5). It is empty if there is none.
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

// user returns the name of a user, or the number of one who is not in the file: users
// of a directory service have no line there.
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

// look reads the users if their file is another than before.
func (s *Source) look() {
	path := filepath.Join(s.root, "etc/passwd")
	info, err := os.Stat(path)
	if err != nil || s.passwd != nil && os.SameFile(s.passwd, info) && info.ModTime().Equal(s.passwd.ModTime()) && info.Size() == s.passwd.Size() {
		return // numbers will do
	}
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	s.users, s.passwd = parsePasswd(io.LimitReader(f, maxPasswd)), info
}

// parsePasswd returns the names in a file of the format of passwd(5) by uid, the first
// name of each.
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
