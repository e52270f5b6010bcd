//go:build linux

package tpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
)

// timely reads ten times. A read that waits for a server that never answers does not return.
func timely(t *testing.T, list []device.Device) (last []device.Sample, err error) {
	t.Helper()
	for range 10 {
		last, err = readAll(t, list, device.Fast)
	}
	return last, err
}

// A server that never answers delays nothing, and does not mean that the device is down:
// neither its error nor its text may be that of an ended context.
func TestSlowServer(t *testing.T) {
	s := serve(t, everything())
	s.delay = time.Hour
	root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	r := open(t, Options{Root: root})
	r.limit = time.Hour
	list := devices(t, r)
	got, err := readAll(t, list, device.Static)
	if err != nil {
		t.Error(err) // nothing is wrong yet
	}
	if diff := cmp.Diff([]device.Sample{sample(0, 42), sample(1, 42), sample(2, 42), sample(3, 42)}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, _ = timely(t, list)

	r = open(t, Options{Root: root})
	r.limit = 100 * time.Millisecond
	list = devices(t, r)
	_, err = settled(t, list, func(_ []device.Sample, err error) bool { return err != nil })
	if err == nil || !strings.Contains(err.Error(), "runtime of process 42: its metric service does not answer in time") {
		t.Errorf("error %v", err)
	}
}

// A slow server's answer is used when it arrives, although no read waited for it.
func TestLateAnswer(t *testing.T) {
	s := serve(t, map[string]bytesOf{metricDuty: floats("", map[int64]float64{0: 1, 1: 2, 2: 3, 3: 4})})
	s.delay = 3 * patience
	root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	list := devices(t, open(t, Options{Root: root}))
	if samples, err := settled(t, list, busy); err != nil || samples[3].Utilization.Compute != of(0.04) {
		t.Errorf("%v, %v", samples, err)
	}
}

// The last values of a server that disappears are used for a while, then none are, and the
// error text stays the same all the time.
func TestServerDies(t *testing.T) {
	s := serve(t, everything())
	root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	clock := newClock()
	r := open(t, Options{Root: root, Now: clock.now})
	list := devices(t, r)
	if _, err := settled(t, list, busy); err != nil {
		t.Fatal(err)
	}
	s.stop()
	r.mu.Lock()
	for _, p := range r.services {
		p.mu.Lock()
		p.ended = p.ended.Add(-time.Minute) // makes the next request due at once
		p.mu.Unlock()
	}
	r.mu.Unlock()
	samples, err := settled(t, list, func(_ []device.Sample, err error) bool { return err != nil })
	if err == nil || !strings.Contains(err.Error(), "its metric service") || !busy(samples, nil) {
		t.Errorf("%v, %v", samples, err)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != len(list) { // not once more per metric
		t.Errorf("%d lines: %v", len(lines), err)
	}
	clock.add(maxAge + time.Second)
	got, err := timely(t, list)
	want := []device.Sample{sample(0, 42), sample(1, 42), sample(2, 42), sample(3, 42)}
	if diff := cmp.Diff(want, got); diff != "" || err == nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// Something else listens at the port: it accepts and stays silent, or answers nonsense.
func TestNoServer(t *testing.T) {
	f := func(name, says string) {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					defer conn.Close()
					_, _ = conn.Write([]byte(says))
				}
			}()
			root := v6e().process(42, "python3", l.Addr().(*net.TCPAddr).Port, v6eFiles...).write(t, t.TempDir())
			list := devices(t, open(t, Options{Root: root}))
			_, _ = readAll(t, list, device.Static)
			if samples, _ := timely(t, list); samples[0].Utilization.Compute.OK() {
				t.Errorf("%v", samples[0])
			}
		})
	}
	f("silent", "")
	f("http", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	f("noise", strings.Repeat("\xff\x00garbage", 10000))
}

