package kubelet

import (
	"os"
	"path/filepath"
	"time"
)

// UID returns the uid of the pod that has a name now.
func (l *Logs) UID(namespace, pod string) (uid string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh() // unlike a uid, a name is used again
	uid, ok = l.uids[LogName{Namespace: namespace, Pod: pod}]
	return uid, ok
}

// newest returns the uids of pods by name. The folder of a predecessor may still be
// there: the one made last counts.
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
