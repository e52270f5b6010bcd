//go:build bench

package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// result is what a program cost while it was watched.
type result struct {
	cpu       float64 // cores
	rss, anon float64 // MB at the end
	series    int
	page      float64 // kB of its page
	p50, p99  time.Duration
}

// settle is how long a program may start up before it is watched.
const settle = 5 * time.Second

// scrapeEvery is how often a page is read meanwhile, more often than anyone does so
// that there is a percentile to speak of.
const scrapeEvery = 250 * time.Millisecond

// watch runs c and reads its page for the given time.
func watch(ctx context.Context, c contender, length time.Duration) (result, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	time.Sleep(settle)
	before, err := cpuTime(cmd.Process.Pid)
	if err != nil {
		return result{}, fmt.Errorf("it ended: %s", stderr.String())
	}
	start := time.Now()
	r, err := scrapes(ctx, c.page, length)
	if err != nil {
		return result{}, err
	}
	after, err := cpuTime(cmd.Process.Pid)
	if err != nil {
		return result{}, fmt.Errorf("it ended: %s", stderr.String())
	}
	r.cpu = (after - before).Seconds() / time.Since(start).Seconds()
	r.rss, r.anon, err = memory(cmd.Process.Pid)
	return r, err
}

// scrapes reads page for the given time. Without a page it only waits.
func scrapes(ctx context.Context, page string, length time.Duration) (result, error) {
	var r result
	if page == "" {
		time.Sleep(length)
		return r, nil
	}
	var took []time.Duration
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(scrapeEvery) {
		start := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
		if err != nil {
			return r, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return r, err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return r, err
		}
		took = append(took, time.Since(start))
		r.page, r.series = float64(len(body))/1000, countSeries(body)
	}
	slices.Sort(took)
	r.p50, r.p99 = took[len(took)/2], took[len(took)*99/100]
	return r, nil
}

func countSeries(page []byte) (n int) {
	for line := range bytes.Lines(page) {
		if line[0] != '#' && line[0] != '\n' {
			n++
		}
	}
	return n
}

// cpuTime returns the user and system time of a process and the children it waited for.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold blanks; utime is the 12th field after it.
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, f := range fields[11:15] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// memory returns the resident memory of a process, all and anonymous, in MB.
func memory(pid int) (rss, anon float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f", &kb); n == 1 {
			rss = kb / 1000
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f", &kb); n == 1 {
			anon = kb / 1000
		}
	}
	return rss, anon, nil
}
