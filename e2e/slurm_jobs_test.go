//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// worker is the program of jobs. It reports its PID and the devices that the kernel lets it open, and stays,
// independently of the code under test.
const worker = `#!/bin/sh
for file in %[1]s/dev/$SLURMD_NODENAME/nvidia*; do
	case $( (: <>"$file") 2>&1 ) in
	*"No such device"*) may="$may ${file##*nvidia}" ;;
	esac
done
out=%[1]s/out/$SLURM_JOB_ID.$SLURMD_NODENAME
echo "$$$may" >"$out.new" && mv "$out.new" "$out"
exec sleep 500
`

// secretName is a variable that the agent must not read. secret is its value.
const secretName = "DATABASE_PASSWORD"

var secret = "hunter2-" + rand.Text()

// slurmJob is a running job.
type slurmJob struct {
	account
	id, name    string
	array, task string
	on          []slurmProcess
	part        float64 // share of its GPUs
	bare        bool    // runs no process
}

// slurmProcess is the process of a job on a node.
type slurmProcess struct {
	node, pid int
	gpus      []int // allocated there, by the driver's index
}

// jobArgs are common arguments of sbatch, salloc and srun.
func (a account) jobArgs(name string, args ...string) []string {
	return append([]string{"-A", a.name, "--qos=" + a.qos, "-J", name, "--mem=100M", "--time=8", "--chdir=/"}, args...)
}

// submit submits a worker job and returns its ID. args override the defaults of all jobs.
func (s *slurm) submit(a account, name string, args ...string) string {
	s.t.Helper()
	return s.batch(a, name, s.dir+"/worker", args...)
}

