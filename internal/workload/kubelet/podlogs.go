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
	readAgain   = 10 * time.Second // at the earliest
	maxLogs     = 10_000           // names kept of each folder
	logPatience = 100 * time.Millisecond
)

// LogName is what the name of a log says.
type LogName struct {
	Namespace, Pod string
	Container      string // empty for a pod
}

// Logs knows the names of pods and containers from the folders in which the kubelet
// keeps their logs. That is all there is without the API server: the pod-resources
// socket has no uid, and a control group has no name. It may be used concurrently.
type Logs struct {
	root string // of the host's files
	max  int
	now  func() time.Time

	mu      sync.Mutex
	read    time.Time     // when that was last begun
	reading chan struct{} // closed when it is done; nil: it is
	folders
}

// folders are what the folders had when they were last read.
type folders struct {
	pods       map[string]LogName // by uid
	uids       map[LogName]string // of the pod that has the name now
	containers map[string]LogName // by id
	refused    int
	err        error
}

// NewLogs returns the logs below root, "/" or where the host's files are mounted. It
// reads var/log/pods and var/log/containers.
func NewLogs(root string) *Logs { return &Logs{root: root, max: maxLogs, now: time.Now} }

// Pod returns the pod that has a uid; of a static pod that is the hash in its cgroup.
func (l *Logs) Pod(uid string) (LogName, bool) {
	return l.find(func() (LogName, bool) { n, ok := l.pods[uid]; return n, ok })
}

// Container returns the container that has an id.
func (l *Logs) Container(id string) (LogName, bool) {
	return l.find(func() (LogName, bool) { n, ok := l.containers[id]; return n, ok })
}

// Problem returns how many names were too many, and why the folders could not be read the
// last time: fs.ErrNotExist on a machine without a kubelet.
func (l *Logs) Problem() (refused int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused, l.err
}

// find looks, and looks again if the folders have not been read for a while: names do
// not change, so that what is found is right however old it is.
func (l *Logs) find(look func() (LogName, bool)) (LogName, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, ok := look(); ok {
		return n, true
	}
	l.refresh()
	return look()
}

// refresh reads the folders if that was not done for a while. The caller holds the lock,
// and waits for a moment only: a disk may hang, and nobody may wait for it at each tick.
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

// scan reads both folders. What could not be read is nil.
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

// names calls f with the names in a folder, a part at a time: there may be many.
func names(dir string, f func(string)) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("the kubelet's logs: %w", err)
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
			return fmt.Errorf("the kubelet's logs: %w", err)
		}
	}
}

// parsePodLog parses <namespace>_<name>_<uid>, a folder in /var/log/pods. The names of
// Kubernetes have no underscores.
func parsePodLog(s string) (n LogName, uid string, ok bool) {
	part := strings.Split(s, "_")
	if len(part) != 3 || !named(part...) {
		return LogName{}, "", false
	}
	return LogName{Namespace: part[0], Pod: part[1]}, part[2], true
}

// parseContainerLog parses <pod>_<namespace>_<container>-<id>.log, a link in
// /var/log/containers. The container's name may have dashes, the id has none.
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

// named reports whether all of the names may be some: not empty, not endless, in UTF-8.
func named(list ...string) bool {
	for _, s := range list {
		if s == "" || len(s) > maxName || !fs.ValidPath(s) {
			return false
		}
	}
	return true
}
