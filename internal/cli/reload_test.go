//go:build linux

package cli_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

var reloads = flag.Int("reloads", 20, "how often TestReload changes the configuration")

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
	await.NoError(a.t, func() error {
		if n := a.count(msg); n != want {
			return fmt.Errorf("%d lines %q, want %d", n, msg, want)
		}
		return nil
	})
}

// created finds out in a dump of goroutines who created one.
var created = regexp.MustCompile(`(?m)^created by (\S+)`)

// passing created goroutines that live as long as a reading or a request does.
var passing = []string{
	"github.com/gpumeter/gpumeter/internal/node.(*unit).ask",
	"github.com/gpumeter/gpumeter/internal/node.(*source).start",
	"net/http.setRequestCancel",
	"net/http.(*Transport).roundTrip",
	"net/http.(*Transport).startDialConnForLocked",
}

// goroutines kills the agent and returns how many goroutines it had, by who created them.
func (a *agent) goroutines() map[string]int {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		a.t.Fatal(err)
	}
	<-a.ended
	list := map[string]int{}
	for _, m := range created.FindAllStringSubmatch(a.log.String(), -1) {
		list[m[1]]++
	}
	if len(list) == 0 {
		a.t.Error("no goroutine is listed")
	}
	for _, who := range passing {
		delete(list, who)
	}
	return list
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
	reloading = "Reloading the configuration"
	serving   = "serving metrics"
	invalid   = "The changed configuration is not valid: the agent keeps the current one"
)

// busyConfig returns the configuration of an agent that reads GPUs ten times a second, serves them
// and sends them to b through a queue on disk: 8 GPUs, and 24 where make e2e asks for many reloads.
// With more GPUs than a busy machine keeps up with, the agent loses ticks, as it must.
func busyConfig(t *testing.T, b *backend) string {
	t.Helper()
	gpus := 8
	if *reloads > 20 {
		gpus = 24
	}
	// Each reading finds one byte more in use: the GPU itself numbers the ticks.
	host := nvmltest.New(t, fmt.Sprintf("gpus %d\ngpu 0 memory-step 1\n", gpus))
	return fmt.Sprintf(`
extensions:
  gpu: {interval: 100ms, nvidia_library: %q, host_name: host}
  file_storage: {directory: %q, fsync: false}
receivers:
  gpu: {max_series: 20000}
exporters:
  page: {endpoint: "localhost:0"}
  otlp_http:
    endpoint: "http://%s"
    compression: none
    idle_conn_timeout: 1s # the Collector's client leaves its connection to be closed when it was idle
    sending_queue: {storage: file_storage, num_consumers: 1, sizer: bytes, queue_size: 268435456}
    retry_on_failure: {max_elapsed_time: 0}
service:
  extensions: [gpu, file_storage]
  pipelines:
    metrics: {receivers: [gpu], exporters: [page, otlp_http]}
`, host.Library, t.TempDir(), b.addr)
}

// A reload under load loses no tick, repeats none, and leaks nothing. An invalid file changes
// nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	b.up(false)
	good := busyConfig(t, b)
	file := write(t, "config.yaml", good)
	a := startWith(t, nil, "--config", file, "--log-level", "debug")
	b.waitTicks("", 5)
	before := a.open()
	if testing.Short() {
		*reloads = min(*reloads, 10)
	}
	// The last file is invalid: once it is refused, nothing is left to reload.
	for i := 1; i <= *reloads; i++ {
		text, answer := strings.Replace(good, "max_series: 20000", fmt.Sprintf("max_series: %d", 20000+i), 1), reloading
		if i%10 == 0 {
			text, answer = strings.Replace(text, "max_series", "max_serious", 1), invalid
		}
		before := a.count(answer)
		rewrite(t, file, text)
		if i%10 != 5 || i > 20 { // now and then it finds out by itself
			a.hangup()
		}
		// A file that the agent found before the signal came is answered twice.
		await.NoError(t, func() error {
			if a.count(answer) == before {
				return fmt.Errorf("change %d: no new line %q, %d before", i, answer, before)
			}
			if n, want := a.count(serving), a.count(reloading)+1; n != want {
				return fmt.Errorf("change %d: %d lines %q, want %d", i, n, serving, want)
			}
			return nil
		})
	}
	due := a.ledger()
	await.NoError(t, func() error { return b.owes(due) })
	await.NoError(t, func() error {
		if after := a.open(); after > before {
			return fmt.Errorf("%d files are open, %d were before %d reloads", after, before, *reloads)
		}
		return nil
	})
	is := a.goroutines()
	b.checkNumbers(due)

	other := newBackend(t)
	other.up(false)
	fresh := startConfig(t, busyConfig(t, other))
	other.waitTicks("", 5)
	want := fresh.goroutines()
	// A connection has one that reads and one that writes. Of one that ends they do not end
	// at the same moment: half a connection is none.
	const dialed = "net/http.(*Transport).dialConn"
	want[dialed], is[dialed] = want[dialed]/2, is[dialed]/2
	if diff := cmp.Diff(want, is); diff != "" {
		t.Errorf("goroutines (-of a fresh agent +after %d reloads):\n%s", *reloads, diff)
	}
}

// checkNumbers checks that ticks that GPU 0 has numbered came once each and without a gap,
// at least those of due.
func (b *backend) checkNumbers(due ledger) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	ticks := slices.Clone(b.got[""])
	slices.SortFunc(ticks, func(x, y tick) int { return x.time.Compare(y.time) })
	b.t.Logf("%d ticks, %d of them before the last reload was done", len(ticks), len(due))
	last := -1 // the last tick with a number: a first reading that takes too long has none
	for i, tick := range ticks {
		if i > 0 && tick.time.Equal(ticks[i-1].time) {
			b.t.Errorf("the tick of %s came twice", tick.time)
		}
		if tick.lost != 0 {
			b.t.Errorf("at %s the agent had lost %v ticks", tick.time, tick.lost)
		}
		if tick.up[0] == 0 { // a reading that took too long is of a later tick
			continue
		}
		if last >= 0 {
			if n, most := tick.used-ticks[last].used, float64(i-last); n > most {
				b.t.Errorf("GPU 0 was read %v times between %s and %s, for %v ticks", n, ticks[last].time, tick.time, most)
			}
		}
		last = i
	}
}

// An invalid file changes nothing, and is logged once.
func TestReloadInvalid(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	good := strings.Replace(sink.config("", 100*time.Millisecond, ""), `nvidia_library: ""`, "simulate: p150a", 1)
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

// A valid configuration that cannot start makes the agent roll back.
func TestReloadCannotRun(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	good := strings.Replace(sink.config("", 100*time.Millisecond, ""), `nvidia_library: ""`, "simulate: p150a", 1)
	file := write(t, "config.yaml", good)
	a := startWith(t, nil, "--config", file)
	a.waitCount(serving, 1)
	taken := strings.TrimPrefix(sink.URL, "http://")
	for i := 1; i <= 2; i++ { // once more, by a Collector that is the second
		rewrite(t, file, strings.Replace(good, "localhost:0", taken, 1)+strings.Repeat("\n", i))
		a.waitCount("The changed configuration failed to start: the agent returns to the previous one", i)
		if reason := a.waitLog("The changed configuration failed to start: the agent returns to the previous one")["reason"].(string); !strings.Contains(reason, "cannot listen on "+taken) {
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
