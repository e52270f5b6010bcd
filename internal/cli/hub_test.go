//go:build linux

package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpumeter/gpumeter/internal/await"
)

// hubProcess is gpumeter hub as users run it.
type hubProcess struct {
	t    *testing.T
	url  string
	log  *lockedBuffer
	kill func() // and wait until it is gone
}

// startHub runs a hub in dir until the test ends.
func startHub(t *testing.T, dir string, args ...string) *hubProcess {
	t.Helper()
	args = append([]string{"hub", "--data-dir", dir, "--listen", "localhost:0", "--listen-grpc", "localhost:0"}, args...)
	return startServer(t, args...)
}

// startServer runs gpumeter with args until the test ends or kills it.
func startServer(t *testing.T, args ...string) *hubProcess {
	t.Helper()
	cmd := command(context.WithoutCancel(t.Context()), nil, args...)
	h := &hubProcess{t: t, log: &lockedBuffer{}}
	cmd.Stderr, cmd.Stdout = h.log, h.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // no error if it has ended
		_ = cmd.Wait()
	})
	t.Cleanup(func() {
		h.kill()
		if t.Failed() {
			t.Log(h.log.String())
		}
	})
	await.NoError(t, func() error {
		for line := range strings.Lines(h.log.String()) {
			var e struct{ URL, Msg string }
			if json.Unmarshal([]byte(line), &e) == nil && e.Msg == "The hub is serving" {
				h.url = strings.TrimSuffix(e.URL, "/")
				return nil
			}
		}
		return fmt.Errorf("the hub does not serve: %s", h.log)
	})
	return h
}

// post sends a body, and reports whether it was taken.
func (h *hubProcess) post(path string, body []byte, token string) (int, string) {
	r, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, h.url+path, bytes.NewReader(body))
	if err != nil {
		h.t.Error(err)
		return 0, ""
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error() // it was killed
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// values returns the samples of the series that selector selects in the last d, by series
// and milliseconds.
func (h *hubProcess) values(selector string, d time.Duration) map[string]map[int64]string {
	h.t.Helper()
	form := url.Values{"query": {fmt.Sprintf("%s[%dms]", selector, d.Milliseconds())}}
	resp, err := http.PostForm(h.url+"/api/v1/query", form)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		h.t.Fatalf("%v %s", err, answer.Error)
	}
	out := map[string]map[int64]string{}
	for _, r := range answer.Data.Result {
		all := map[int64]string{}
		for _, v := range r.Values {
			all[int64(v[0].(float64)*1000+0.5)] = v[1].(string)
		}
		out[r.Metric["i"]] = all
	}
	return out
}

// request returns a gauge hub_test with one sample for each of series, at a time.
func request(t *testing.T, at time.Time, series int, value float64) []byte {
	t.Helper()
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("hub.test")
	points := m.SetEmptyGauge().DataPoints()
	for i := range series {
		p := points.AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(at))
		p.SetDoubleValue(value)
		p.Attributes().PutInt("i", int64(i))
	}
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// Catches an OTLP OK for what a kill loses: samples in order, out of order, and events; and
// a store that does not open afterwards.
func TestHubKilled(t *testing.T) {
	t.Parallel()
	const series, kills, writers = 20, 4, 3
	dir := t.TempDir()
	begin := time.Now().Truncate(time.Millisecond)
	acknowledged := map[int64]float64{}
	events := map[string]bool{}
	var mu sync.Mutex
	next := begin.Add(-time.Hour)
	for k := range kills {
		h := startHub(t, dir)
		var all sync.WaitGroup
		stop := make(chan struct{})
		for range writers {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					mu.Lock()
					next = next.Add(time.Second)
					at := next
					mu.Unlock()
					if rand.IntN(4) == 0 { // as after an outage
						at = at.Add(-6*time.Hour + time.Millisecond)
					}
					value := rand.Float64()
					if code, _ := h.post("/v1/metrics", request(t, at, series, value), ""); code == http.StatusOK {
						mu.Lock()
						acknowledged[at.UnixMilli()] = value
						mu.Unlock()
					}
					name := strconv.FormatInt(at.UnixMilli(), 10)
					if code, _ := h.post("/v1/logs", logRequest(t, name), ""); code == http.StatusOK {
						mu.Lock()
						events[name] = true
						mu.Unlock()
					}
				}
			})
		}
		await.NoError(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(acknowledged) < (k+1)*30 {
				return fmt.Errorf("%d are taken", len(acknowledged))
			}
			return nil
		})
		h.kill()
		close(stop)
		all.Wait()
	}
	h := startHub(t, dir)
	got := h.values("hub_test", 24*time.Hour)
	lost := 0
	for i := range series {
		for at, value := range acknowledged {
			if has := got[strconv.Itoa(i)][at]; has != strconv.FormatFloat(value, 'f', -1, 64) {
				lost++
				if i == 0 {
					t.Logf("%s before the newest: %q, want %g", next.Sub(time.UnixMilli(at)), has, value)
				}
			}
		}
	}
	if lost > 0 || len(got) != series {
		t.Errorf("%d of %d acknowledged samples of %d series are lost", lost, series*len(acknowledged), len(got))
	}
	resp, err := http.Get(h.url + "/api/events?limit=10000")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct{ Data []struct{ Name string } }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	for _, e := range answer.Data {
		delete(events, e.Name)
	}
	if len(events) > 0 {
		t.Errorf("%d acknowledged events are lost", len(events))
	}
	if log := h.log.String(); strings.Contains(log, `"level":"error"`) || strings.Contains(log, "corrupt") {
		t.Error("the store was damaged")
	}
}

