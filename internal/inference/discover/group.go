package discover

import (
	"path"
	"slices"
	"strings"
)

// parseGroup parses /proc/PID/cgroup and returns the control group of a container, service or job, empty
// if the process is in none: what a person started in a session has nothing to do with the rest of it.
func parseGroup(file []byte) string {
	found, rank := "", len(controllers)
	for line := range strings.Lines(string(file)) {
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			continue
		}
		name := path.Clean(strings.TrimSuffix(fields[2], " (deleted)"))
		if name == "/" {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			if i := slices.Index(controllers, controller); i >= 0 && i < rank {
				found, rank = name, i
			}
		}
	}
	if found == "" {
		return ""
	}
	return unit(found)
}

// controllers are those whose groups separate containers, services and jobs, the most telling first: the
// one hierarchy of version 2, and of version 1 systemd's own, then those that container runtimes and
// Slurm always use.
var controllers = []string{"", "name=systemd", "memory", "devices", "cpu", "pids", "freezer"}

// unit returns the control group of the container, service or job that a group belongs to, empty if it
// belongs to none.
func unit(group string) string {
	parts := strings.Split(strings.TrimPrefix(group, "/"), "/")
	// The tasks of a step of a Slurm job have groups of their own, and are one program.
	for i, p := range parts {
		if strings.HasPrefix(p, "step_") && i > 0 && strings.HasPrefix(parts[i-1], "job_") {
			return "/" + path.Join(parts[:i+1]...)
		}
	}
	leaf := parts[len(parts)-1]
	switch {
	case strings.HasSuffix(leaf, ".slice"), strings.HasPrefix(leaf, "user@"), leaf == "init.scope",
		strings.HasPrefix(leaf, "session-") && strings.HasSuffix(leaf, ".scope"):
		return ""
	case slices.Contains(entrances, leaf):
		return ""
	}
	// Below a user's own service manager are also the terminals of that user.
	own := slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(p, "user@") && strings.HasSuffix(p, ".service") })
	if own && (strings.HasPrefix(leaf, "app-") || strings.HasSuffix(leaf, ".scope") && !slices.ContainsFunc(runtimes, func(r string) bool { return strings.HasPrefix(leaf, r) })) {
		return ""
	}
	return group
}

// entrances are services through which people and schedulers start what has nothing in common.
var entrances = []string{"ssh.service", "sshd.service", "cron.service", "crond.service", "atd.service", "slurmd.service", "containerd.service", "docker.service", "kubelet.service"}

// runtimes begin the names of groups of containers without root.
var runtimes = []string{"libpod-", "docker-", "crio-", "cri-containerd-", "nerdctl-"}
