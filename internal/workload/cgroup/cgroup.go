// Package cgroup finds the container and the pod that a process belongs to, from the names
// that container runtimes give to control groups. It understands cgroup v1, v2 and hybrid
// hierarchies of containerd, CRI-O, Docker and Podman, with the systemd and cgroupfs
// drivers.
//
// It reads /proc/PID/cgroup and /proc/PID/stat, which need no privilege, but only processes
// in the reader's own PID namespace are visible. It queries no runtime and no API server,
// so it knows identifiers but no names.
package cgroup

import (
	"bytes"
	"strings"
)

// Container is the container that a process runs in.
type Container struct {
	ID      string // 64 hexadecimal digits
	Runtime string // containerd, cri-o, docker, podman; empty if the path does not tell
	// PodUID has dashes, except that of a static pod, which is the hash of its manifest: 32
	// digits, the annotation kubernetes.io/config.hash of its mirror pod in the API. It is
	// empty outside Kubernetes, and for another container of the reader's own pod if the
	// reader has a cgroup namespace: the path is then relative and starts below the pod.
	PodUID string
	// User is the numeric id of the user whose service manager runs a rootless container.
	User string
}

// Parse returns the container of a process with this /proc/PID/cgroup, and whether it is in
// one. The file has one line per version 1 hierarchy, one for version 2, or both (hybrid);
// see cgroups(7).
//
// Of nested containers it returns the innermost that belongs to a pod: the workload, not
// the kind node around it and not a container that the workload runs with its own Docker.
// Outside Kubernetes it returns the outermost, which this machine's runtime knows.
func Parse(file []byte) (Container, bool) {
	var best Container
	var depth int
	for line := range bytes.Lines(file) {
		// hierarchy:controllers:path; the path may contain colons
		fields := bytes.SplitN(bytes.TrimRight(line, "\r\n"), []byte(":"), 3)
		if len(fields) != 3 || !bytes.HasPrefix(fields[2], []byte("/")) {
			continue
		}
		c, at := parsePath(strings.TrimSuffix(string(fields[2]), " (deleted)"))
		if c.ID == "" {
			continue
		}
		if best.ID == "" || c.PodUID != "" && (best.PodUID == "" || at > depth) {
			best, depth = c, at
		}
	}
	return best, best.ID != ""
}

// parsePath returns the container in one path, and its depth.
func parsePath(path string) (found Container, depth int) {
	pod, parent, user := "", "", ""
	at := 0
	for name := range strings.SplitSeq(path, "/") {
		at++
		// A kubelet that uses systemd with a runtime that does not puts both into one name:
		// kubepods-burstable-pod<uid>.slice:cri-containerd:<id>.
		if slice, scope, ok := strings.Cut(name, ":"); ok && podUID(slice) != "" {
			pod = podUID(slice)
			name = strings.Replace(scope, ":", "-", 1) + ".scope"
		} else if uid := podUID(name); uid != "" {
			pod = uid
			continue
		}
		if n, ok := strings.CutPrefix(strings.TrimSuffix(name, ".slice"), "user-"); ok && isNumber(n) {
			user = n
		}
		id, runtime := container(name, parent)
		parent = name
		switch {
		case id == "":
		case pod != "":
			found, depth = Container{ID: id, Runtime: runtime, PodUID: pod}, at
			pod = "" // anything below is a container within this container
		case found.ID == "":
			found, depth = Container{ID: id, Runtime: runtime, User: user}, at
		}
	}
	return found, depth
}

// podUID returns the UID of the pod that a control group belongs to: pod<uid> with the
// cgroupfs driver, <root>-kubepods-<class>-pod<uid>.slice with the systemd driver, which
// replaces the dashes of the UID by underscores.
func podUID(name string) string {
	slice, systemd := strings.CutSuffix(name, ".slice")
	if systemd {
		i := strings.LastIndex(slice, "-pod")
		if i < 0 || !strings.HasSuffix("-"+strings.TrimSuffix(strings.TrimSuffix(slice[:i], "-burstable"), "-besteffort"), "-kubepods") {
			return ""
		}
		name = strings.ReplaceAll(slice[i+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(name, "pod")
	if !ok || !isUID(uid) {
		return ""
	}
	return uid
}

// isUID accepts a UUID, and the hash that is the UID of a static pod.
func isUID(s string) bool {
	switch len(s) {
	case 32:
		return isHex(s)
	case 36:
		return s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' && isHex(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])
	}
	return false
}

// runtimes maps the prefix of a container's control group to its runtime.
var runtimes = map[string]string{
	"cri-containerd": "containerd",
	"nerdctl":        "containerd",
	"crio":           "cri-o",
	"docker":         "docker",
	"libpod":         "podman",
	"libpod-payload": "podman", // with --cgroups=split, below the unit of a service
}

// container returns the id and the runtime of the container that a control group belongs
// to, or "" if it belongs to none: conmon, the process that monitors a CRI-O or Podman
// container, is not part of it.
func container(name, parent string) (id, runtime string) {
	name = strings.TrimSuffix(name, ".scope")
	if isID(name) {
		switch parent { // Docker's cgroupfs driver uses no prefix
		case "docker":
			return name, "docker"
		case "libpod_parent":
			return name, "podman"
		}
		return name, ""
	}
	i := strings.LastIndexAny(name, "-_") // also kata_<id>
	if i < 0 || !isID(name[i+1:]) || strings.HasSuffix(name[:i], "conmon") {
		return "", ""
	}
	return name[i+1:], runtimes[name[:i]]
}

// isID reports whether s is a container id. All runtimes use 256 bits.
func isID(s string) bool { return len(s) == 64 && isHex(s) }

func isNumber(s string) bool { return s != "" && len(s) <= 10 && strings.Trim(s, "0123456789") == "" }

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
