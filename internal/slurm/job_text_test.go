package slurm

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func readJobs(t *testing.T, name string) ([]Job, error) {
	t.Helper()
	f, err := os.Open("testdata/26.05/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var jobs []Job
	err = ParseJobsText(f, func(j Job) error { jobs = append(jobs, j); return nil })
	return jobs, err
}

// Catches the identifier of 26.05 taken for part of a job's name.
func TestText2605(t *testing.T) {
	jobs, err := readJobs(t, "jobs.txt")
	at := func(clock string) time.Time {
		w, err := time.ParseInLocation("2006-01-02T15:04:05", clock, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	job := func(id string, change func(*Job)) Job {
		j := Job{
			ID: id, Tasks: 1, Name: "wrap", User: "gpu_alice", Partition: "gpu", State: "RUNNING", States: []string{"RUNNING"}, Reason: "None",
			NodeList: "gn2", Nodes: 1, CPUs: 1, Priority: 1, Submit: at("2026-11-15T23:01:25"), Eligible: at("2026-11-15T23:01:25"), Start: at("2026-11-15T23:01:26"),
		}
		change(&j)
		return j
	}
	first := func(j *Job) { // submitted a second before the others, with a time limit
		j.Submit, j.Eligible, j.End = at("2026-11-15T23:01:24"), at("2026-11-15T23:01:24"), at("2027-11-15T23:01:26")
		j.TimeLimit = 365 * 24 * time.Hour
	}
	pending := func(j *Job, reason string) {
		j.State, j.States, j.Reason, j.NodeList, j.CPUs, j.Eligible, j.Start = "PENDING", []string{"PENDING"}, reason, "", 2, time.Time{}, time.Time{}
	}
	want := []Job{
		job("1", func(j *Job) {
			first(j)
			j.NodeList, j.GPUs, j.Held = "gn1", 2, []Held{{"gn1", "gpu:h100:2(IDX:0-1)"}}
		}),
		job("2", func(j *Job) {
			first(j)
			j.NodeList, j.Held = "gn1", []Held{{"gn1", "shard:2(0/4,0/4,2/4,0/4,0/4,0/4,0/4,0/4)"}}
		}),
		job("8", func(j *Job) {
			first(j)
			j.ArrayJobID, j.ArrayTaskID, j.CPUs, j.Eligible, j.GPUs, j.Held = "4", "0", 2, j.Start, 2, []Held{{"gn2", "gpu:h100:2(IDX:1-2)"}}
		}),
		job("5", func(j *Job) {
			pending(j, "JobHeldUser")
			j.Priority, j.GPUs = 0, 1000
		}),
		job("6", func(j *Job) { j.HetJobID, j.GPUs, j.Held = "6", 1, []Held{{"gn2", "gpu:h100:1(IDX:3)"}} }),
		job("7", func(j *Job) { j.HetJobID, j.NodeList, j.Held = "6", "gn1", []Held{{"gn1", ""}} }),
		job("4", func(j *Job) {
			pending(j, "JobArrayTaskLimit")
			j.ArrayJobID, j.Tasks, j.GPUs, j.Submit = "4", 3, 2, at("2026-11-15T23:01:24")
		}),
	}
	if diff := cmp.Diff(want, jobs); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// Catches a user who forges jobs of other users through line breaks in a name, a network, a
// comment, an account or a command line. The answer was recorded; see testdata.
func TestTextHostile(t *testing.T) {
	_, err := readJobs(t, "hostile.txt")
	if err == nil || !strings.Contains(err.Error(), "12 records of 8 jobs") {
		t.Errorf("got %v", err)
	}
}

// Catches an account that changes the QOS, and one that is believed although the line can be
// read in two ways.
func TestAccount(t *testing.T) {
	f := func(line, account, qos string) {
		t.Helper()
		r := record{lines: []string{line}, at: map[string]int{"Priority": 0}}
		if a, q := r.account(); a != account || q != qos {
			t.Errorf("%q: account %q and QOS %q, want %q and %q", line, a, q, account, qos)
		}
	}
	f("   Priority=1 Nice=0 Account=ml QOS=normal", "ml", "normal")
	f("   Priority=1 Nice=0 Account=(null) QOS=(null) WCKey=x", "", "")
	f("   Priority=1 Nice=0 Account=deep learning QOS=normal WCKey=x y", "deep learning", "normal")
	f("   Priority=1 Nice=0 Account=free QOS=gold QOS=normal", "", "")
	f("   Priority=1 Nice=0 Account=ml QOS=normal WCKey=x QOS=gold", "", "")
	f("   Priority=1 Nice=0 Account=first line", "", "")
}
