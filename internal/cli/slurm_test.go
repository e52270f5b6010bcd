//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// sacctOf returns a folder with a sacct that writes these rows, whose times are seconds
// before now, and fails where the arguments lack something.
func sacctOf(t *testing.T, needs string, rows ...string) string {
	t.Helper()
	dir := t.TempDir()
	head := "JobIDRaw|JobID|Cluster|User|Account|Partition|QOS|State|ExitCode|Submit|Eligible|Start|End|ElapsedRaw|Suspended|NNodes|AllocCPUS|AllocTRES|ReqTRES|NodeList|JobName"
	now := time.Now().Unix()
	var b strings.Builder
	for i, row := range append([]string{head}, rows...) {
		fields := strings.Split(row, "|")
		for k, f := range fields {
			if n, err := strconv.Atoi(f); i > 0 && k >= 9 && k <= 12 && err == nil {
				fields[k] = strconv.FormatInt(now-int64(n), 10)
			}
		}
		b.WriteString(strings.Join(fields, "~DELIM~") + "~DELIM~\n")
	}
	answer := filepath.Join(dir, "answer")
	script := `#!/bin/sh
for a in "$@"; do case $a in --delimiter=*) d=${a#--delimiter=};; esac; done
case "$*" in *` + needs + `*) ;; *) echo "error: asked for $*" >&2; exit 1;; esac
exec /bin/sed "s,~DELIM~,$d,g" ` + answer + "\n"
	if err := os.WriteFile(answer, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	programtest.Write(t, filepath.Join(dir, "sacct"), script)
	return dir
}

var sampleJobs = []string{
	"101|101|c1|alice|physics|gpu|normal|COMPLETED|0:0|7300|7300|7200|3600|3600|00:00:00|1|8|cpu=8,gres/gpu=4,gres/gpu:h100=4|cpu=8,gres/gpu=4|n1|train",
	"103|102_7|c1|alice|physics|gpu|normal|FAILED|1:0|7300|7300|3600|3000|600|00:00:00|2|8|gres/gpu=8|gres/gpu=8|n[1-2]|sweep",
	"104|104|c1|alice|physics|gpu|normal|RUNNING|0:0|700|700|600|Unknown|600|00:00:00|1|8|gres/gpu=2|gres/gpu=2|n1|a-name-that-is-longer-than-any-table",
	"105|105|c1|alice|physics|cpu|normal|COMPLETED|0:0|700|700|600|500|100|00:00:00|1|8|cpu=8|cpu=8|n1|no-gpu",
	"106|106|c1|alice|physics|gpu|normal|PENDING|0:0|700|700|Unknown|Unknown|0|00:00:00|2|8||gres/gpu=16|None assigned|waits",
}

func slurmJobsOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newSlurm()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"jobs", "--agent", "http://127.0.0.1:1/"}, args...))
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// Unknown values are a dash with a reason, never 0; totals include known values only.
func TestSlurmJobsWithoutUsage(t *testing.T) {
	out, err := slurmJobsOutput(t, "--slurm-tools", sacctOf(t, "--user=alice", sampleJobs...), "--user", "alice")
	if err != nil {
		t.Fatal(err)
	}
	want := `JOB     USER   ACCOUNT  PARTITION  STATE       ELAPSED  GPUS  GPU-HOURS  ACTIVE  IDLE GPU-H  kWh  PEAK MEM  NAME
101     alice  physics  gpu        COMPLETED  01:00:00     4       4.00       -           -    -         -  train
102_7   alice  physics  gpu        FAILED     00:10:00     8       1.33       -           -    -         -  sweep
104     alice  physics  gpu        RUNNING    00:10:00     2       0.33       -           -    -         -  a-name-that-is-longer-than-any-table
105     alice  physics  cpu        COMPLETED  00:01:40     -          -       -           -    -         -  no-gpu
106     alice  physics  gpu        PENDING           -    16          -       -           -    -         -  waits
5 jobs                                                             5.67       -           -    -         -
GPU usage is unknown: no agent responds on this node. Use --prometheus URL with a Prometheus that stores the agents' series.
`
	if out != want {
		t.Errorf("got:\n%swant:\n%s", out, want)
	}
}

