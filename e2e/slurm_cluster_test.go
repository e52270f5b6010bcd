//go:build e2e

package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// slurmRoot is a folder with a Debian whose Slurm runs instead of this machine's, for another release. doc.go
// describes how to create one.
var slurmRoot = os.Getenv("GPUMETER_SLURM_ROOT")

// slurmNodes are the nodes of the cluster. Both are this machine.
var slurmNodes = []string{"gm-01", "gm-02"}

const slurmCluster = "e2e"

// account is a user who runs jobs: a system user that every Debian has and nobody logs in as.
type account struct {
	user, name, qos string
	ids             string // uid:gid
}

// slurm is a Slurm cluster on this machine: the released programs, with its own munged and database.
type slurm struct {
	t    *testing.T
	dir  string
	root string // root of Slurm's programs

	red, blue account
	host      string
	ports     struct{ controller, database, accounting string }
	munge     string // socket of munged
	rest      string // socket of slurmrestd

	controller, restd *process
	start             struct{ controller, restd func(t *testing.T) *process }
}

// slurmPrograms are the programs of the cluster, its users and the agent.
var slurmPrograms = []string{
	"munged", "mariadbd", "mariadb", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "slurmrestd",
	"sacctmgr", "sacct", "salloc", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "squeue", "srun",
}

// requireSlurm skips the test if a cluster cannot run.
func requireSlurm(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		skip(t, "slurm", "running jobs as other users requires root")
	}
	for _, name := range slurmPrograms {
		if _, err := os.Stat(inRoot(name)); err != nil {
			skip(t, "slurm", fmt.Errorf("tools/deps.sh slurm did not install it: %w", err))
		}
	}
	for _, group := range []string{"freezer", "devices"} {
		if _, err := os.Stat("/sys/fs/cgroup/" + group); err != nil {
			skip(t, "slurm", fmt.Errorf("cgroup v2 is untested: %w", err))
		}
	}
}

// inRoot returns the path of a program of Slurm.
func inRoot(name string) string {
	for _, dir := range []string{"/usr/sbin", "/usr/bin"} {
		if path := filepath.Join("/", slurmRoot, dir, name); exists(path) {
			return path
		}
	}
	return name
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// newSlurm starts a cluster of two nodes with slurmGPUs each.
func newSlurm(t *testing.T) *slurm {
	t.Helper()
	requireSlurm(t)
	began := time.Now()
	s := &slurm{t: t, root: filepath.Join("/", slurmRoot)}
	s.dir = occupySlurm(t)
	s.red, s.blue = s.account("games", "ml", "normal"), s.account("news", "bio", "urgent")
	s.munge, s.rest = s.dir+"/run/munge.socket", s.dir+"/run/slurmrestd.socket"
	s.configure()
	s.startMunge()
	s.startDatabase()
	s.startAccounting()
	s.start.controller = func(t *testing.T) *process {
		p := s.daemon(t, "slurmctld", "-D")
		eventually(t, "slurmctld answers", func() error { return s.answers("scontrol", "ping") })
		return p
	}
	s.controller = s.start.controller(t)
	for _, node := range slurmNodes {
		s.daemonAs(t, "0:0", node, "slurmd", "-D", "-N", node)
	}
	s.start.restd = func(t *testing.T) *process {
		_ = os.Remove(s.rest)
		p := s.daemonAs(t, s.blue.ids, "slurmrestd", "slurmrestd", "-a", "rest_auth/local", "unix:"+s.rest) // refuses to run as root
		eventually(t, "slurmrestd listens", func() error {
			conn, err := net.Dial("unix", s.rest)
			if err == nil {
				conn.Close()
			}
			return err
		})
		return p
	}
	s.restd = s.start.restd(t)
	eventually(t, "the nodes are ready", func() error {
		if out := s.run("sinfo", "-h", "-N", "-o", "%T"); strings.Count(out, "idle") != len(slurmNodes) {
			return errors.New(out)
		}
		return nil
	})
	t.Cleanup(func() { // let Slurm end its jobs
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			_, _ = s.try("0:0", nil, "timeout", "5", "scancel", "-u", s.red.user+","+s.blue.user)
			if out, err := s.try("0:0", nil, "timeout", "5", "squeue", "-h"); err != nil || out == "" {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	t.Logf("%s was ready after %s", strings.TrimSpace(s.run("slurmctld", "-V")), time.Since(began).Round(time.Millisecond))
	return s
}

// account returns a user of this machine.
func (s *slurm) account(name, billed, qos string) account {
	s.t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		skip(s.t, "slurm", err)
	}
	return account{user: name, name: billed, qos: qos, ids: u.Uid + ":" + u.Gid}
}

// argv returns the command line of a Slurm program run as a user. The started process keeps its PID.
func (s *slurm) argv(ids string, env []string, name string, args ...string) []string {
	_, gid, _ := strings.Cut(ids, ":")
	var line []string
	if slurmRoot != "" { // with the required mounts of this machine, while it runs
		line = []string{"unshare", "-m", "--propagation", "private", "sh", "-ec", `for dir in /proc /sys /dev ` + s.dir + `; do
	mkdir -p "$0$dir"
	mount --rbind "$dir" "$0$dir"
done
exec "$@"`, s.root}
	}
	line = append(line,
		"chroot", "--userspec="+ids, "--groups="+gid, s.root, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"SLURM_CONF="+s.dir+"/etc/slurm.conf", "TMPDIR="+s.dir+"/tmp", "SHELL=/bin/sh")
	return append(append(append(line, env...), name), args...)
}

// run runs a Slurm program as root and returns its output.
func (s *slurm) run(name string, args ...string) string {
	s.t.Helper()
	return s.as("0:0", name, args...)
}

// as runs a Slurm program as a user. It prints standard error only on failure.
func (s *slurm) as(ids, name string, args ...string) string {
	s.t.Helper()
	out, err := s.try(ids, nil, name, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *slurm) try(ids string, env []string, name string, args ...string) (string, error) {
	argv := s.argv(ids, env, name, args...)
	cmd := exec.Command(argv[0], argv[1:]...) // not bound to the test: also runs during cleanup
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, failed.Stderr)
	}
	return string(out), err
}

func (s *slurm) answers(name string, args ...string) error {
	out, err := s.try("0:0", nil, name, args...)
	if err == nil && strings.Contains(out, "DOWN") {
		err = errors.New(strings.TrimSpace(out))
	}
	return err
}

// daemon starts a program that logs to a file. If the test fails, it shows the last lines.
func (s *slurm) daemon(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return s.daemonAs(t, "0:0", name, name, args...)
}

func (s *slurm) daemonAs(t *testing.T, ids, log, name string, args ...string) *process {
	t.Helper()
	path := filepath.Join(s.dir, "log", log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of %s:\n%s", log, lastLines(path, 15))
		}
	})
	p := start(t, "sh", append([]string{"-c", `exec "$@" >>"$0" 2>&1`, path}, s.argv(ids, nil, name, args...)...)...)
	p.name = name
	return p
}

