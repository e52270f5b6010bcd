package slurmctl

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// fake is a directory of programs that answer like 22.05 and record how they were run.
type fake struct {
	t   *testing.T
	dir string
}

func newFake(t *testing.T) fake {
	t.Helper()
	data, err := filepath.Abs(ours)
	if err != nil {
		t.Fatal(err)
	}
	f := fake{t, t.TempDir()}
	f.write("squeue", "cat "+data+"/jobs.json")
	f.write("scontrol", `case "$*" in
*--json*) echo "scontrol: unrecognized option '--json'" >&2; exit 1;;
*nodes*) cat `+data+`/nodes.txt;;
*partitions*) cat `+data+`/partitions.txt;;
*config*) cat `+data+`/config.txt;;
*) cat `+data+`/jobs.txt;;
esac`)
	f.write("sdiag", `case "$*" in *--json*) echo "sdiag: unrecognized option '--json'" >&2; exit 1;; esac; cat `+data+`/diag.txt`)
	f.write("sshare", "cat "+data+"/shares.txt")
	f.write("sprio", "cat "+data+"/priorities.txt")
	f.write("sacctmgr", `case "$*" in *qos*) cat `+data+`/qos.txt;; *) cat `+data+`/users.txt;; esac`)
	return f
}

// write creates a program under a temporary name and renames it, so a concurrent run never
// sees half a script.
func (f fake) write(name, script string) {
	f.t.Helper()
	script = "#!/bin/sh\nPATH=/usr/bin:/bin\necho " + name + ` "$@" >>` + f.dir + "/log\n" + script + "\n"
	tmp := filepath.Join(f.dir, "."+name)
	programtest.Write(f.t, tmp, script)
	if err := os.Rename(tmp, filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

// ran returns the commands run since the last call.
func (f fake) ran() []string {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, "log"))
	if err != nil {
		return nil
	}
	_ = os.Remove(filepath.Join(f.dir, "log"))
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

func (f fake) client(cfg Config) *Client {
	f.t.Helper()
	cfg.Tools = f.dir
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Conf == "" {
		cfg.Conf = "/nonexistent/slurm.conf"
	}
	c, err := New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// Defects: querying a source twice per round or once per job, retrying an option that the
// version does not have, and above all sdiag --reset.
func TestRound(t *testing.T) {
	f := newFake(t)
	c := f.client(Config{Shares: true})
	s := c.Snapshot(t.Context())
	if !s.Up || s.Err != nil || s.Cluster != "e2e" || len(s.Jobs) == 0 || len(s.Nodes) != 2 || s.Diag == nil || len(s.Shares) != 6 {
		t.Fatalf("%v: %q, %d jobs, %d nodes, %v", s.Err, s.Cluster, len(s.Jobs), len(s.Nodes), s.Shares)
	}
	shares := "sshare --all --parsable2 --format=Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
	first := []string{
		"squeue --all --states=all --json", "scontrol --all --json show nodes", "scontrol --all --details show nodes", "sdiag --json", "sdiag", shares,
	}
	if diff := cmp.Diff(first, f.ran()); diff != "" {
		t.Errorf("first round (-want +got):\n%s", diff)
	}
	s = c.Snapshot(t.Context())
	if diff := cmp.Diff([]string{"squeue --all --states=all --json", "scontrol --all --details show nodes", "sdiag", shares}, f.ran()); diff != "" {
		t.Errorf("second round (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int64{"jobs": 2, "nodes": 2, "diag": 2, "shares": 2}, s.Requests); diff != "" || len(s.Errors) != 0 {
		t.Errorf("requests, errors %v (-want +got):\n%s", s.Errors, diff)
	}
	want := Share{"bio", "gpu_bob", optional.Of(1), optional.Of(1), optional.Of(2025), optional.Of(1), optional.Of(0.666667)}
	if !slices.Contains(s.Shares, want) || s.Shares[0].Factor.OK() {
		t.Errorf("%+v", s.Shares)
	}
}

// A controller that is down, hangs or returns garbage gets one request, yields no stale
// numbers, and recovers.
func TestAway(t *testing.T) {
	f := newFake(t)
	c := f.client(Config{})
	if s := c.Snapshot(t.Context()); !s.Up {
		t.Fatal(s.Err)
	}
	f.ran()
	bad := func(name, script, want string) {
		t.Helper()
		f.write("squeue", script)
		s := c.Snapshot(t.Context())
		if s.Up || s.Jobs != nil || s.Nodes != nil || s.Diag != nil || s.Err == nil || !strings.Contains(s.Err.Error(), want) {
			t.Errorf("%s: %+v, want %s", name, s, want)
		}
		if ran := f.ran(); len(ran) != 1 {
			t.Errorf("%s: ran %q", name, ran)
		}
	}
	bad("away", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", "Unable to contact")
	patient := c.cfg.Timeout
	c.cfg.Timeout = 700 * time.Millisecond
	bad("hung", "sleep 100000", "jobs: squeue")
	c.cfg.Timeout = patient
	bad("garbage", "echo '<html>'", "not JSON")
	bad("half an answer", `echo '{"jobs":[{"job_id":1},'`, "not JSON")
	bad("an error in it", `echo '{"jobs":[],"errors":[{"error":"Socket timed out"}]}'`, "timed out")
	f.write("squeue", "cat "+f.data()+"/jobs.json")
	f.write("sdiag", "echo 'no statistics today'")
	if s := c.Snapshot(t.Context()); s.Up || s.Jobs != nil || s.Errors["diag"] != 1 || s.Errors["jobs"] != 5 {
		t.Errorf("partial counts were published: %+v", s)
	}
	f.write("sdiag", "cat "+f.data()+"/diag.txt")
	if s := c.Snapshot(t.Context()); !s.Up || len(s.Jobs) == 0 {
		t.Errorf("after recovery: %v", s.Err)
	}
}

func (f fake) data() string {
	data, err := filepath.Abs(ours)
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}

// A machine without Slurm runs nothing and reports why.
func TestNoSlurm(t *testing.T) {
	c, err := New(Config{Tools: t.TempDir(), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Snapshot(t.Context()); s.Up || s.Err == nil || !strings.Contains(s.Err.Error(), "no Slurm tools") || len(s.Requests) != 0 {
		t.Errorf("%+v", s)
	}
}

// A cluster without fair shares is up and is not asked for them again.
func TestNoShares(t *testing.T) {
	f := newFake(t)
	f.write("sshare", "echo 'You are not running a supported priority plugin' >&2; exit 1")
	c := f.client(Config{Shares: true})
	if s := c.Snapshot(t.Context()); !s.Up || s.Err == nil || len(s.Jobs) == 0 {
		t.Errorf("%+v", s)
	}
	f.ran()
	if s := c.Snapshot(t.Context()); !s.Up || s.Err != nil || slices.ContainsFunc(f.ran(), func(s string) bool { return strings.HasPrefix(s, "sshare") }) {
		t.Errorf("queried again: %v", s.Err)
	}
}

// Series are joined by cluster name, which is configured, read from slurm.conf, or queried
// once.
func TestCluster(t *testing.T) {
	f := newFake(t)
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("# ClusterName=no\nSlurmUser=slurm\nclustername = Prod # yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(cfg Config, want string) {
		t.Helper()
		if s := f.client(cfg).Snapshot(t.Context()); s.Cluster != want {
			t.Errorf("%q, want %q", s.Cluster, want)
		}
	}
	check(Config{Cluster: "mine", Conf: conf}, "mine")
	check(Config{}, "e2e")
	f.write("squeue", `echo '{"jobs":[],"errors":[]}'`)
	check(Config{Conf: conf}, "prod")
	f.ran()
	c := f.client(Config{})
	for range 2 {
		if s := c.Snapshot(t.Context()); s.Cluster != "e2e" || s.Jobs == nil {
			t.Errorf("%q, %v", s.Cluster, s.Err)
		}
	}
	if n := strings.Count(strings.Join(f.ran(), "\n"), "show config"); n != 1 {
		t.Errorf("configuration queried %d times", n)
	}
	f.write("scontrol", "case \"$*\" in *--json*) echo unrecognized option >&2; exit 1;; *config*) echo 'SlurmUser = x';; *) cat "+f.data()+"/nodes.txt;; esac") // config without ClusterName
	c = f.client(Config{})
	for range 3 {
		c.Snapshot(t.Context())
	}
	if n := strings.Count(strings.Join(f.ran(), "\n"), "show config"); n != 1 {
		t.Errorf("missing cluster name queried %d times", n)
	}
}

// Records are typed, complete and bounded, and reuse the answers of the round.
func TestRecords(t *testing.T) {
	f := newFake(t)
	c := f.client(Config{Shares: true})
	s := c.Snapshot(t.Context())
	f.ran()
	kinds := []string{"squeue", "sprio", "sshare", "qos", "users", "partitions", "config"}
	list, dropped, err := c.Records(t.Context(), kinds, s)
	if err != nil || dropped != 0 {
		t.Fatal(err, dropped)
	}
	var tools []string
	for _, line := range f.ran() {
		name, _, _ := strings.Cut(line, " ")
		tools = append(tools, name)
	}
	if diff := cmp.Diff([]string{"sprio", "sacctmgr", "sacctmgr", "scontrol", "scontrol"}, tools); diff != "" {
		t.Errorf("ran (-want +got):\n%s", diff)
	}
	count := map[string]int{}
	attrs := map[string]any{}
	for _, r := range list {
		count[r.Event]++
		for _, a := range r.Attrs {
			if _, twice := attrs[r.Event+" "+a.Key]; !twice {
				attrs[r.Event+" "+a.Key] = a.Value
			}
			if strings.Contains(strings.ToLower(a.Key), "pass") || strings.Contains(a.Key, "__") {
				t.Errorf("%s = %v", a.Key, a.Value)
			}
		}
	}
	wantCount := map[string]int{"slurm.job": len(s.Jobs), "slurm.priority": 1, "slurm.share": 6, "slurm.qos": 1, "slurm.user": 3, "slurm.partition": 2, "slurm.config": 1}
	if diff := cmp.Diff(wantCount, count); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for key, want := range map[string]any{
		"slurm.job slurm.job.id": "1", "slurm.job slurm.job.gpu.count": int64(2), "slurm.job slurm.job.name": "train llm", "slurm.job slurm.job.start_time": int64(1794734265),
		"slurm.priority slurm.job.id": "5", "slurm.priority slurm.priority.fair_share": int64(6667), "slurm.priority slurm.priority.tres": "gres/gpu=50",
		"slurm.share slurm.share.normalized": 0.0, "slurm.qos slurm.qos": "normal", "slurm.qos slurm.qos.usage_factor": 1.0, "slurm.user slurm.user": "gpu_alice",
		"slurm.user slurm.user.share": int64(1), "slurm.partition slurm.partition.default": true, "slurm.partition slurm.partition.gpu.count": int64(16),
		"slurm.config slurm.config.cluster_name": "e2e", "slurm.config slurm.config.boot_time": "2026-11-15T09:16:01",
	} {
		if diff := cmp.Diff(want, attrs[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	many := Snapshot{Jobs: make([]slurm.Job, MaxRecords+7)}
	if list, dropped, err := c.Records(t.Context(), []string{"squeue"}, many); len(list) != MaxRecords || dropped != 7 || err != nil {
		t.Errorf("%d records, %d dropped, %v", len(list), dropped, err)
	}
}

// slurmrestd gets one request per source, and none for sources its version lacks.
func TestREST(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		name, ok := strings.CutPrefix(r.URL.Path, "/slurm/v0.0.38/")
		file := map[string]string{"jobs": "jobs.json", "nodes": "rest-nodes.json", "partitions": "rest-partitions.json", "diag": "rest-diag.json"}[name]
		switch {
		case r.URL.Path == "/openapi/v3":
			_, _ = w.Write([]byte(`{"paths":{"/slurm/v0.0.38/jobs/":{}}}`))
		case ok && file != "":
			_, _ = w.Write(recorded(t, file))
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	c, err := New(Config{REST: REST{Address: srv.URL}, Conf: "/nonexistent", Shares: true, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Snapshot(t.Context())
	if !s.Up || s.Cluster != "e2e" || len(s.Partitions) != 2 || len(s.Nodes) != 2 || s.Nodes[1].State != "draining" {
		t.Errorf("%v: %+v", s.Err, s.Nodes)
	}
	asked = nil
	c.Snapshot(t.Context())
	if n := slices.Compact(slices.Sorted(slices.Values(asked))); len(asked) > 5 || len(n) != len(asked) || slices.Contains(asked, "/slurm/v0.0.38/shares") {
		t.Errorf("requests: %q", asked)
	}
}

// slurmrestd of 24.11 reports fair shares.
func TestSharesJSON(t *testing.T) {
	var l shareList
	number := func(v any) string { return fmt.Sprintf(`{"set":true,"infinite":false,"number":%v}`, v) }
	err := l.json(strings.NewReader(`{"shares":{"shares":[
{"name":"ml","parent":"root","shares":` + number(1) + `,"shares_normalized":` + number(0.5) + `,"effective_usage":` + number(0.7) + `,"usage":956,"fairshare":{"factor":` + number(0) + `},"type":["ASSOCIATION"]},
{"name":"ann","parent":"ml","shares":{"set":false,"infinite":true,"number":0},"shares_normalized":` + number(1) + `,"effective_usage":` + number(1) + `,"usage":956,"fairshare":{"factor":` + number(0.25) + `},"type":["USER"]}
],"total_shares":2},"errors":[]}`))
	want := []Share{{"ml", "", optional.Of(1), optional.Of(0.5), optional.Of(956), optional.Of(0.7), optional.Float{}}, {"ann", "", optional.Float{}, optional.Of(1), optional.Of(956), optional.Of(1), optional.Of(0.25)}}
	want[1].Account, want[1].User = "ml", "ann"
	if diff := cmp.Diff(want, l.list); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
