package slurm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/programtest"
)

// fake creates a directory with tools that are these shell scripts. Each run appends a line
// to the file runs.
func fake(t *testing.T, squeue, scontrol string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, body := range map[string]string{"squeue": squeue, "scontrol": scontrol} {
		if body == "" {
			continue
		}
		text := fmt.Sprintf("#!/bin/sh\nPATH=/bin:/usr/bin\necho %s \"$@\" >>%s/runs\n%s\n", name, dir, body)
		programtest.Write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func runs(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

const (
	oneJob  = `echo '{"jobs":[{"job_id":7,"nodes":"gn1","job_state":"RUNNING"}]}'`
	oneText = "cat <<'E'\nlast_update_time=2026-11-15T02:17:02, records=1\nJobId=7 JobName=a\n   UserId=u(1) GroupId=g(1)\n   Priority=1 Account=a QOS=q\n   JobState=RUNNING\n" +
		"   Requeue=1\n   RunTime=1\n   SubmitTime=1\n   StartTime=1\n   SuspendTime=None\n   Partition=gpu\n   ReqNodeList=(null)\n   NodeList=gn1\n   NumNodes=1\n   Socks/Node=*\n   MinCPUsNode=1\nE"
	jsonRun = "squeue --json --local --all --states=running,suspended,completing,configuring,stopped,resizing,signaling,stage_out"
	textRun = "scontrol --verbose --local --all --details show job"
)

// ask queries some times and returns the job ids, or the error.
func ask(t *testing.T, dir string, times int) []string {
	t.Helper()
	c := newCommand(filepath.Join(dir, "scontrol"), "/etc/x.conf", "gn1")
	var out []string
	for range times {
		jobs, err := c.ask(t.Context())
		s := ""
		for _, j := range jobs {
			s += j.ID
		}
		if err != nil {
			s = strings.ReplaceAll(err.Error(), dir, "")
		}
		out = append(out, s)
	}
	return out
}

// A tool without JSON support costs one failure, once. No query runs two tools.
func TestCommand(t *testing.T) {
	f := func(name, squeue, scontrol string, said, ran []string) {
		t.Helper()
		dir := fake(t, squeue, scontrol)
		if diff := cmp.Diff(said, ask(t, dir, len(said))); diff != "" {
			t.Errorf("%s, answers (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(ran, runs(t, dir)); diff != "" {
			t.Errorf("%s, runs (-want +got):\n%s", name, diff)
		}
	}
	f("JSON", oneJob, oneText, []string{"7", "7"}, []string{jsonRun, jsonRun})
	f("no JSON", "echo \"squeue: unrecognized option '--json'\" >&2; exit 1", oneText,
		[]string{"squeue: squeue: unrecognized option '--json'", "7", "7"}, []string{jsonRun, textRun, textRun})
	f("no plugin", "echo 'squeue: error: Unable to find plugin: serializer/json' >&2; exit 1", oneText,
		[]string{"squeue: squeue: error: Unable to find plugin: serializer/json", "7"}, []string{jsonRun, textRun})
	f("no squeue", "", oneText, []string{"7"}, []string{textRun})
	f("no scontrol", oneJob, "", []string{"7"}, []string{jsonRun})
	f("the controller is away", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", oneText,
		[]string{"squeue: slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "squeue: slurm_load_jobs error: Unable to contact slurm controller (connect failure)"},
		[]string{jsonRun, jsonRun})
	f("garbage", "echo garbage", oneText, []string{"squeue: answer is not JSON: invalid character 'g' looking for beginning of value"}, []string{jsonRun})
	f("nothing", "exit 3", oneText, []string{"squeue: exit status 3, answer is not JSON: EOF"}, []string{jsonRun})
	f("half an answer", `printf '{"jobs":[{"job_id":7'; exit 1`, oneText, []string{"squeue: exit status 1, answer is not JSON: unexpected EOF"}, []string{jsonRun})
}

// The agent's environment contains its own secrets, and variables that would change the
// output.
func TestCommandEnvironment(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "hunter2")
	t.Setenv("SQUEUE_STATES", "PD")
	dir := fake(t, "env >>${0%/*}/env; "+oneJob, "")
	ask(t, dir, 1)
	b, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"hunter2", "SQUEUE"} {
		if strings.Contains(string(b), s) {
			t.Errorf("has %s:\n%s", s, b)
		}
	}
	if !strings.Contains(string(b), "SLURM_CONF=/etc/x.conf\n") {
		t.Errorf("no slurm.conf:\n%s", b)
	}
}

// A tool that hangs is killed with everything it started, including a process that left its
// group and keeps the pipe open.
func TestCommandHangs(t *testing.T) {
	dir := fake(t, `cd ${0%/*}; sleep 100000 & echo $! >pid; setsid sh -c 'echo $$ >apart; mv apart left; exec sleep 100000' & sleep 100000`, oneText)
	c := newCommand(filepath.Join(dir, "scontrol"), "", "gn1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan error)
	go func() {
		_, err := c.ask(ctx)
		answered <- err
	}()
	number := func(name string) (pid int) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return pid
	}
	await.True(t, "a process that left the group", func() bool { return number("left") != 0 })
	t.Cleanup(func() { _ = syscall.Kill(number("left"), syscall.SIGKILL) })
	cancel()
	if err := <-answered; err == nil {
		t.Error("the canceled call returned jobs")
	}
	await.True(t, "the end of the process that the tool started", func() bool { // init has to reap it
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", number("pid")))
		return err != nil || strings.Contains(string(st), ") Z ")
	})
}

// An endless output is discarded, and text is tried instead.
func TestCommandTooLong(t *testing.T) {
	dir := fake(t, `printf '{"x":"'; exec yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa`, oneText)
	got := ask(t, dir, 2)
	if diff := cmp.Diff([]string{"squeue: answer too long: more than 64 MiB", "7"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// newCommand must not run a program that it finds by accident.
func TestCommandNone(t *testing.T) {
	if c := newCommand(filepath.Join(t.TempDir(), "scontrol"), "", "gn1"); c != nil {
		t.Errorf("%+v", c)
	}
}
