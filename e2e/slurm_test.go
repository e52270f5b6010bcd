//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

const (
	slurmInterval = time.Second
	slurmRefresh  = 2 * time.Second // minimum time between requests of an agent to the controller
)

// TestSlurm runs on one cluster with one agent on each of its two nodes; the first runs Slurm's tools, the
// second queries slurmrestd. The parts build on each other: most jobs stay to the end.
func TestSlurm(t *testing.T) {
	t.Parallel()
	db := prometheus3(t)
	s := newSlurm(t)
	s.script("worker", fmt.Sprintf(worker, s.dir))
	x := &slurmTest{slurm: s, parent: s, t: t, db: db, binary: gpumeter(t), nvidia: &nvidia{joule: map[[2]int]int{}}}
	var hosts [2]*nvmltest.Host
	for node := range slurmNodes {
		hosts[node] = nvmltest.New(t, "")
		x.library[node] = hosts[node].Library
		x.roots[node] = s.nodeRoot(node)
	}
	x.put = func(node int, script string) { hosts[node].Script(t, script) }
	x.write()
	x.tools = s.wrapTools("tools")
	x.clusterTools = s.wrapTools("cluster-tools")
	x.agents[0] = x.agent("first", 0, db.url+db.path, map[string]any{"scontrol": x.tools + "/scontrol"})
	x.agents[1] = x.agent("second", 1, db.url+db.path, map[string]any{"rest": "unix:" + s.rest})
	x.clusterPage, x.clusterDir = freeAddress(t), t.TempDir()
	x.cluster = x.clusterAgent()
	x.db.up(x.agents[0].page + ", " + x.agents[1].page + ", " + x.clusterPage)

	parts := []struct {
		name string
		run  func(*slurmTest)
	}{
		{"Finished", (*slurmTest).finished},
		{"Batch", (*slurmTest).batchJob},
		{"Nodes", (*slurmTest).twoNodes},
		{"Array", (*slurmTest).arrayJob},
		{"Words", (*slurmTest).words},
		{"Shards", (*slurmTest).shardJobs},
		{"Idle", (*slurmTest).idleJob},
		{"Interactive", (*slurmTest).interactiveJob},
		{"Thief", (*slurmTest).thief},
		{"Offline", (*slurmTest).offline},
		{"Doctor", (*slurmTest).doctor},
		{"Numbers", (*slurmTest).numbers},
		{"Crash", (*slurmTest).crash},
		{"Rate", (*slurmTest).rate},
		{"Ended", (*slurmTest).endedJob},
		{"Records", (*slurmTest).records},
		{"Hung", (*slurmTest).hung},
		{"Killed", (*slurmTest).killed},
		{"Garbage", (*slurmTest).garbage},
		{"Health", (*slurmTest).health},
		{"Accounting", (*slurmTest).accounting},
		{"Secret", (*slurmTest).secrets}, // last: it ends the agents
	}
	for _, part := range parts {
		if !t.Run(part.name, func(t *testing.T) {
			x.slurm, x.t = s.in(t), t
			x.db.t = t
			part.run(x)
		}) {
			break // the next parts build on it
		}
	}
}

// slurmTest is the cluster, its agents and the jobs on their GPUs.
type slurmTest struct {
	*slurm
	parent *slurm // shared by the parts
	*nvidia
	t       *testing.T
	binary  string
	library [2]string
	roots   [2]string
	tools   string // folder of Slurm's programs that log their runs
	db      *backend
	agents  [2]*slurmAgent
	jobs    []*slurmJob // running jobs

	batched, idle *slurmJob

	// The agent that reports the cluster, and jobs that ended while it ran or was down.
	cluster                               *slurmAgent
	clusterPage, clusterDir, clusterTools string
	over                                  []*slurmJob
	cpuOnly                               []string
}

// nodeRoot returns the files of a node as an agent in a container sees them: its own Slurm configuration, the
// machine's proc and sys.
func (s *slurm) nodeRoot(node int) string {
	s.t.Helper()
	root := filepath.Join(s.dir, "root", slurmNodes[node])
	if err := os.MkdirAll(root+"/etc", 0o755); err != nil {
		s.t.Fatal(err)
	}
	for from, to := range map[string]string{"/proc": "/proc", "/sys": "/sys", s.dir + "/etc": "/etc/slurm", "/etc/passwd": "/etc/passwd"} {
		if err := os.Symlink(from, root+to); err != nil {
			s.t.Fatal(err)
		}
	}
	return root
}