// startMunge starts a munged with its own key.
func (s *slurm) startMunge() {
	key := make([]byte, 128)
	_, _ = rand.Read(key) // never fails
	write(s.t, s.dir+"/munge.key", string(key))
	file := func(name string) string { return s.dir + "/run/munged." + name }
	s.daemon(s.t, "munged", "--foreground", "--key-file="+s.dir+"/munge.key", "--socket="+s.munge,
		"--pid-file="+file("pid"), "--log-file="+file("log"), "--seed-file="+file("seed"))
	eventually(s.t, "munged listens", func() error {
		_, err := os.Stat(s.munge)
		return err
	})
}

// startDatabase starts a MariaDB that is reachable only from this machine. Its data need not survive a power
// loss.
func (s *slurm) startDatabase() {
	data, socket := s.dir+"/database", s.dir+"/run/mariadb.socket"
	s.run("mariadb-install-db", "--no-defaults", "--user=root", "--datadir="+data, "--skip-test-db", "--force", "--auth-root-authentication-method=normal")
	s.daemon(s.t, "mariadbd", "--no-defaults", "--user=root", "--datadir="+data, "--socket="+socket, "--pid-file="+s.dir+"/run/mariadb.pid",
		"--bind-address=127.0.0.1", "--port="+s.ports.database, "--skip-log-bin", "--skip-name-resolve",
		"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=48M", "--innodb-flush-log-at-trx-commit=0")
	const users = "create database slurm; create user slurm@127.0.0.1 identified by 'slurm'; grant all on slurm.* to slurm@127.0.0.1;"
	eventually(s.t, "the database answers", func() error {
		return s.answers("mariadb", "--no-defaults", "--user=root", "--socket="+socket, "-e", users)
	})
}

// startAccounting starts slurmdbd and adds the users who may run jobs.
func (s *slurm) startAccounting() {
	s.daemon(s.t, "slurmdbd", "-D")
	eventually(s.t, "slurmdbd answers", func() error { return s.answers("sacctmgr", "-n", "show", "cluster") })
	manage := func(args ...string) { s.run("sacctmgr", append([]string{"-i", "add"}, args...)...) }
	manage("cluster", slurmCluster)
	manage("qos", s.blue.qos)
	for _, a := range []account{s.red, s.blue} {
		manage("account", a.name, "Description="+a.name, "Organization=e2e")
		manage("user", a.user, "Account="+a.name, "QOS=normal,"+s.blue.qos)
	}
}

// in returns the cluster for a subtest.
func (s slurm) in(t *testing.T) *slurm {
	s.t = t
	return &s
}