// usageAPI has series of job 101 on four GPUs, behind Prometheus' API.
func usageAPI(t *testing.T) string {
	store := querytest.NewMemory()
	begin := time.Now().Add(-7150 * time.Second)
	for i := range 60 * 4 {
		minute := i / 4
		held := 35 + float64(minute)*3465/59
		for series, value := range map[string]float64{
			fleet.SeriesAllocatedTime: held, fleet.SeriesActiveTime: held * 3 / 4, fleet.SeriesEnergy: held * 7.2e6 / 14000, fleet.SeriesWorkloadMemory: 80 << 30,
		} {
			l := query.Labels{fleet.LabelName: series, fleet.LabelSlurmJob: "101", fleet.LabelUUID: "G" + strconv.Itoa(i%4)}
			store.Add(l, begin.Add(time.Duration(minute)*time.Minute), value)
		}
	}
	server := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestSlurmJobsWithPrometheus(t *testing.T) {
	tools := sacctOf(t, "--allusers", sampleJobs...)
	out, err := slurmJobsOutput(t, "--slurm-tools", tools, "--user", "all", "--prometheus", usageAPI(t), "--state", "completed,F")
	if err != nil {
		t.Fatal(err)
	}
	want := `JOB     USER   ACCOUNT  PARTITION  STATE       ELAPSED  GPUS  GPU-HOURS  ACTIVE  IDLE GPU-H   kWh  PEAK MEM  NAME
101     alice  physics  gpu        COMPLETED  01:00:00     4       4.00     75%        0.97  2.00  80.0 GiB  train
102_7   alice  physics  gpu        FAILED     00:10:00     8       1.33       -           -     -         -  sweep
105     alice  physics  cpu        COMPLETED  00:01:40     -          -       -           -     -         -  no-gpu
3 jobs                                                             5.33     75%        0.97  2.00  80.0 GiB
Prometheus has no series for 1 of 2 jobs with GPUs: no agent ran on their nodes, or the data has expired.
`
	if out != want {
		t.Errorf("got:\n%swant:\n%s", out, want)
	}
	out, err = slurmJobsOutput(t, "--slurm-tools", tools, "--user", "all", "--prometheus", usageAPI(t), "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 5 {
		t.Fatalf("%v: %s", err, out)
	}
	if j := list[0]; j["efficiency"] != 0.75 || j["gpu_seconds"] != 14400.0 || j["allocated_gpu_seconds"] != 14000.0 || j["energy_joules"] != 7.2e6 || j["usage_status"] != "ok" {
		t.Errorf("%v", j)
	}
	if j := list[1]; j["usage_status"] != "missing" || j["efficiency"] != nil || j["energy_joules"] != nil {
		t.Errorf("%v", j)
	}
	out, err = slurmJobsOutput(t, "--slurm-tools", tools, "--user", "all", "--prometheus", "http://127.0.0.1:1")
	if err != nil || !strings.Contains(out, "GPU usage is incomplete: cannot query store at ") || !strings.Contains(out, "4.00       -") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The agent on this node knows only jobs that ran on this node alone.
func TestSlurmJobsWithAgent(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `gpu_workload_allocated_time_seconds_total{gpu_uuid="a",host_name="n1",slurm_job_id="104"} 1200
gpu_workload_active_time_seconds_total{gpu_uuid="a",host_name="n1",slurm_job_id="104"} 600
gpu_workload_allocated_time_seconds_total{gpu_uuid="b",host_name="n1",slurm_job_id="103"} 1200
`)
	}))
	defer agent.Close()
	out, err := slurmJobsOutput(t, "--slurm-tools", sacctOf(t, "", sampleJobs...), "--user", "all", "--agent", agent.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"RUNNING    00:10:00     2       0.33     50%        0.17    -         -", "FAILED     00:10:00     8       1.33       -", "from the agent on n1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Each error names the flag and valid values.
func TestSlurmJobsMistakes(t *testing.T) {
	tools := sacctOf(t, "", sampleJobs...)
	f := func(want string, args ...string) {
		t.Helper()
		out, err := slurmJobsOutput(t, args...)
		if err == nil || !strings.Contains(oneLine(err), want) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	f("--state", "--slurm-tools", tools, "--state", "done")
	f("--since", "--slurm-tools", tools, "--since", "soon")
	f("--since", "--slurm-tools", tools, "--since", "-3d")
	f("--job", "--slurm-tools", tools, "--job", "--x")
	f("--user", "--slurm-tools", tools, "--user", "a b")
	f("--output", "--slurm-tools", tools, "-o", "yaml")
	f("--prometheus", "--slurm-tools", tools, "--prometheus", "prom:9090")
	f("slurmrestd", "--slurm-rest", "nowhere")
	f("no sacct in", "--slurm-tools", t.TempDir())
	f("error: asked for", "--slurm-tools", sacctOf(t, "--never"))
	out, err := slurmJobsOutput(t, "--slurm-tools", sacctOf(t, ""), "--user", "nobody")
	if err != nil || !strings.HasPrefix(out, "No jobs of nobody since ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestLongDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{"90m": 90 * time.Minute, "7d": 168 * time.Hour, "1.5d": 36 * time.Hour, "2w": 336 * time.Hour} {
		if got, err := longDuration(s); err != nil || got != want {
			t.Errorf("%s: %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "d", "0", "-1h", "1e9d", "NaNd"} {
		if got, err := longDuration(s); err == nil {
			t.Errorf("%q: %s", s, got)
		}
	}
}