// Impossible values are an error that names the metric; the other metrics are used. A
// careless reader would export each of these.
func TestLyingServer(t *testing.T) {
	good := func() map[string]bytesOf {
		return map[string]bytesOf{
			metricDuty: floats("", map[int64]float64{0: 10, 1: 20, 2: 30, 3: 40}),
			metricUsed: ints("", map[int64]int64{0: 1, 1: 2, 2: 3, 3: 4}),
		}
	}
	var many, twice, anonymous []bytesOf
	for i := range int64(1_000_000 / 8) { // at least 8 bytes each: more than a megabyte
		many = append(many, metric(byID(i), gaugeInt(i)))
	}
	for range 4 {
		twice = append(twice, metric(byID(1), gaugeInt(1)))
		anonymous = append(anonymous, message(3, gaugeInt(1)))
	}
	tiny := bytes.Repeat(message(3), 200_000) // a message of a few hundred kB with 200 000 entries
	f := func(name, metricName string, lie bytesOf, wantErr string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := good()
			answers[metricName] = lie
			s := serve(t, answers)
			root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
			list := devices(t, open(t, Options{Root: root}))
			samples, err := settled(t, list, busy)
			if _, err := timely(t, list); err == nil && wantErr != "" {
				t.Error("no error")
			}
			got := samples[0].Memory.Used
			if metricName == metricUsed {
				got = samples[0].Utilization.Compute.Scale(10)
			}
			if got != of(1) {
				t.Errorf("the other metric is %v", got)
			}
			if metricName != metricUsed && metricName != metricTotal && samples[1].Utilization.Memory.OK() {
				t.Errorf("%v", samples[1].Utilization)
			}
			if wantErr != "" && (err == nil || !strings.Contains(err.Error(), metricName+": "+wantErr)) {
				t.Errorf("error %v", err)
			}
		})
	}
	percent := func(v float64) bytesOf { return floats("", map[int64]float64{0: 1, 1: v, 2: 2, 3: 3}) }
	f("not a number", metricBandwidth, percent(math.NaN()), "a value of NaN is impossible")
	f("infinite", metricBandwidth, percent(math.Inf(1)), "a value of +Inf is impossible")
	f("negative", metricBandwidth, percent(-1), "a value of -1 is impossible")
	f("above all", metricBandwidth, percent(1e9), "a value of 1e+09 is impossible")
	f("negative bytes", metricTotal, ints("", map[int64]int64{0: -1, 1: 1, 2: 1, 3: 1}), "a value of -1 is impossible")
	f("text", metricBandwidth, answer("", metric(byID(0), message(3, text(3, "x"))), metric(byID(1), message(3, text(3, "x"))), metric(byID(2), message(3, text(3, "x"))), metric(byID(3), message(3, text(3, "x")))), "a value is not a number")
	f("distribution for gauge", metricBandwidth, answer("", metric(byID(0), exponential(1, 1, 1, 2, 1)), metric(byID(1), gaugeInt(1)), metric(byID(2), gaugeInt(1)), metric(byID(3), gaugeInt(1))), "a value is not a number")
	f("gauge for distribution", metricPrograms, floats("", map[int64]float64{0: 1, 1: 1, 2: 1, 3: 1}), "a value is not a distribution")
	f("three devices", metricUsed, ints("", map[int64]int64{0: 1, 1: 2, 2: 3}), "3 devices are listed, but the process has 4 chips open")
	f("twice", metricUsed, answer("", twice...), "a device appears twice")
	f("nobody", metricUsed, answer("", anonymous...), "an entry names no device")
	f("too big", metricUsed, answer("", many...), "the answer is too large")
	f("too long", metricUsed, message(1, text(2, strings.Repeat("x", 2<<20)), metric(byID(0), gaugeInt(1)), metric(byID(1), gaugeInt(1)), metric(byID(2), gaugeInt(1)), metric(byID(3), gaugeInt(1))), "the answer is too large")
	f("too many", metricUsed, message(1, tiny), "the answer is too large")
	f("torn", metricUsed, []byte{0x0a, 0x7f, 0x01}, "cannot parse the answer")
	f("empty", metricBandwidth, nil, "")
}

// More memory used than there is: one of the two is wrong, and it is unknown which.
func TestMoreThanAll(t *testing.T) {
	r := newReporter(1, 1)
	for name, v := range map[string]int64{metricUsed: 2, metricTotal: 1} {
		if err := r.add(name, []entry{{id: 0, hasID: true, value: float64(v), hasValue: true}}); err != nil {
			t.Fatal(err)
		}
	}
	rep, err := r.finish()
	if rep.chips[0].used.OK() || rep.chips[0].total.OK() || err == nil {
		t.Errorf("%v, %v", rep, err)
	}
}

// An old libtpu cannot list its metrics. A libtpu that rejects a listed metric is not an
// error either.
func TestOldRuntime(t *testing.T) {
	s := serve(t, everything())
	s.noList = true
	delete(s.answers, metricTotal)
	root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	samples, err := settled(t, devices(t, open(t, Options{Root: root})), busy)
	if err != nil || samples[0].Memory != (device.Memory{Used: of(18 * gib)}) || samples[0].Utilization.Memory.OK() {
		t.Errorf("%v, %v", samples[0], err)
	}
	s = serve(t, map[string]bytesOf{metricDuty: floats("", map[int64]float64{0: 0, 1: 0, 2: 0, 3: 0})})
	s.more = []string{metricUsed, metricTotal}
	s.fail[metricTotal] = status.Error(codes.Internal, "no\x1b[31m way")
	root = v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	samples, err = settled(t, devices(t, open(t, Options{Root: root})), busy)
	if err == nil || !strings.Contains(err.Error(), metricTotal+": its metric service answers Internal: no?[31m way") ||
		strings.Contains(err.Error(), metricUsed) || samples[0].Utilization.Compute != of(0) {
		t.Errorf("%v, %v", samples[0], err)
	}
}