func logRequest(t *testing.T, name string) []byte {
	t.Helper()
	ld := plog.NewLogs()
	r := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	r.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	r.SetEventName(name)
	body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// Catches a hub that anybody on the network can use, flags that contradict each other, and
// an error that does not say what to do.
func TestHubRefusesToStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := write(t, "tokens", "read 0123456789abcdef\n")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, "--tokens FILE or --client-ca FILE"},
		{[]string{"--listen", "localhost:0", "--listen-grpc", ":0"}, "--listen-grpc :0 would let everyone"},
		{[]string{"--insecure", "--tokens", open}, "contradict"},
		{[]string{"--listen", "localhost:0", "--tokens", open}, "chmod"},
		{[]string{"--tls-cert", "x"}, "must be set together"},
		{[]string{"--client-ca", "x"}, "needs --tls-cert"},
		{[]string{"--retention", "1m"}, "--retention"},
		{[]string{"--retention", "xd"}, "--retention"},
		{[]string{"--keep-usage", "5y"}, "--keep-usage"},
		{[]string{"--keep-usage", "29d"}, "--keep-usage must be at least --retention"},
		{[]string{"--max-size", "many"}, "--max-size"},
		{[]string{"--backend", "http://localhost:1"}, "has no effect with --backend"},
		{[]string{"--listen", "localhost:0", "--listen-grpc", "localhost:0", "--prices", "/nowhere"}, "--prices"},
		{[]string{"--listen", "localhost:0", "--listen-grpc", "localhost:0", "--objectives", "/nowhere"}, "--objectives"},
	} {
		r := run(t, append([]string{"hub", "--data-dir", dir}, c.args...)...)
		if r.code != 1 || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%v: %d %s", c.args, r.code, r.stderr)
		}
	}
}

// Catches a token that does less or more than it says, over the network's addresses.
func TestHubTokens(t *testing.T) {
	t.Parallel()
	tokens := write(t, "tokens", "read read-0123456789abcdef\nwrite write-0123456789abcdef\n")
	if err := os.Chmod(tokens, 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHub(t, t.TempDir(), "--tokens", tokens)
	body := request(t, time.Now(), 1, 1)
	for token, want := range map[string]int{"": 401, "read-0123456789abcdef": 403, "write-0123456789abcdef": 200} {
		if code, text := h.post("/v1/metrics", body, token); code != want {
			t.Errorf("%q: %d %s", token, code, text)
		}
	}
	if log := h.log.String(); strings.Contains(log, "0123456789abcdef") {
		t.Error("a token is in the log")
	}
}

// Catches a hub whose /readyz does not say which of its files are no longer valid, or says too much.
func TestHubReadyz(t *testing.T) {
	t.Parallel()
	prices, tokens := write(t, "prices.yaml", "currency: EUR\n"), write(t, "tokens", "read read-0123456789abcdef\n")
	if err := os.Chmod(tokens, 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHub(t, t.TempDir(), "--tokens", tokens, "--prices", prices)
	if code, text := h.get("/readyz", ""); code != http.StatusOK || text != "ok\n" {
		t.Errorf("%d %q", code, text)
	}
	for file, text := range map[string]string{prices: "currency: EUR\nprices: secret\n", tokens: "read secret\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := regexp.MustCompile(`^ok
prices: prices\.yaml is not valid, see line 2: the last valid prices, from [-\d]+ [\d:]+ UTC, are in use
tokens: tokens is not valid, see line 1: the last valid tokens, from [-\d]+ [\d:]+ UTC, are in use
$`)
	await.NoError(t, func() error {
		if code, text := h.get("/readyz", ""); code != http.StatusOK || !want.MatchString(text) {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
}

// Catches an agent whose readings do not get into the hub of the same process, or are lost
// when both end.
func TestUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{
		"up", "--simulate", "h100", "--data-dir", filepath.Join(dir, "hub"), "--listen", "localhost:0", "--listen-grpc", "", "--listen-page", "localhost:0",
		"--interval", "100ms", "--slow-interval", "1s", "--socket", "", "--state-dir", "",
	}
	h := startServer(t, args...)
	await.NoError(t, func() error {
		if n := len(h.values("gpu_power_draw_watts", time.Minute)); n == 0 {
			return fmt.Errorf("%d series", n)
		}
		return nil
	})
	before := len(h.values(`gpu_power_draw_watts{gpu_index="0"}`, time.Minute)[""])
	h.kill()
	h = startServer(t, args...)
	if after := len(h.values(`gpu_power_draw_watts{gpu_index="0"}`, time.Minute)[""]); after < before {
		t.Errorf("of %d samples %d are left", before, after)
	}
}
