package kubelet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	readAgain   = 10 * time.Second // shortest time between two scans
	maxLogs     = 10_000           // names kept per directory
	logPatience = 100 * time.Millisecond
)

// LogName is what the name of a log directory or file says.
type LogName struct {
	Namespace, Pod string
	Container      string // empty for a pod
}

// Logs knows the names of pods and containers from the directories in which the kubelet
// keeps their logs. Without the API server there is no other source: the pod-resources
// socket has no UIDs, and a control group has no names. It is safe for concurrent use.
type Logs struct {
	root string // root of the host's file system
	max  int
	now  func() time.Time

	mu      sync.Mutex
	read    time.Time     // start of the last scan
	reading chan struct{} // closed when the scan in progress is done; nil: none
	folders
}

// folders is the content of the log directories at the last scan.
type folders struct {
	pods       map[string]LogName // by UID
	uids       map[LogName]string // UID of the pod that currently has the name
	containers map[string]LogName // by container id
	refused    int
	err        error
}

// NewLogs returns the Logs below root, which is "/" or where the host's file system is
// mounted. It reads var/log/pods and var/log/containers.
func NewLogs(root string) *Logs { return &Logs{root: root, max: maxLogs, now: time.Now} }

// Pod returns the pod with the given UID; for a static pod that is the hash in its cgroup.
func (l *Logs) Pod(uid string) (LogName, bool) {
	return l.find(func() (LogName, bool) { n, ok := l.pods[uid]; return n, ok })
}

// Container returns the container with the given id.
func (l *Logs) Container(id string) (LogName, bool) {
	return l.find(func() (LogName, bool) { n, ok := l.containers[id]; return n, ok })
}

// Problem returns how many names exceeded the limit, and why the directories could not be
// read the last time: fs.ErrNotExist on a machine without a kubelet.
func (l *Logs) Problem() (refused int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused, l.err
}

// find looks up a name, and looks again after a new scan if the last one is old: names of a
// UID do not change, so a hit is right however old it is.
func (l *Logs) find(look func() (LogName, bool)) (LogName, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, ok := look(); ok {
		return n, true
	}
	l.refresh()
	return look()
}

// refresh scans the directories if the last scan is old. The caller holds the lock. It
// waits only briefly, because a disk may hang and must not delay every tick.
func (l *Logs) refresh() {
	now := l.now()
	if l.reading == nil && (l.read.IsZero() || now.Sub(l.read) >= readAgain) {
		l.read = now
		done := make(chan struct{})
		l.reading = done
		go func() {
			f := l.scan()
			l.mu.Lock()
			defer l.mu.Unlock()
			if f.pods == nil {
				f.pods, f.uids = l.pods, l.uids
			}
			if f.containers == nil {
				f.containers = l.containers
			}
			l.folders, l.reading = f, nil
			close(done)
		}()
	}
	if done := l.reading; done != nil && now.Sub(l.read) < logPatience {
		l.mu.Unlock()
		select {
		case <-done:
		case <-time.After(logPatience):
		}
		l.mu.Lock()
	}
}

// scan reads both directories. A map is nil if its directory could not be read.
func (l *Logs) scan() (f folders) {
	pods, containers := map[string]LogName{}, map[string]LogName{}
	podsErr := names(filepath.Join(l.root, "var/log/pods"), func(name string) {
		if n, uid, ok := parsePodLog(name); ok && !l.keep(pods, uid, n) {
			f.refused++
		}
	})
	containersErr := names(filepath.Join(l.root, "var/log/containers"), func(name string) {
		if n, id, ok := parseContainerLog(name); ok && !l.keep(containers, id, n) {
			f.refused++
		}
	})
	if podsErr == nil {
		f.pods, f.uids = pods, l.newest(pods)
	}
	if containersErr == nil {
		f.containers = containers
	}
	f.err = errors.Join(podsErr, containersErr)
	return f
}

func (l *Logs) keep(in map[string]LogName, key string, n LogName) bool {
	if len(in) == l.max {
		return false
	}
	in[key] = n
	return true
}

// names calls f with the names in a directory, in batches, because there may be many.
func names(dir string, f func(string)) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot read the kubelet's log directory: %w", err)
	}
	defer d.Close()
	for {
		part, err := d.Readdirnames(512)
		for _, name := range part {
			f(name)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the kubelet's log directory: %w", err)
		}
	}
}

// parsePodLog parses <namespace>_<name>_<uid>, a directory in /var/log/pods. Names in
// Kubernetes contain no underscores.
func parsePodLog(s string) (n LogName, uid string, ok bool) {
	part := strings.Split(s, "_")
	if len(part) != 3 || !named(part...) {
		return LogName{}, "", false
	}
	return LogName{Namespace: part[0], Pod: part[1]}, part[2], true
}

// parseContainerLog parses <pod>_<namespace>_<container>-<id>.log, a link in
// /var/log/containers. The container name may contain dashes; the id does not.
func parseContainerLog(s string) (n LogName, id string, ok bool) {
	s, ok = strings.CutSuffix(s, ".log")
	part := strings.Split(s, "_")
	if !ok || len(part) != 3 {
		return LogName{}, "", false
	}
	dash := strings.LastIndexByte(part[2], '-')
	if dash < 0 {
		return LogName{}, "", false
	}
	container, id := part[2][:dash], part[2][dash+1:]
	if !named(part[0], part[1], container, id) {
		return LogName{}, "", false
	}
	return LogName{Namespace: part[1], Pod: part[0], Container: container}, id, true
}

// named reports whether all names are valid: not empty, not overlong, in UTF-8.
func named(list ...string) bool {
	for _, s := range list {
		if s == "" || len(s) > maxName || !fs.ValidPath(s) {
			return false
		}
	}
	return true
}
