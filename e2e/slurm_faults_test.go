//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// rpcs returns the controller's number of requests of a kind, and since when it counts.
func (x *slurmTest) rpcs(kind string) (n int, since string) {
	x.t.Helper()
	out := x.run("sdiag")
	if m := regexp.MustCompile(kind + `\s+\(\s*\d+\) count:(\d+)`).FindStringSubmatch(out); m != nil {
		n, _ = strconv.Atoi(m[1])
	}
	if m := regexp.MustCompile(`Data since\s+(.*)`).FindStringSubmatch(out); m != nil {
		since = m[1]
	}
	if since == "" {
		x.t.Fatalf("sdiag says\n%s", out)
	}
	return n, since
}

// Catches monitoring that loads the controller of a large cluster: each agent requests jobs once per refresh
// and nothing else, and does not reset statistics.
func (x *slurmTest) rate() {
	kinds := []string{"REQUEST_JOB_INFO", "REQUEST_NODE_INFO", "REQUEST_PARTITION_INFO", "REQUEST_FED_INFO", "REQUEST_JOB_INFO_SINGLE", "REQUEST_STATS_RESET"}
	before := map[string]int{}
	var since string
	for _, kind := range kinds {
		before[kind], since = x.rpcs(kind)
	}
	began, runs := time.Now(), len(x.toolRuns(time.Time{}))
	const rounds = 4
	time.Sleep(rounds * slurmRefresh) // the rate over time is what is measured
	for _, kind := range kinds {
		after, again := x.rpcs(kind)
		if again != since {
			x.t.Errorf("the controller counts since %q, not %q", again, since)
		}
		asked, most := after-before[kind], 0
		if kind == "REQUEST_JOB_INFO" {
			most = len(x.agents) * (int(time.Since(began)/slurmRefresh) + 1)
		}
		if asked > most {
			x.t.Errorf("%d of %s in %s, want at most %d", asked, kind, time.Since(began), most)
		}
		if kind == "REQUEST_JOB_INFO" && asked < rounds { // half of the expected number: the machine may be busy
			x.t.Errorf("%d of %s in %s, does any agent send requests?", asked, kind, time.Since(began))
		}
	}
	x.checkTools(began)
	if n := len(x.toolRuns(time.Time{})); n == runs {
		x.t.Error("the first agent has run no tool")
	}
}

// toolRuns returns the lines that the tools logged since a time.
func (x *slurmTest) toolRuns(since time.Time) []string {
	x.t.Helper()
	text, err := os.ReadFile(x.tools + ".log")
	if err != nil {
		x.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		seconds, _, _ := strings.Cut(line, " ")
		if f, err := strconv.ParseFloat(seconds, 64); err == nil && time.UnixMicro(int64(f*1e6)).After(since) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// checkTools fails the test if the first agent ran more tools since a time than allowed, or two at once.
func (x *slurmTest) checkTools(since time.Time) {
	x.t.Helper()
	lines := x.toolRuns(since)
	if most := int(time.Since(since)/slurmRefresh) + 1; len(lines) > most {
		x.t.Errorf("%d tools were run in %s, want at most %d:\n%s", len(lines), time.Since(since), most, strings.Join(lines, "\n"))
	}
	for _, line := range lines {
		if strings.HasSuffix(line, "twice") {
			x.t.Errorf("two tools ran at once: %s", line)
		}
	}
}

// away checks that nothing is lost while the controller does not answer: labels stay and are reported as
// stale.
func (x *slurmTest) away(began time.Time) {
	x.t.Helper()
	for node := range slurmNodes {
		x.expectStatus(node, "slurm_controller", "stale")
	}
	x.expectHeld()
	x.expectUp(0)
	eventually(x.t, "the series of the cluster are gone", func() error { // they would be stale
		if got := x.db.rounded(x.t, `{__name__=~"slurm_(job|node|gpu)_count", `+pulled+`}`, time.Now()); len(got) > 0 {
			return fmt.Errorf("still %v", got)
		}
		return nil
	})
	time.Sleep(2 * slurmRefresh) // to count the requests
	x.expectHeld()
	x.checkTools(began)
	x.checkSampling(began)
}

func (x *slurmTest) back() {
	x.t.Helper()
	for node := range slurmNodes {
		x.expectStatus(node, "slurm_controller", "ok")
	}
	x.expectHeld()
	x.expectUp(1)
}

// Catches ticks or labels lost while the controller hangs.
func (x *slurmTest) hung() {
	began := time.Now()
	x.t.Cleanup(func() { _ = x.parent.controller.cmd.Process.Signal(syscall.SIGCONT) }) // so that it can be stopped
	x.signal(x.parent.controller, syscall.SIGSTOP)
	x.away(began)
	x.signal(x.parent.controller, syscall.SIGCONT)
	x.back()
}

// Catches ticks or labels lost while the controller and slurmrestd are down.
func (x *slurmTest) killed() {
	began := time.Now()
	for _, p := range []*process{x.parent.controller, x.parent.restd} {
		x.signal(p, syscall.SIGKILL)
		<-p.done
	}
	x.away(began)
	x.restart()
	x.back()
}

func (x *slurmTest) restart() {
	x.t.Helper()
	x.parent.controller = x.start.controller(x.parent.t)
	x.parent.restd = x.start.restd(x.parent.t)
}

// Catches ticks or labels lost while another server answers in place of the controller and slurmrestd.
func (x *slurmTest) garbage() {
	began := time.Now()
	for _, p := range []*process{x.parent.controller, x.parent.restd} {
		x.signal(p, syscall.SIGKILL)
		<-p.done
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+x.ports.controller)
	if err != nil {
		x.t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan struct{}, 1000)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked <- struct{}{}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				_, _ = conn.Write([]byte("\x00\x00\x00\x20" + strings.Repeat("HTTP/1.1 418 {\"jobs\": [", 20)))
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	_ = os.Remove(x.rest)
	socket, err := net.Listen("unix", x.rest)
	if err != nil {
		x.t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"jobs": [{"job_id": 1, "job_state": {"job_state": [[[`)
	})}
	go server.Serve(socket) // ends with Close
	defer server.Close()
	x.away(began)
	if len(asked) == 0 {
		x.t.Error("no agent queried the server in place of the controller")
	}
	l.Close()
	server.Close()
	x.restart()
	x.back()
}

func (x *slurmTest) signal(p *process, s syscall.Signal) {
	x.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		x.t.Fatal(err)
	}
}

// checkSampling fails the test if an agent was blocked since a time.
func (x *slurmTest) checkSampling(since time.Time) {
	x.t.Helper()
	for _, node := range slurmNodes {
		ticks, err := x.db.samples(fmt.Sprintf(`gpu_energy_joules_total{gpu_index="0", host_name=%q, %s}`, node, pushed))
		if err != nil {
			x.t.Fatal(err)
		}
		n, gap, last := 0, time.Duration(0), since
		for _, s := range ticks {
			if s.at.After(since) {
				n++
				gap, last = max(gap, s.at.Sub(last)), s.at
			}
		}
		if want := int(0.8 * time.Since(since).Seconds() / slurmInterval.Seconds()); n < want || gap > 3*slurmInterval {
			x.t.Errorf("%d ticks of %s in %s, want at least %d, and none for %s", n, node, time.Since(since).Round(time.Second), want, gap)
		}
	}
}
