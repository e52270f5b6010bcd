//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/demo"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/node"
)

// demoNow is when the tests' fleets have lived for demo.Age.
var demoNow = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// demoPrices are the prices of the demo, for tests of other commands.
var demoPrices = demo.Prices()

// Flags that would expose the demo or have no effect are rejected.
func TestDemoFlags(t *testing.T) {
	t.Parallel()
	f := func(d demoFlags, want string) {
		t.Helper()
		d.now = time.Now
		err := d.check()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
	f(demoFlags{listen: "localhost:9500", nodes: 7, history: time.Hour}, "")
	f(demoFlags{listen: "127.0.0.1:0", nodes: 1}, "")
	f(demoFlags{listen: "[::1]:9500", nodes: 1}, "")
	f(demoFlags{listen: "0.0.0.0:9500", nodes: 1}, "must be a loopback address")
	f(demoFlags{listen: ":9500", nodes: 1}, "must be a loopback address")
	f(demoFlags{listen: "9500", nodes: 1}, "must be like localhost:9500")
	f(demoFlags{listen: "localhost:9500"}, "--nodes must be between 1 and 7")
	f(demoFlags{listen: "localhost:9500", nodes: 8}, "--nodes must be between 1 and 7")
	f(demoFlags{listen: "localhost:9500", nodes: 1, history: 48 * time.Hour}, "--history must be")
	f(demoFlags{listen: "localhost:9500", nodes: 1, hardware: hardware{library: "/nonsense"}}, "/nonsense")
}

// output is the output of a demo so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// The demo prints the address of its page, has a history immediately, and removes its data.
func TestDemoRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := &demoFlags{listen: "localhost:0", nodes: 2, history: 40 * time.Minute, dir: dir, now: time.Now}
	d.root = t.TempDir() // no device of this machine
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out output
	done := make(chan error, 1)
	go func() { done <- d.run(ctx, &out) }()
	page := regexp.MustCompile(`Page +(http://\S+)/\n`)
	await.NoError(t, func() error {
		select {
		case err := <-done:
			t.Fatalf("the demo ended: %v\n%s", err, out.String())
		default:
		}
		if !strings.Contains(out.String(), "Ctrl-C") {
			return fmt.Errorf("the demo says nothing but\n%s", out.String())
		}
		return nil
	})
	url := page.FindStringSubmatch(out.String())
	if url == nil || !strings.Contains(out.String(), "SIMULATED: 16 devices on 2 nodes") {
		t.Fatalf("the demo does not say where its page is, or what:\n%s", out.String())
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 121 && !strings.Contains(line, os.Args[0]) {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
	ask := func(expr string, want string) {
		t.Helper()
		body := get(t, url[1]+"/api/v1/query?query="+expr)
		var answer struct {
			Data struct{ Result []struct{ Value [2]any } }
		}
		if err := json.Unmarshal(body, &answer); err != nil || len(answer.Data.Result) != 1 || answer.Data.Result[0].Value[1] != want {
			t.Errorf("%s is %s, want %s (%v)", expr, body, want, err)
		}
	}
	ask("count(gpu_up)", "16")
	demoAgrees(t, url[1], time.Now().Add(-5*time.Minute).Truncate(time.Minute))
	demoQueueAgrees(t, url[1], time.Now().Add(-5*time.Minute).Truncate(time.Minute))
	ask("count(count+by(gpu_uuid)(gpu_up+offset+30m))", "16")
	if body := get(t, url[1]+"/"); !bytes.Contains(bytes.ToLower(body), []byte("<html")) {
		t.Errorf("there is no page: %.200s", body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the demo ends with %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v (%v)", left, err)
	}
}

// demoAgrees compares the headline of the page with the queries that the demo offers and with
// its report, at one moment of the history.
func demoAgrees(t *testing.T, url string, at time.Time) {
	t.Helper()
	from := at.Add(-20 * time.Minute)
	period := fmt.Sprintf("?from=%d&to=%d&at=%d", from.Unix(), at.Unix(), at.Unix())
	var page struct{ Headline map[string]float64 }
	var bill struct {
		Total struct{ Time, Cost, Energy float64 }
	}
	for path, into := range map[string]any{"/api/page/fleet" + period: &page, "/api/page/cost" + period: &bill} {
		if err := json.Unmarshal(get(t, url+path), into); err != nil {
			t.Fatal(path, err)
		}
	}
	ask := func(expr string) float64 {
		var answer struct {
			Data struct{ Result []struct{ Value [2]any } }
		}
		body := get(t, fmt.Sprintf("%s/api/v1/query?query=%s&time=%d", url, expr, at.Unix()))
		if err := json.Unmarshal(body, &answer); err != nil || len(answer.Data.Result) != 1 {
			t.Fatalf("%s: %s (%v)", expr, body, err)
		}
		v, err := strconv.ParseFloat(answer.Data.Result[0].Value[1].(string), 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	file := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(file, demoPrices, 0o600); err != nil {
		t.Fatal(err)
	}
	o := report{period: billing.Period{From: from.Format(time.RFC3339), To: at.Format(time.RFC3339)}, by: []string{"team"}, output: "json", prices: file, store: storeFlags{url: url}}
	var out bytes.Buffer
	if err := o.run(t.Context(), &out, io.Discard, "cost", time.Now()); err != nil {
		t.Fatal(err)
	}
	var told struct{ Total map[string]any }
	if err := json.Unmarshal(out.Bytes(), &told); err != nil {
		t.Fatal(err)
	}
	total := map[string]float64{}
	for name, v := range told.Total {
		total[name], _ = v.(float64)
	}
	got := map[string]float64{
		"watts": ask("sum(gpu_power_draw_watts)"), "utilization": ask("avg(gpu_utilization_ratio)"), "gpus": ask("count(gpu_up)"),
		"device seconds": total["used_seconds"] + total["idle_seconds"] + total["unmeasured_seconds"] + total["unallocated_seconds"],
		"money":          total["used_cost"] + total["idle_cost"] + total["unmeasured_cost"] + total["unallocated_cost"] + total["energy_cost"], "joules": total["energy_joules"],
	}
	want := map[string]float64{
		"watts": page.Headline["watts"], "utilization": page.Headline["utilization"], "gpus": page.Headline["gpus"],
		"device seconds": bill.Total.Time, "money": bill.Total.Cost, "joules": bill.Total.Energy,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-9, 1e-5)); diff != "" {
		t.Errorf("the demo at %s (-page +queries and report):\n%s", at, diff)
	}
	// Each counter is rounded to a microsecond at both edges.
	if most := page.Headline["gpus"] * at.Sub(from).Seconds(); got["device seconds"] > most+1e-3 {
		t.Errorf("the demo has %v device seconds of %v possible", got["device seconds"], most)
	}
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v: %.300s", url, r.Status, err, body)
	}
	return body
}

// A hub shows what the node itself shows, whichever vendor: the same devices, owners and
// numbers.
func TestTopNodeAndHub(t *testing.T) {
	t.Parallel()
	price, err := cost.Parse(demoPrices)
	if err != nil {
		t.Fatal(err)
	}
	prices := pricing{price, price.Currency}
	for _, m := range demo.Fleet() {
		t.Run(m.Host, func(t *testing.T) {
			t.Parallel()
			store, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return demoNow }})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			to, err := demo.Into(store)
			if err != nil {
				t.Fatal(err)
			}
			n, err := demo.NewNode(m, demoNow.Add(-demo.Age), to, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			var tick node.Tick
			for _, at := range []time.Time{demoNow.Add(-20 * time.Second), demoNow.Add(-10 * time.Second), demoNow} {
				tick = n.Tick(t.Context(), at)
			}
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			want := (&thisMachine{price: prices}).snapshot(tick)
			got, err := askStore(t.Context(), store, fleet.NewReader(store, fleet.Options{Price: prices.prices.Hourly}), demoNow, prices)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []*tui.Snapshot{&want, &got} {
				s.From, s.Empty, s.Findings = "", "", nil // the reasons are the node's only
				for i := range s.Devices {
					s.Devices[i].More = nil
				}
			}
			if d := cmp.Diff(shownAs(want), shownAs(got)); d != "" {
				t.Errorf("node and hub differ (-node +hub):\n%s", d)
			}
		})
	}
}

// shownAs returns a snapshot as text.
func shownAs(s tui.Snapshot) string { return tui.New(tui.Options{Plain: true}).Text(s, 200) }
