package accounting

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// open returns a file of testdata, or of the captures stored beside the repository.
func open(t testing.TB, elem ...string) *os.File {
	t.Helper()
	f, err := os.Open(filepath.Join(elem...))
	if os.IsNotExist(err) && elem[0] == captures {
		t.Skipf("no %s", filepath.Join(elem...))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

const captures = "../../../../shared/fixtures"

func readText(t testing.TB, delimiter string, elem ...string) []Job {
	t.Helper()
	var jobs []Job
	err := parseText(open(t, elem...), delimiter, time.UTC, func(j Job) error { jobs = append(jobs, j); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

func readJSON(t testing.TB, elem ...string) []Job {
	t.Helper()
	var jobs []Job
	if err := parseJSON(open(t, elem...), func(j Job) error { jobs = append(jobs, j); return nil }); err != nil {
		t.Fatal(err)
	}
	return jobs
}

func unix(s int64) time.Time { return time.Unix(s, 0).UTC() }

// Catches a multi-line job name that loses its row and the next, suspended time counted as usage, and
// GPUs listed with and without their type counted twice.
func TestTextOfSlurm(t *testing.T) {
	jobs := readText(t, "|~|", "testdata/22.05/sacct.txt")
	by := map[string]Job{}
	for _, j := range jobs {
		by[j.UserID+" "+j.State] = j
	}
	want := Job{
		Job: slurm.Job{
			ID: "23", Cluster: "e2e", Name: "susp", User: "gpu_alice", Account: "ml", Partition: "gpu", QOS: "normal",
			State: "COMPLETED", Submit: unix(1794734278), Eligible: unix(1794734278), Start: unix(1794734279), End: unix(1794734291),
			Nodes: 1, CPUs: 1, NodeList: "gn1", GPUs: 1,
		},
		UserID: "23", ExitKnown: true, Elapsed: 8 * time.Second, Suspended: 4 * time.Second, Requested: 1, GPUTypes: []string{"h100"},
	}
	if diff := cmp.Diff(want, by["23 COMPLETED"]); diff != "" {
		t.Errorf("suspended (-want +got):\n%s", diff)
	}
	want = Job{
		Job: slurm.Job{
			ID: "7", ArrayJobID: "7", ArrayTaskID: "1-9", Cluster: "e2e", Name: "sweep2", User: "gpu_bob", Account: "bio", Partition: "gpu",
			QOS: "normal", State: "CANCELLED", Submit: unix(1794734232), End: unix(1794734254),
		},
		UserID: "7_[1-9]", ExitKnown: true, Requested: 1,
	}
	if diff := cmp.Diff(want, by["7_[1-9] CANCELLED"]); diff != "" {
		t.Errorf("cancelled while it waited (-want +got):\n%s", diff)
	}
	type brief struct {
		GPUs, Shards, Nodes int64
		Exit                int
		Name                string
		GPUTime             time.Duration
	}
	for id, want := range map[string]brief{
		"1 COMPLETED":    {2, 0, 1, 0, "train-llm", 16 * time.Second},
		"2 FAILED":       {1, 0, 1, 3, "fails", 2 * time.Second},
		"3 TIMEOUT":      {1, 0, 1, 0, "toolong", 75 * time.Second},
		"4 CANCELLED":    {3, 0, 1, 0, "killed", 63 * time.Second},
		"5 COMPLETED":    {4, 0, 2, 0, "ddp", 28 * time.Second},
		"6_3 COMPLETED":  {1, 0, 1, 0, "sweep", 3 * time.Second},
		"8 COMPLETED":    {0, 2, 1, 0, "shardjob", 0},
		"9 COMPLETED":    {0, 0, 1, 0, "two lines|with|#pipes", 0},
		"10 COMPLETED":   {1, 0, 1, 0, "sp ace=é`quote", 2 * time.Second},
		"11 CANCELLED":   {0, 0, 0, 0, "held", 0},
		"12 CANCELLED":   {0, 0, 0, 0, "tomorrow", 0},
		"14 REQUEUED":    {1, 0, 1, 0, "requeued", 17 * time.Second},
		"14 COMPLETED":   {1, 0, 1, 0, "requeued", 15 * time.Second},
		"15+1 COMPLETED": {2, 0, 1, 0, "het", 8 * time.Second},
		"24 RESIZING":    {2, 0, 2, 0, "resize", 8 * time.Second},
		"25 NODE_FAIL":   {2, 0, 1, 0, "nodefail", 62 * time.Second},
	} {
		j, ok := by[id]
		if got := (brief{j.GPUs, j.Shards, j.Nodes, j.Exit, j.Name, j.GPUTime()}); !ok || got != want {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	for id, j := range by {
		if !j.Ended() {
			t.Errorf("%s has not ended", id)
		}
	}
}

// Catches a difference between slurmrestd and sacct; the exit status of 22.05 is only in the text.
func TestJSONIsText(t *testing.T) {
	text := map[string]Job{}
	for _, j := range readText(t, "|~|", "testdata/22.05/sacct.txt") {
		text[j.UID()] = j
	}
	got := map[string]Job{}
	for _, file := range []string{"testdata/22.05/rest-lived.json", "testdata/22.05/rest-ended.json"} {
		for _, j := range readJSON(t, file) {
			if j.Ended() {
				got[j.UID()] = j
			}
		}
	}
	if diff := cmp.Diff(text, got, cmpopts.IgnoreFields(Job{}, "Exit", "ExitKnown"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-text +json):\n%s", diff)
	}
	for _, j := range got {
		if j.State == "FAILED" && j.ExitKnown {
			t.Error("a job that failed with 3 has exit code 0")
		}
	}
}

// Catches 24.11's number objects, and 4294967294 as the start of a job that never started.
func TestJSONOf2411(t *testing.T) {
	jobs := readJSON(t, captures, "slurm-real/24.11/sacct-after-cancel.json")
	by := map[string]Job{}
	for _, j := range jobs {
		by[j.UserID] = j
	}
	if j := by["7"]; !j.Start.IsZero() || j.State != "CANCELLED" || j.GPUs != 0 || j.NodeList != "" || !j.Ended() {
		t.Errorf("cancelled while it waited: %+v", j)
	}
	if j := by["5_1"]; j.ID != "9" || j.GPUs != 1 || j.ArrayJobID != "5" || j.Nodes != 1 || j.CPUs != 1 || !j.ExitKnown {
		t.Errorf("task: %+v", j)
	}
	if j := by["6"]; j.Shards != 2 || j.GPUs != 0 {
		t.Errorf("shards: %+v", j)
	}
	if len(by) != len(jobs) || len(jobs) != 10 {
		t.Errorf("%d jobs, %d of them differ", len(jobs), len(by))
	}
}

// Catches a capture that cannot be parsed completely.
func TestCaptures(t *testing.T) {
	f := func(delimiter, file string, want int) []Job {
		t.Helper()
		jobs := readText(t, delimiter, captures, file)
		if len(jobs) != want {
			t.Errorf("%s: %d jobs, want %d", file, len(jobs), want)
		}
		return jobs
	}
	f("|", "slurm-real/sacct-after-cancel.psv", 8)
	f("|", "slurm-real/sacct-all.psv", 8)
	f("|", "slurm-real/22.05/sacct.psv", 9)
	f("|", "slurm-real/24.11/sacct.psv", 9)
	// The second has a comment of two lines.
	many := f("|#", "slurm/gcm/sample-sacct-one-multiline.txt", 2)
	if many[0].GPUs != 1024 || many[0].Exit != 6 || many[1].ID != "201844" || many[1].State != "REQUEUED" || many[1].GPUs != 256 {
		t.Errorf("multi-line: %+v", many)
	}
	f("|", "slurm/gcm/sample-sacct-output-invalid-utf8.txt", 2)
	f("|", "slurm/gcm/sample-sacct-output.txt", 0)
	f("|#", "slurm/gcm/sample-sacct-running-output.txt", 0)
	// The job ended before midnight, one of its steps after: that is not a second end.
	for _, j := range f("|", "slurm/gcm/sample-sacct-output-midnight-edge-case-small.txt", 3) {
		if want := time.Date(2021, 4, 7, 23, 59, 38, 0, time.UTC); !j.End.Equal(want) || j.State != "CANCELLED" {
			t.Errorf("midnight: %+v", j)
		}
	}
	b, err := io.ReadAll(open(t, captures, "slurm/datadog/sacct.txt"))
	if err != nil {
		t.Fatal(err)
	}
	head := "JobID|JobName|Partition|Account|AllocCPUS|AllocTRES|Elapsed|a|b|c|d|e|State|ExitCode|Start|End|NodeList|f|g\n"
	n := 0
	if err := parseText(strings.NewReader(head+string(b)), "|", time.UTC, func(Job) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("datadog: %d jobs, %v", n, err)
	}
	for _, name := range []string{"sacct.json", "sacct-after-cancel.json", "22.05/sacct_a_json.json", "24.11/sacct_a_json.json", "rest-slurmdb_v0.0.38_jobs.json", "24.11/rest-slurmdb_v0.0.41_jobs.json"} {
		if jobs := readJSON(t, captures, "slurm-real", name); len(jobs) < 8 {
			t.Errorf("%s: %d jobs", name, len(jobs))
		}
	}
}

// Catches a user who forges rows of other users through a job name with the delimiter: the random
// delimiter is unknown to users, so a name stays a name.
func TestForgedRow(t *testing.T) {
	text := "JobIDRaw|k3|JobID|k3|State|k3|End|k3|JobName|k3|\n" +
		"1|k3|1|k3|COMPLETED|k3|1794734240|k3|innocent\n2|2|COMPLETED|1794734240|root|\n9|k4|9|k4|COMPLETED|k4|1|k4|x|k4||k3|\n"
	var jobs []Job
	if err := parseText(strings.NewReader(text), "|k3|", time.UTC, func(j Job) error { jobs = append(jobs, j); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(jobs) != 1 || jobs[0].ID != "1" || !strings.HasPrefix(jobs[0].Name, "innocent 2|2|") {
		t.Errorf("%+v", jobs)
	}
}

// Catches a job name that costs time and memory in proportion to the square of its line breaks.
func TestManyLineBreaks(t *testing.T) {
	const breaks = 160_000
	text := "JobID|k3|State|k3|JobName\n1|k3|COMPLETED|k3|x\n2|k3|COMPLETED" + strings.Repeat("\n", breaks) + "|k3|y\n3|k3|COMPLETED|k3|z\n"
	var ids []string
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := parseText(strings.NewReader(text), "|k3|", time.UTC, func(j Job) error { ids = append(ids, j.ID); return nil })
	runtime.ReadMemStats(&after)
	if diff := cmp.Diff([]string{"1", "2", "3"}, ids); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 100*breaks {
		t.Errorf("%d line breaks cost %d bytes", breaks, n)
	}
}

// Catches one malformed row that loses others, and a truncated response taken for a complete one.
func TestTextOdd(t *testing.T) {
	head := "JobIDRaw|JobID|State|End|Suspended|\n"
	f := func(rows string, want int, odd bool) {
		t.Helper()
		n := 0
		err := parseText(strings.NewReader(head+rows), "|", time.UTC, func(Job) error { n++; return nil })
		if n != want || Unreadable(err) != odd {
			t.Errorf("%q: %d rows, %v", rows, n, err)
		}
	}
	f("1|1|COMPLETED|1794734240|00:00:00|\n2|2|FAILED|yesterday|00:00:00|\n3|3|FAILED|1794734240|1-00:00:01|\n", 2, true)
	f("1|1|COMPLETED|1794734240|x:y|\n", 0, true)
	f("x|x|COMPLETED|1794734240||\n", 0, true)
	f("1|1||1794734240||\n", 0, true)
	f("1.batch|1.batch|COMPLETED|1794734240||\n", 0, false)
	err := parseText(strings.NewReader(head+"1|1|COMPLETED|17947"), "|", time.UTC, func(Job) error { return nil })
	if err == nil || Unreadable(err) {
		t.Errorf("truncated response: %v", err)
	}
	for _, text := range []string{"", "\n", "sacct: error: no\n"} {
		if err := parseText(strings.NewReader(text), "|", time.UTC, func(Job) error { return nil }); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	stop := errors.New("stop")
	if err := parseText(strings.NewReader(head+"1|1|COMPLETED|1794734240||\n"), "|", time.UTC, func(Job) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func TestSmallParsers(t *testing.T) {
	span := func(s string, want time.Duration, ok bool) {
		t.Helper()
		if got, err := parseSpan(s); got != want || (err == nil) != ok {
			t.Errorf("%q: %s, %v", s, got, err)
		}
	}
	span("", 0, true)
	span("00:00:04", 4*time.Second, true)
	span("10:00", 10*time.Minute, true)
	span("01:02:03", time.Hour+2*time.Minute+3*time.Second, true)
	span("2-01:00:00", 49*time.Hour, true)
	span("00:01.500", time.Second, true)
	span("soon", 0, false)
	span("1-", 0, false)
	for s, want := range map[string]string{"0x3FE": "1-9", "0x1": "0", "0x8005": "0,2,15", "0x0": "", "0xzz": "0xzz", "1-3": "1-3", "": ""} {
		if got := fromBitmap(s); got != want {
			t.Errorf("%q: %q", s, got)
		}
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	if got, err := parseTime("2026-07-01T00:00:00", berlin); err != nil || got.Unix() != 1782856800 {
		t.Errorf("local time: %v, %v", got, err)
	}
	for _, s := range []string{"None", "Unknown", "", "0", "4294967294", "18446744073709551614"} {
		if got, err := parseTime(s, time.UTC); err != nil || !got.IsZero() {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	if n, ok := parseBacklog(strings.NewReader("Agent queue size: 9\nDBD Agent queue size: 12\n")); n != 12 || !ok {
		t.Errorf("backlog %d, %v", n, ok)
	}
	if _, ok := parseBacklog(strings.NewReader("Agent queue size: 9\n")); ok {
		t.Error("another queue is taken for the database queue")
	}
	if n, ok, err := parseDiag(strings.NewReader(`{"statistics":{"dbd_agent_queue_size":{"set":true,"number":3}}}`)); n != 3 || !ok || err != nil {
		t.Error(n, ok, err)
	}
	if _, ok, _ := parseDiag(strings.NewReader(`{"statistics":{}}`)); ok {
		t.Error("an unreported queue counts as empty")
	}
}

func TestWait(t *testing.T) {
	f := func(j Job, want time.Duration, ok bool) {
		t.Helper()
		if got, known := j.Wait(); got != want || known != ok {
			t.Errorf("%+v: %s, %v", j, got, known)
		}
	}
	f(Job{Job: slurm.Job{Submit: unix(10), Eligible: unix(40), Start: unix(100)}}, time.Minute, true)
	f(Job{Job: slurm.Job{Submit: unix(40), Start: unix(100)}}, time.Minute, true)
	f(Job{Job: slurm.Job{Submit: unix(10), Eligible: unix(9999), End: unix(100)}}, 0, true)
	f(Job{Job: slurm.Job{Submit: unix(10), End: unix(70)}}, time.Minute, true)
	f(Job{}, 0, false)
}

func FuzzText(f *testing.F) {
	b, err := os.ReadFile("testdata/22.05/sacct.txt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(b), "|~|")
	f.Add("JobID|State\n1|R\n", "|")
	f.Fuzz(func(t *testing.T, s, delimiter string) {
		if delimiter == "" {
			return
		}
		_ = parseText(strings.NewReader(s), delimiter, time.UTC, func(j Job) error { check(t, j); return nil })
	})
}

func FuzzJSON(f *testing.F) {
	f.Add(`{"jobs":[{"job_id":2,"state":{"current":["FAILED"]},"array":{"job_id":1,"task":"0x3FE"},"time":{"end":1794734240},"tres":{"allocated":[{"type":"gres","name":"gpu:h100","count":-2}]}}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		_ = parseJSON(strings.NewReader(s), func(j Job) error { check(t, j); return nil })
	})
}

// check verifies the invariants of every parsed row.
func check(t *testing.T, j Job) {
	t.Helper()
	if j.ID == "" || j.UserID == "" || j.State == "" || j.GPUs < 0 || j.Elapsed < 0 || j.Suspended < 0 || j.GPUTime() < 0 || len(j.UID()) != 32 || strings.ContainsAny(j.Name, "\n\x00") {
		t.Errorf("%+v", j)
	}
}
