//go:build linux

package cli_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rewrite replaces a file as editors and Kubernetes do.
func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (a *agent) hangup() {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		a.t.Fatal(err)
	}
}

// count returns how many lines of the log have the message msg.
func (a *agent) count(msg string) (n int) {
	for _, e := range a.entries() {
		if e["msg"] == msg {
			n++
		}
	}
	return n
}

func (a *agent) waitCount(msg string, want int) {
	a.t.Helper()
	eventually(a.t, func() error {
		if n := a.count(msg); n != want {
			return fmt.Errorf("%d lines %q, want %d", n, msg, want)
		}
		return nil
	})
}

// goroutines kills the agent and returns how many goroutines it had.
func (a *agent) goroutines() int {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		a.t.Fatal(err)
	}
	<-a.ended
	n := strings.Count(a.log.String(), "\ngoroutine ")
	if n == 0 {
		a.t.Error("no goroutine is listed")
	}
	return n
}

// open returns how many files the agent has open.
func (a *agent) open() (files int) {
	a.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid))
	if err != nil {
		a.t.Fatal(err)
	}
	return len(list)
}

const (
	reloading = "reloading the configuration"
	serving   = "serving metrics"
	invalid   = "The changed configuration is not valid: the agent goes on with the one it has"
)

// Reloading under load loses no tick, repeats none, and leaves nothing behind.
func TestReload(t *testing.T) {
	t.Parallel()
	backend, other := newSink(t), newSink(t)
	config := func(s *sink, i int) string {
		text := s.config("", 100*time.Millisecond, fmt.Sprintf("max_series: %d", 20000+i))
		// The Collector's client leaves its connection to be closed when it was idle.
		text = strings.Replace(text, "compression: none", "compression: none, idle_conn_timeout: 1s", 1)
		return strings.Replace(text, `nvidia_library: ""`, "simulate: h200", 1)
	}
	file := write(t, "config.yaml", config(backend, 0))
	a, fresh := startWith(t, nil, "--config", file), startWith(t, nil, "--config", write(t, "config.yaml", config(other, 0)))
	a.waitCount(serving, 1)
	first := backend.wait(t, "anything", time.Time{}, 5, func(tick) bool { return true })
	before := a.open()
	const reloads = 20
	for i := 1; i <= reloads; i++ {
		rewrite(t, file, config(backend, i))
		if i%10 != 0 { // now and then it finds out by itself
			a.hangup()
		}
		a.waitCount(reloading, i)
		a.waitCount(serving, i+1)
	}
	backend.wait(t, "anything", first, 20, func(tick) bool { return true })
	if n := a.count(reloading); n != reloads {
		t.Errorf("reloaded %d times, want %d", n, reloads)
	}
	eventually(t, func() error {
		if after := a.open(); after > before+1 { // a connection may be on its way out
			return fmt.Errorf("%d files are open, %d were before %d reloads", after, before, reloads)
		}
		return nil
	})
	if was, is := fresh.goroutines(), a.goroutines(); is > was+3 { // those of a request
		t.Errorf("%d goroutines, %d of an agent without reloads", is, was)
	}
	// The clock of a loaded machine may miss a tick, of hundreds.
	ticks, missing := backend.all(), 0
	for i := 1; i < len(ticks); i++ {
		steps := int(ticks[i].time.Sub(ticks[i-1].time).Round(100*time.Millisecond) / (100 * time.Millisecond))
		if steps == 0 {
			t.Errorf("the tick of %s came twice", ticks[i].time)
		}
		missing += max(0, steps-1)
	}
	t.Logf("%d ticks, %d missing", len(ticks), missing)
	if missing > len(ticks)/50 {
		t.Errorf("%d of %d ticks are missing", missing, len(ticks))
	}
}

// A file that is not valid changes nothing, and is said once to be wrong.
func TestReloadInvalid(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	good := strings.Replace(sink.config("", 100*time.Millisecond, ""), `nvidia_library: ""`, "simulate: h200", 1)
	file := write(t, "config.yaml", good)
	a := startWith(t, nil, "--config", file)
	a.waitCount(serving, 1)
	f := func(n int, text, want string) {
		t.Helper()
		rewrite(t, file, text)
		a.waitCount(invalid, n)
		if reason := a.waitLog(invalid)["reason"].(string); !strings.Contains(reason, want) {
			t.Errorf("the reason is %q, want %q", reason, want)
		}
	}
	f(1, strings.Replace(good, "host_name", "hostname", 1), "the configuration has unknown keys: extensions::gpu::hostname")
	f(2, "extensions: {gpu:\n  - [", "the configuration is not valid YAML")
	time.Sleep(5 * time.Second) // two more looks at it
	a.waitCount(invalid, 2)
	a.hangup() // somebody asks, and is answered
	a.waitCount(invalid, 3)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	a.hangup()
	a.waitCount(invalid, 4)
	if n := a.count(reloading) + a.count(serving); n != 1 {
		t.Errorf("an invalid file made the pipelines start again: %d", n)
	}
	last := sink.all()[len(sink.all())-1].time
	sink.wait(t, "anything", last, 5, func(tick) bool { return true })
	rewrite(t, file, good+"\n# mended\n")
	a.waitCount(reloading, 1)
	a.waitCount(serving, 2)
	a.stop()
}

// What is valid and still cannot run makes the agent go back.
func TestReloadCannotRun(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	good := strings.Replace(sink.config("", 100*time.Millisecond, ""), `nvidia_library: ""`, "simulate: h200", 1)
	file := write(t, "config.yaml", good)
	a := startWith(t, nil, "--config", file)
	a.waitCount(serving, 1)
	taken := strings.TrimPrefix(sink.URL, "http://")
	for i := 1; i <= 2; i++ { // once more, by a Collector that is the second
		rewrite(t, file, strings.Replace(good, "localhost:0", taken, 1)+strings.Repeat("\n", i))
		a.waitCount("The changed configuration cannot run: the agent goes back to the one before", i)
		if reason := a.waitLog("The changed configuration cannot run: the agent goes back to the one before")["reason"].(string); !strings.Contains(reason, "cannot listen on "+taken) {
			t.Errorf("the reason is %q", reason)
		}
		a.waitCount(serving, i+1)
	}
	now := time.Now()
	sink.wait(t, "anything", now, 3, func(tick) bool { return true })
	rewrite(t, file, good+"\n")
	a.waitCount(serving, 4)
	a.stop()
}