// wrapTools returns a folder of Slurm's programs that log each run, and whether another one is running.
func (s *slurm) wrapTools(folder string) string {
	s.t.Helper()
	dir := filepath.Join(s.dir, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	for _, name := range []string{"sacct", "sacctmgr", "scontrol", "sdiag", "sinfo", "squeue", "sprio", "sshare"} {
		argv := s.argv("0:0", nil, name)
		for i, word := range argv {
			argv[i] = "'" + word + "'" // no argument has a quote
		}
		s.script(folder+"/"+name, fmt.Sprintf(`#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
read -r last 2>/dev/null <%[1]s.last && kill -0 "$last" 2>/dev/null && twice=twice
echo $$ >%[1]s.last
echo "$EPOCHREALTIME %[2]s $twice" >>%[1]s
exec %[3]s "$@"
`, dir+".log", name, strings.Join(argv, " ")))
	}
	return dir
}

// slurmAgent is the agent of a node.
type slurmAgent struct {
	*process
	page, log, file, state string
}

// agent starts an agent on a node with its flags and additional settings for Slurm. It pushes to endpoint,
// unless that is empty.
func (x *slurmTest) agent(name string, node int, endpoint string, settings map[string]any) *slurmAgent {
	x.t.Helper()
	flags := []string{"--nvidia-library", x.library[node], "--root", x.roots[node], "--host-name", slurmNodes[node]}
	return x.startAgent(name, x.slurm.t.TempDir(), endpoint, flags, func(config map[string]any) {
		at := within(config, "extensions", "gpu", "workloads", "slurm")
		at["refresh"] = slurmRefresh.String()
		maps.Copy(at, settings)
	})
}

// within returns the section below keys of a configuration.
func within(config map[string]any, keys ...string) map[string]any {
	for _, key := range keys {
		config = config[key].(map[string]any)
	}
	return config
}

// startAgent starts an agent with the configuration of flags, modified by edit. It keeps its state in a
// folder.
func (x *slurmTest) startAgent(name, dir, endpoint string, flags []string, edit func(map[string]any)) *slurmAgent {
	x.t.Helper()
	t := x.slurm.t
	a := &slurmAgent{log: filepath.Join(dir, "log"), file: filepath.Join(dir, "otlp.json"), state: filepath.Join(dir, "state")}
	flags = append([]string{
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=" + endpoint, x.binary, "agent", "--print-config", "--no-cloud", "--otlp-file", a.file,
		"--interval", slurmInterval.String(), "--slow-interval", slurmInterval.String(), "--listen", "127.0.0.1:0", "--state-dir", a.state,
	}, flags...)
	var config map[string]any
	if err := yaml.Unmarshal([]byte(command(t, dir, "env", flags...)), &config); err != nil {
		t.Fatal(err)
	}
	edit(config)
	b, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/config.yaml", string(b))
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("grep", "-v", `"level":"debug"`, a.log).Output()
			t.Logf("output of the %s agent:\n%.4000s", name, out)
		}
	})
	if err := os.MkdirAll(a.state+"/queue", 0o700); err != nil {
		t.Fatal(err)
	}
	served := func() []string {
		said, _ := os.ReadFile(a.log) // absent at first
		var pages []string
		for _, m := range pageAddress.FindAllSubmatch(said, -1) {
			pages = append(pages, string(m[1]))
		}
		return pages
	}
	before := len(served())
	a.process = start(t, "sh", "-c", `exec "$@" >>"$0" 2>&1`, a.log, "env", "GOTRACEBACK=all", x.binary, "agent",
		"--config", dir+"/config.yaml", "--socket", "", "--log-level", "debug")
	a.name = "gpumeter"
	eventually(t, "the "+name+" agent serves its page", func() error {
		pages := served()
		if len(pages) == before {
			return fmt.Errorf("its output is\n%s", lastLines(a.log, 5))
		}
		a.page = pages[len(pages)-1]
		return nil
	})
	return a
}

// expect waits until a query has the expected answer on both paths.
func (x *slurmTest) expect(query string, want map[string]string) {
	x.t.Helper()
	x.db.expect(x.t, query, want)
}

// expectHeld waits until exactly the running jobs hold exactly their GPUs.
func (x *slurmTest) expectHeld() {
	x.t.Helper()
	x.expect(x.heldQuery())
}

func (x *slurmTest) heldQuery() (string, map[string]string) {
	held := answer{}
	for _, j := range x.jobs {
		j.holds(held, 0, 1)
	}
	return of("gpu_allocation_ratio", `gpu_workload_kind="slurm_job", `, "gpu_share_basis"), held
}

// expectStatus waits until the agent of a node reports exactly this reason for a source.
func (x *slurmTest) expectStatus(node int, source, reason string) {
	x.t.Helper()
	want := answer{}
	want.add(map[string]string{"gpumeter_attribution_reason": reason, "gpumeter_attribution_source": source}, 1)
	x.expect(of("gpumeter_attribution_status", fmt.Sprintf("host_name=%q, gpumeter_attribution_source=%q, ", slurmNodes[node], source)), want)
}
