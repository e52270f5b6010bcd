package hub

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

// TestMain runs the tests, or the store that TestKill kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("GPUMETER_HUB_VICTIM"); dir != "" {
		victim(dir, os.Stdout)
		return
	}
	if dir := os.Getenv("GPUMETER_HUB_REPAIRS"); dir != "" {
		fmt.Println("repairing")
		plan, err := disk.Examine(dir)
		if err == nil {
			_, err = plan.Apply(time.Now())
		}
		fmt.Println("done", err)
		return
	}
	m.Run()
}

const victimSeries = 30

// victim writes samples in several concurrent requests, in order and out of order, and
// reports which were acknowledged.
func victim(dir string, w io.Writer) {
	s, err := Open(dir, Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	var next atomic.Int64
	next.Store(time.Now().UnixMilli() - 3_600_000)
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				at := next.Add(1000)
				if rand.IntN(4) == 0 {
					at -= 6*3_600_000 - 1
				}
				a := s.Appender(context.Background())
				for i := range victimSeries {
					a.Gauge(name("g", "i", fmt.Sprint(i)), at, float64(at))
				}
				r, err := a.Commit()
				if err != nil || r.Refused > 0 {
					fmt.Fprintln(os.Stderr, r, err)
					return
				}
				mu.Lock()
				fmt.Fprintln(w, at)
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

// Catches a Commit that returns before the data survives a kill, and a kill that damages
// the store.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := map[int64]bool{}
	log := &strings.Builder{}
	for range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "GPUMETER_HUB_VICTIM="+dir)
		cmd.Stderr = log
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n, stop := 0, 20+rand.IntN(200); lines.Scan(); n++ {
			var at int64
			if _, err := fmt.Sscan(lines.Text(), &at); err == nil {
				kept[at] = true
			}
			if n == stop {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		log.WriteString("---\n")
	}
	s, err := Open(dir, Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	series, err := s.Raw(t.Context(), "g", time.Now().Add(-24*time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, x := range series {
		has := map[int64]bool{}
		for _, p := range x.Points {
			has[p.Time.UnixMilli()] = p.Value == float64(p.Time.UnixMilli())
		}
		for at := range kept {
			if !has[at] {
				lost++
				if x.Labels["i"] == "0" {
					t.Log("lost", time.UnixMilli(at).UTC())
				}
			}
		}
	}
	if lost > 0 || len(series) != victimSeries {
		t.Errorf("%d of %d samples of %d series are lost\n%s", lost, len(kept)*victimSeries, len(series), log)
	}
}
