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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/node"
)

// demoNow is when the tests' fleets have lived for demoAge.
var demoNow = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// lived makes the nodes of a fleet live through steps and returns them closed.
func lived(t *testing.T, to demoSink, fleet []machine, steps []time.Time) {
	t.Helper()
	var nodes []*demoNode
	for _, m := range fleet {
		n, err := newSimulatedNode(m, demoNow.Add(-demoAge), to, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	seedDemo(t.Context(), nodes, steps)
	if err := closeDemo(nodes); err != nil {
		t.Fatal(err)
	}
}

// Everything that people are told to look for is there, and all of it is called simulated.
func TestDemoSights(t *testing.T) {
	t.Parallel()
	metrics, logs := &consumertest.MetricsSink{}, &consumertest.LogsSink{}
	var steps []time.Time
	for at := demoNow.Add(-5 * time.Hour); !at.After(demoNow); at = at.Add(5 * time.Minute) {
		steps = append(steps, at)
	}
	lived(t, demoSink{metrics, logs}, demoFleet(), steps)
	type series struct{ name, host, gpu, workload string }
	last := map[series]float64{}
	devices := map[string]bool{}
	for _, md := range metrics.AllMetrics() {
		for _, rm := range md.ResourceMetrics().All() {
			attrs := rm.Resource().Attributes()
			if simulated, _ := attrs.Get("gpumeter.simulated"); !simulated.Bool() {
				t.Fatal("something of the demo is not called simulated")
			}
			host, _ := attrs.Get("host.name")
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					each(m, func(p pmetric.NumberDataPoint) {
						get := func(key string) string {
							v, ok := p.Attributes().Get(key)
							if !ok {
								return ""
							}
							return v.AsString()
						}
						devices[get("gpu.uuid")] = true
						last[series{m.Name(), host.Str(), get("gpu.index"), get("gpu.workload.name")}] = p.DoubleValue()
					})
				}
			}
		}
	}
	if len(devices) < 40 {
		t.Errorf("the fleet has %d devices, want 40 or so", len(devices))
	}
	for i := range 8 {
		if s := (series{"gpu.workload.active.time", "h100-02", fmt.Sprint(i), "segmentation-dev"}); last[s] != 0 || last[series{"gpu.allocation", s.host, s.gpu, s.workload}] != 1 {
			t.Errorf("the hoarder does not hold GPU %d, or works: %v s", i, last[s])
		}
	}
	thief := series{"gpu.workload.utilization", "h100-01", "5", "mallory"}
	if given, ok := last[series{"gpu.allocation", thief.host, thief.gpu, thief.workload}]; !ok || given != 0 || last[thief] == 0 {
		t.Errorf("the thief has %v of the device and uses %v", given, last[thief])
	}
	if n := last[series{"gpu.xid.errors", "h200-01", "7", ""}]; n == 0 {
		t.Error("the sick GPU has no XID")
	}
	if h := last[series{"gpu.health", "h200-01", "7", "mixtral-pretrain-2"}]; h != 0 {
		t.Errorf("the health of the sick GPU is %v", h)
	}
	var text strings.Builder
	for _, ld := range logs.AllLogs() {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					fmt.Fprintln(&text, r.EventName(), r.Body().AsString())
				}
			}
		}
	}
	for _, want := range []string{"gpu.xid", "gpu.workload.start", "gpu.workload.stop", "gpu.finding"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no event %s", want)
		}
	}
}

func each(m pmetric.Metric, f func(pmetric.NumberDataPoint)) {
	var points pmetric.NumberDataPointSlice
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		points = m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		points = m.Sum().DataPoints()
	default:
		return
	}
	for _, p := range points.All() {
		if !p.Flags().NoRecordedValue() && p.Timestamp() != pcommon.Timestamp(0) {
			f(p)
		}
	}
}

// Every simulated device has a price, and the file says that it is an example.
func TestDemoPrices(t *testing.T) {
	t.Parallel()
	p, err := cost.Parse(demoPrices)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(demoPrices, []byte("EXAMPLE NUMBERS")) {
		t.Error("the prices do not say that they are examples")
	}
	for _, m := range demoFleet() {
		n, err := newSimulatedNode(m, demoNow.Add(-demoAge), demoSink{metrics: consumertest.NewNop()}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		n.clock.Store(demoNow.UnixNano())
		for _, r := range n.view.Tick(t.Context(), demoNow).Readings {
			if _, ok := p.At(map[string]string{"gpu_model": r.ID.Model}, demoNow); !ok {
				t.Errorf("%s has no price", r.ID.Model)
			}
		}
		if err := n.close(); err != nil {
			t.Error(err)
		}
	}
}

// A query looks back for five minutes: a history with wider steps has holes.
func TestDemoSteps(t *testing.T) {
	t.Parallel()
	for _, history := range []time.Duration{0, time.Minute, time.Hour, 24 * time.Hour, 36 * time.Hour} {
		before := demoNow.Add(-history)
		for _, at := range demoSteps(demoNow, history) {
			if gap := at.Sub(before); gap < 0 || gap >= 5*time.Minute || !at.Before(demoNow) {
				t.Fatalf("%s: %s after %s", history, at, before)
			}
			before = at
		}
		if demoNow.Sub(before) > time.Minute {
			t.Errorf("%s: the last step is %s ago", history, demoNow.Sub(before))
		}
	}
}

// What would let others in, or does nothing, is refused.
func TestDemoFlags(t *testing.T) {
	t.Parallel()
	f := func(d demo, want string) {
		t.Helper()
		d.now = time.Now
		err := d.check()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
	f(demo{listen: "localhost:9500", nodes: 6, history: time.Hour}, "")
	f(demo{listen: "127.0.0.1:0", nodes: 1}, "")
	f(demo{listen: "[::1]:9500", nodes: 1}, "")
	f(demo{listen: "0.0.0.0:9500", nodes: 1}, "of this machine only")
	f(demo{listen: ":9500", nodes: 1}, "of this machine only")
	f(demo{listen: "9500", nodes: 1}, "must be like localhost:9500")
	f(demo{listen: "localhost:9500"}, "--nodes must be between 1 and 6")
	f(demo{listen: "localhost:9500", nodes: 7}, "--nodes must be between 1 and 6")
	f(demo{listen: "localhost:9500", nodes: 1, history: 48 * time.Hour}, "--history must be")
	f(demo{listen: "localhost:9500", nodes: 1, hardware: hardware{library: "/nonsense"}}, "/nonsense")
}

// output is what a demo has said so far.
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

// The demo says where its page is, has a history at once, and leaves nothing behind.
func TestDemoRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := &demo{listen: "localhost:0", nodes: 2, history: 40 * time.Minute, dir: dir, now: time.Now}
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
	ask("count(count+by(gpu_uuid)(gpu_up))", "16")
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
	for _, m := range demoFleet() {
		t.Run(m.host, func(t *testing.T) {
			t.Parallel()
			store, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return demoNow }})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			to, err := demoWriter(hubexporter.NewWriter(store, nil))
			if err != nil {
				t.Fatal(err)
			}
			n, err := newSimulatedNode(m, demoNow.Add(-demoAge), to, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			var tick node.Tick
			for _, at := range []time.Time{demoNow.Add(-20 * time.Second), demoNow.Add(-10 * time.Second), demoNow} {
				n.clock.Store(at.UnixNano())
				tick = n.view.Tick(t.Context(), at)
				n.feed.push(tick)
			}
			if err := n.close(); err != nil {
				t.Fatal(err)
			}
			want := snapshotOf(tick, prices)
			got, err := askStore(t.Context(), store, demoNow, prices)
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
