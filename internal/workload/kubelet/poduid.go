package kubelet

import (
	"os"
	"path/filepath"
	"time"
)

// UID returns the UID of the pod that currently has the given name.
func (l *Logs) UID(namespace, pod string) (uid string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh() // unlike a UID, a name is reused
	uid, ok = l.uids[LogName{Namespace: namespace, Pod: pod}]
	return uid, ok
}

// newest returns the UIDs of pods by name. The directory of a predecessor may still exist:
// the newest one counts.
func (l *Logs) newest(pods map[string]LogName) map[LogName]string {
	uids := make(map[LogName]string, len(pods))
	made := func(uid string) time.Time {
		n := pods[uid]
		info, err := os.Stat(filepath.Join(l.root, "var/log/pods", n.Namespace+"_"+n.Pod+"_"+uid))
		if err != nil {
			return time.Time{} // it was just removed
		}
		return info.ModTime()
	}
	for uid, n := range pods {
		if other, ok := uids[n]; !ok || made(uid).After(made(other)) {
			uids[n] = uid
		}
	}
	return uids
}
