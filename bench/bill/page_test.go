//go:build bench

package bill

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/gpumeter/gpumeter/bench/usage"
)

var served = regexp.MustCompile(`(http://[^/\s"]+:\d+)`)

// page opens the Cost page of the shipped binary over a period, five times: the first after a start, when
// nothing is in memory.
func page(t *testing.T, dir string, from, to time.Time) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(file, []byte(prices), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../../bin/gpumeter", "hub", "--listen", "localhost:0", "--data-dir", dir, "--prices", file, "--retention", fmt.Sprint(retention))
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make build", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	url := ""
	lines := bufio.NewScanner(out)
	for url == "" && lines.Scan() {
		if m := served.FindStringSubmatch(lines.Text()); m != nil {
			url = m[1]
		}
	}
	go func() {
		for lines.Scan() { // the hub must not block
			t.Log(lines.Text())
		}
	}()
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), o...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Navigate(url+"/"), chromedp.WaitVisible("h1")); err != nil {
		t.Fatal(err)
	}
	text := ""
	for range 5 {
		text += " " + look(t, ctx, fmt.Sprintf("%s/#/cost?from=%d&to=%d", url, from.Unix(), to.Unix()))
	}
	rss, _, err := usage.Memory(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s; the hub has %.0f MiB", text, rss)
}

// look returns how long the page took until its headline and teams, and until its waste.
func look(t *testing.T, ctx context.Context, url string) string {
	t.Helper()
	begin := time.Now()
	err := chromedp.Run(ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(url), chromedp.WaitVisible(".parts"), chromedp.WaitVisible("table"))
	if err != nil {
		t.Fatal(err)
	}
	shown := time.Since(begin)
	if err := chromedp.Run(ctx, chromedp.WaitNotPresent(`[aria-label="Loading the waste"]`)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%.2f s (with waste %.2f s)", shown.Seconds(), time.Since(begin).Seconds())
}