// The GKE exporter serves chips whose process reports nothing.
func TestExporter(t *testing.T) {
	body, code, delay := "", http.StatusOK, time.Duration(0)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
		}
		w.Header().Set("Location", "/elsewhere") // must not be followed
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}))
	defer web.Close()
	root := v6e().process(42, "python3", 0, v6eFiles...).write(t, t.TempDir())
	f := func(name string, ready func([]device.Sample, error) bool, check func([]device.Sample, error) bool) {
		t.Helper()
		list := devices(t, open(t, Options{Root: root, Exporter: web.URL}))
		samples, err := settled(t, list, ready)
		if !check(samples, err) {
			t.Errorf("%s: %v, %v", name, samples, err)
		}
		_, _ = timely(t, list)
	}
	const id = `{accelerator_id="123-%d",make="cloud-tpu",model="tpu-v6e"} `
	lines := func(family string, values ...float64) string {
		s := "# TYPE " + family + " gauge\n"
		for i, v := range values {
			s += family + fmt.Sprintf(id, i) + fmt.Sprint(v) + "\n"
		}
		return s
	}
	body = lines("duty_cycle", 99) + lines("duty_cycle_node", 10, 20, 0, 40) + lines("memory_used", 5, 6) + lines("memory_total", 50, 60) +
		lines("tensorcore_utilization_node", 1, 2, 3, 4) + lines("memory_bandwidth_utilization_node", 0, 25, 50, 75)
	f("page", busy, func(s []device.Sample, err error) bool {
		return err == nil && s[0].Utilization == device.Engines{Compute: of(0.1), Memory: of(0)} && s[3].Utilization == device.Engines{Compute: of(0.4), Memory: of(0.75)} &&
			s[1].Memory == device.Memory{Used: of(6), Total: of(60), Free: of(54)} && s[2].Memory == device.Memory{} &&
			s[0].Profile.Pipes[0] == device.Pipe{Name: "tensor", Active: of(0.01)} && s[0].Processes[0].MemoryUsed == device.Value{}
	})
	failed := func(_ []device.Sample, err error) bool { return err != nil }
	says := func(want string) func([]device.Sample, error) bool {
		return func(s []device.Sample, err error) bool {
			return !s[0].Utilization.Compute.OK() && err != nil && strings.Contains(err.Error(), "exporter: "+want)
		}
	}
	body = lines("duty_cycle_node", 1, 2, 3, 4, 5)
	f("too many chips", failed, says("the page shows 5 accelerators, but the machine has 4 chips"))
	body = "duty_cycle{accelerator_id=\"abc\"} 1\n"
	f("odd name", failed, says(`cannot map accelerator "abc"`))
	body = "duty_cycle{"
	f("garbage", failed, says("cannot parse the page"))
	body = "# TYPE x gauge\n{} 1\n" // makes the parser panic
	f("without a name", failed, says("cannot parse the page"))
	body = lines("duty_cycle", -1)
	f("negative", failed, says("duty_cycle: a value of -1 is impossible"))
	body = strings.Repeat("#"+strings.Repeat("x", 1000)+"\n", 2000)
	f("too big", failed, says("the answer is too large"))
	body, code = "", http.StatusInternalServerError
	f("500", failed, says("answered with status 500"))
	code = http.StatusFound
	f("elsewhere", failed, says("answered with status 302"))
	web.Close()
	f("dead", failed, says("connection refused"))
}

// A missing exporter is an error only if it was configured.
func TestNoExporter(t *testing.T) {
	if conn, err := net.Dial("tcp", "localhost:2112"); err == nil {
		conn.Close()
		t.Skip("something listens at the exporter's port here")
	}
	root := v6e().process(42, "python3", 0, v6eFiles...).write(t, t.TempDir())
	r, err := Open(t.Context(), Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	list := devices(t, r)
	_, err = readAll(t, list, device.Static)
	time.Sleep(20 * time.Millisecond)
	if _, again := timely(t, list); errors.Join(err, again) != nil || r.page == nil {
		t.Errorf("errors %v, %v", err, again)
	}
}

// A panic in one of the reader's goroutines would end the whole agent.
func TestPanic(t *testing.T) {
	p := newPoller(time.Now, pollLimit, source[report](bomb{}))
	defer func() { <-p.done }()
	defer p.stop()
	var err error
	await.True(t, "an error", func() bool {
		_, _, err = p.get(t.Context())
		return err != nil
	})
	if err == nil || !strings.Contains(err.Error(), "the reader panicked: boom") {
		t.Errorf("error %v", err)
	}
}

type bomb struct{}

func (bomb) fetch(context.Context) (report, error) { panic("boom") }
func (bomb) close()                                {}
