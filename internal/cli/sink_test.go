//go:build linux

package cli_test

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpumeter/gpumeter/internal/await"
)

// sink is an OTLP backend: what a page cannot tell, the time of each tick, it can.
type sink struct {
	*httptest.Server

	mu    sync.Mutex
	ticks []tick
	ended map[string]bool // metric and pod of each series that ended
}

// tick is one batch as the sink got it.
type tick struct {
	time    time.Time
	arrived time.Time
	up      map[int64]float64 // gpu.up, by index of the GPU
	points  map[int64]int     // other points, by index of the GPU
	total   int               // points of whatever
	used    float64           // gpu.memory.used of GPU 0
	own     bool              // of the gpu receiver, whose ticks all have gpumeter.ticks.lost
	lost    float64           // which is that
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{ended: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		req := pmetricotlp.NewExportRequest()
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = req.UnmarshalProto(body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if isTick(req.Metrics()) {
			s.ticks = append(s.ticks, newTick(req.Metrics(), now))
		}
		s.end(req.Metrics())
	}))
	t.Cleanup(s.Close)
	return s
}

// isTick reports whether a batch is not of an inference engine, each of which has batches of its own.
func isTick(md pmetric.Metrics) bool {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			if strings.HasSuffix(sm.Scope().Name(), "/inferencereceiver") {
				return false
			}
		}
	}
	return true
}

func (s *sink) end(md pmetric.Metrics) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range points(m).All() {
					pod := p.Attributes().AsRaw()["k8s.pod.name"]
					if pod == nil {
						pod = ""
					}
					if p.Flags().NoRecordedValue() {
						s.ended[fmt.Sprint(m.Name(), " ", pod)] = true
					}
				}
			}
		}
	}
}

func newTick(md pmetric.Metrics, now time.Time) tick {
	t := tick{arrived: now, up: map[int64]float64{}, points: map[int64]int{}}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range points(m).All() {
					t.add(m.Name(), p)
				}
			}
		}
	}
	return t
}

func (t *tick) add(name string, p pmetric.NumberDataPoint) {
	t.total++
	t.time = p.Timestamp().AsTime()
	index, ok := p.Attributes().Get("gpu.index")
	switch {
	case p.Flags().NoRecordedValue(): // the series has ended
	case name == "gpu.allocation" || strings.HasPrefix(name, "gpu.unallocated") || strings.HasPrefix(name, "gpu.workload."): // a device that is lost is still held
	case name == "gpumeter.ticks.lost":
		t.own, t.lost = true, p.DoubleValue()
	case !ok:
	case name == "gpu.up":
		t.up[index.Int()] = p.DoubleValue()
	default:
		if name == "gpu.memory.used" && index.Int() == 0 {
			t.used = p.DoubleValue()
		}
		t.points[index.Int()]++
	}
}

// points returns the points of a metric, none of a histogram: no device has one.
func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints()
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	}
	return pmetric.NewNumberDataPointSlice()
}

// all returns the ticks so far, in the order of their time.
func (s *sink) all() []tick {
	s.mu.Lock()
	defer s.mu.Unlock()
	ticks := slices.Clone(s.ticks)
	slices.SortFunc(ticks, func(a, b tick) int { return cmp.Compare(a.time.UnixNano(), b.time.UnixNano()) })
	return ticks
}

// wait waits until n ticks since the given moment are as ok wants them, and returns
// the time of the last.
func (s *sink) wait(t *testing.T, what string, since time.Time, n int, ok func(tick) bool) (last time.Time) {
	t.Helper()
	await.NoError(t, func() error {
		found := 0
		for _, tick := range s.all() {
			if tick.time.After(since) && ok(tick) {
				found, last = found+1, tick.time
			}
			if found == n {
				return nil
			}
		}
		return fmt.Errorf("%d ticks of %d with %s", found, n, what)
	})
	return last
}

// config returns a configuration that sends to s what the library shows, and serves it
// as a page, too. receiver are more keys of the receiver.
func (s *sink) config(library string, interval time.Duration, receiver string) string {
	return fmt.Sprintf(`
extensions:
  gpu: {interval: %s, nvidia_library: %q, host_name: host}
receivers:
  gpu: {%s}
exporters:
  page: {endpoint: "localhost:0"}
  otlp_http: {endpoint: %q, compression: none, sending_queue: {enabled: false}, retry_on_failure: {enabled: false}}
service:
  extensions: [gpu]
  pipelines:
    metrics: {receivers: [gpu], exporters: [page, otlp_http]}
`, interval, library, receiver, s.URL)
}

// witness tells whether the machine was too busy to keep time: then nor can an agent, which is no defect.
type witness struct{ worst atomic.Int64 }

// watchMachine looks until the test ends.
func watchMachine(t *testing.T) *witness {
	t.Helper()
	w := &witness{}
	go func() {
		const step = 20 * time.Millisecond
		for t.Context().Err() == nil {
			before := time.Now()
			time.Sleep(step)
			w.worst.Store(max(w.worst.Load(), int64(time.Since(before)-step)))
		}
	}()
	return w
}

// busy reports whether somebody who slept was woken up so late that an agent may have missed a tick of a second.
func (w *witness) busy() bool { return time.Duration(w.worst.Load()) > 100*time.Millisecond }

// checkTicks checks that between the first and the last tick none is missing, if the machine kept time, and
// that none lacks a GPU other than those excepted, up or not.
func checkTicks(t *testing.T, w *witness, ticks []tick, interval time.Duration, gpus int, except ...int64) {
	t.Helper()
	first, last := ticks[0].time, ticks[len(ticks)-1].time
	if want := int(last.Sub(first).Round(interval)/interval) + 1; len(ticks) != want && !w.busy() {
		t.Errorf("%d ticks in %s, want %d", len(ticks), last.Sub(first), want)
	}
	for i, tick := range ticks {
		if i > 0 && tick.time.Sub(ticks[i-1].time) > interval*3/2 && !w.busy() {
			t.Errorf("no tick for %s before %s", tick.time.Sub(ticks[i-1].time), tick.time.Format(time.TimeOnly))
		}
		for gpu := range int64(gpus) {
			if !slices.Contains(except, gpu) && (tick.up[gpu] != 1 || tick.points[gpu] < 10) && !w.busy() {
				t.Errorf("GPU %d at tick %d (%s): up %v with %d points", gpu, i, tick.time.Format(time.TimeOnly), tick.up[gpu], tick.points[gpu])
			}
		}
	}
}
