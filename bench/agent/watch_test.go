//go:build bench

package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/bench/usage"
)

// result is the cost of a program while it was measured.
type result struct {
	cpu       float64 // cores
	rss, anon float64 // MiB at the end
	series    int
	page      float64 // size of its page, kB
	p50, p99  time.Duration
	otlp      float64 // size of a compressed request, kB
}

// settle is how long a program may start up before it is measured.
const settle = 5 * time.Second

// Latencies are measured last, with more scrapes than usual: a percentile needs them, and they would
// dominate the cost of a program.
const (
	latencyEvery = 100 * time.Millisecond
	latencyFor   = 10 * time.Second
)

// watch runs c for the given time and scrapes its page at its interval.
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
	before, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		return result{}, fmt.Errorf("the program exited: %s", stderr.String())
	}
	start := time.Now()
	if _, err := scrapes(ctx, c.page, c.every, length); err != nil {
		return result{}, err
	}
	var r result
	after, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		return result{}, fmt.Errorf("the program exited: %s", stderr.String())
	}
	r.cpu = (after - before).Seconds() / time.Since(start).Seconds()
	if r.rss, r.anon, err = usage.Memory(cmd.Process.Pid); err != nil || c.page == "" {
		return r, err
	}
	took, err := scrapes(ctx, c.page, latencyEvery, latencyFor)
	if err != nil {
		return result{}, err
	}
	r.page, r.series = took.page, took.series
	r.p50, r.p99 = took.p50, took.p99
	return r, nil
}

// scrapes reads page for the given time. Without a page it only waits.
func scrapes(ctx context.Context, page string, every, length time.Duration) (result, error) {
	var r result
	if page == "" {
		time.Sleep(length)
		return r, nil
	}
	var took []time.Duration
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(every) {
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