func (s *slurm) batch(a account, name, script string, args ...string) string {
	s.t.Helper()
	args = append(append([]string{"--parsable", "-o", "/dev/null"}, a.jobArgs(name, args...)...), script)
	out, err := s.try(a.ids, []string{secretName + "=" + secret}, "sbatch", args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// script writes a program for jobs.
func (s *slurm) script(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	write(s.t, path, text)
	if err := os.Chmod(path, 0o755); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// running waits until the workers of a job run, one on each of nodes.
func (s *slurm) running(a account, id, name string, nodes ...int) *slurmJob {
	s.t.Helper()
	j := &slurmJob{account: a, id: id, name: name, part: 1}
	for _, node := range nodes {
		var text []byte
		eventually(s.t, "job "+id+" runs on "+slurmNodes[node], func() (err error) {
			if text, err = os.ReadFile(fmt.Sprintf("%s/out/%s.%s", s.dir, id, slurmNodes[node])); err != nil {
				out, _ := s.try("0:0", nil, "scontrol", "show", "job", id)
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
		p := slurmProcess{node: node}
		for i, word := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(word)
			switch {
			case err != nil:
				s.t.Fatal(err)
			case i == 0:
				p.pid = n
			default:
				p.gpus = append(p.gpus, slurmMinor(node, n)) // the mapping is its own inverse
			}
		}
		slices.Sort(p.gpus)
		j.on = append(j.on, p)
	}
	return j
}

var granted = regexp.MustCompile(`Granted job allocation (\d+)`)

// interactive starts a job that waits for its user's terminal.
func (s *slurm) interactive(t *testing.T, a account, name string, node int, args ...string) *slurmJob {
	s.t.Helper()
	args = append(a.jobArgs(name, args...), "-w", slurmNodes[node], "srun", "--interactive", s.dir+"/worker")
	s.daemonAs(t, a.ids, name, "salloc", args...)
	var id string
	eventually(s.t, "salloc has a job", func() error {
		said, err := os.ReadFile(filepath.Join(s.dir, "log", name))
		if m := granted.FindSubmatch(said); m != nil {
			id = string(m[1])
			return nil
		}
		return fmt.Errorf("its output is %q (%w)", said, err)
	})
	return s.running(a, id, name, node)
}

// reserve starts a job that runs nothing. A finished step reports its GPUs.
func (s *slurm) reserve(a account, name string, node int, args ...string) *slurmJob {
	s.t.Helper()
	argv := s.argv(a.ids, nil, "salloc", a.jobArgs(name, append(args, "--no-shell", "-w", slurmNodes[node])...)...)
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	m := granted.FindSubmatch(out)
	if m == nil {
		s.t.Fatalf("salloc: %v: %s", err, out)
	}
	id := string(m[1])
	probe := s.script("probe", strings.Replace(fmt.Sprintf(worker, s.dir), "exec sleep 500\n", "", 1))
	s.as(a.ids, "srun", "--jobid="+id, "-n1", probe)
	j := s.running(a, id, name, node)
	j.bare = true
	return j
}

// cancel cancels a job and waits until nothing of it is left.
func (s *slurm) cancel(j *slurmJob) {
	s.t.Helper()
	s.run("scancel", j.id)
	s.ended(j)
}

func (s *slurm) ended(j *slurmJob) {
	s.t.Helper()
	eventually(s.t, "job "+j.id+" has ended", func() error {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/slurm_gm-*/uid_*/job_" + j.id)
		if len(groups) > 0 {
			return fmt.Errorf("it still has %s", groups)
		}
		if out := s.run("squeue", "-h", "-o", "%T", "-j", j.id); strings.TrimSpace(out) != "" {
			return errors.New(out)
		}
		return nil
	})
}

// labels returns the labels that identify the owner of a series.
func (j *slurmJob) labels() map[string]string {
	labels := map[string]string{
		"gpu_workload_kind": "slurm_job", "gpu_workload_name": j.name, "gpu_workload_team": j.account.name,
		"slurm_cluster": slurmCluster, "slurm_job_id": j.id, "slurm_job_name": j.name, "slurm_user": j.user,
		"slurm_account": j.account.name, "slurm_partition": "gpu", "slurm_qos": j.qos, "gpu_workload_queue": "gpu",
	}
	if j.array != "" {
		labels["slurm_array_job_id"], labels["slurm_array_task_id"] = j.array, j.task
	}
	return labels
}

// of returns the labels of the job's series on a GPU.
func (j *slurmJob) of(node, gpu int) map[string]string {
	return with(j.labels(), "gpu_uuid", slurmUUID(node, gpu))
}

// holds adds the share of each GPU that the job holds.
func (j *slurmJob) holds(a answer, nodes ...int) {
	for _, p := range j.on {
		if !slices.Contains(nodes, p.node) {
			continue
		}
		for _, gpu := range p.gpus {
			a.add(j.of(p.node, gpu), j.part)
		}
	}
}

// slurmUse is a process on a GPU as the driver sees it.
type slurmUse struct{ node, gpu, pid, percent int }

// nvidia simulates the drivers of the nodes.
type nvidia struct {
	put   func(node int, script string) // gives a driver its script
	uses  []slurmUse
	joule map[[2]int]int // joules since the start, by node and GPU
	sick  [2]string      // lines at the end of the script of a node
}

// use puts the processes of a job on all its GPUs.
func (n *nvidia) use(j *slurmJob, percent int) {
	for _, p := range j.on {
		for _, gpu := range p.gpus {
			n.uses = append(n.uses, slurmUse{p.node, gpu, p.pid, percent})
		}
	}
	n.write()
}

// end removes the processes of a job from all GPUs.
func (n *nvidia) end(j *slurmJob) {
	n.uses = slices.DeleteFunc(n.uses, func(u slurmUse) bool {
		return slices.ContainsFunc(j.on, func(p slurmProcess) bool { return p.pid == u.pid })
	})
	n.write()
}

// burn adds joules to the energy counter of a GPU.
func (n *nvidia) burn(node, gpu, joules int) {
	n.joule[[2]int{node, gpu}] += joules
	n.write()
}

func (n *nvidia) write() {
	for node := range slurmNodes {
		var b bytes.Buffer
		fmt.Fprintf(&b, "gpus %d\ngpu * power 0 0\ngpu * util 0 0\ngpu * energy 1000000\n", slurmGPUs)
		for gpu := range slurmGPUs {
			fmt.Fprintf(&b, "gpu %d uuid %s\ngpu %d minor %d\n", gpu, slurmUUID(node, gpu), gpu, slurmMinor(node, gpu))
		}
		busy := map[int]int{}
		for _, u := range n.uses {
			if u.node == node {
				busy[u.gpu] += u.percent
				fmt.Fprintf(&b, "process %d %d compute %d %d\n", u.gpu, u.pid, 1<<30, u.percent)
			}
		}
		for _, gpu := range slices.Sorted(maps.Keys(busy)) {
			fmt.Fprintf(&b, "gpu %d util %d 0\n", gpu, busy[gpu])
		}
		for at, joules := range n.joule {
			if at[0] == node {
				fmt.Fprintf(&b, "gpu %d energy %d\n", at[1], 1000*(1000+joules))
			}
		}
		n.put(node, b.String()+n.sick[node])
	}
}
