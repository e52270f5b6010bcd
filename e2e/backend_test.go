//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// backend is a database that scrapes the page and accepts OTLP, run as docs/operations.md documents. It
// keeps its address and its data across restarts.
type backend struct {
	server
	name string // as in tools/deps.sh
	args []string
	path string // of OTLP
	// pushOnly are labels that only pushed series have.
	pushOnly []string

	edit   func(config string) string // may be nil
	config string                     // of scrapes and, for Prometheus, all else
	addr   string
	p      *process
}

func prometheus3(t *testing.T) *backend {
	b := newBackend(t, "prometheus3", "prometheus --config.file=prometheus.yml ", "http://prometheus:9090")
	b.args = append(b.args, "--config.file="+b.config, "--storage.tsdb.path="+filepath.Join(t.TempDir(), "data"), "--web.listen-address="+b.addr,
		"--enable-feature=type-and-unit-labels") // to compare types
	return b
}

func victoriametrics(t *testing.T) *backend {
	b := newBackend(t, "victoriametrics", "victoria-metrics ", "http://victoria-metrics:8428")
	// The offset hides the latest 30 s, too long for a test.
	b.args = append(b.args, "-promscrape.config="+b.config, "-storageDataPath="+filepath.Join(t.TempDir(), "data"), "-httpListenAddr="+b.addr,
		"-search.latencyOffset=0s")
	b.pushOnly = []string{"service_instance_id", "service_name"}
	return b
}

// newBackend returns a backend with the flags that follow command in the document.
func newBackend(t *testing.T, name, command, origin string) *backend {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		skip(t, name, fmt.Errorf("tools/deps.sh %s did not build it: %w", name, err))
	}
	b := &backend{name: name, config: filepath.Join(t.TempDir(), "prometheus.yml"), addr: freeAddress(t)}
	b.server = server{t, "http://" + b.addr}
	b.args = strings.Fields(documented(t, command))
	b.path, _, _ = strings.Cut(documented(t, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="+origin), " ")
	return b
}

// freeAddress returns an address that stays free while nobody listens on it: its port is below the
// kernel's range for outgoing connections and for :0.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("cannot find a free port")
	return ""
}

// documented returns the rest of the line, or the block, in docs/operations.md that starts with prefix.
func documented(t *testing.T, prefix string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "\n```") {
		_, code, _ := strings.Cut(block, "\n") // the language follows ```
		if rest, ok := strings.CutPrefix(code, prefix); ok {
			return rest
		}
	}
	t.Fatalf("docs/operations.md has no code that starts with %q", prefix)
	return ""
}

// up starts the backend. target is the page to scrape, "" for none.
func (b *backend) up(target string) {
	b.t.Helper()
	const example = "node-a:9400"
	config := documented(b.t, "# prometheus.yml\n")
	if !strings.Contains(config, example) {
		b.t.Fatalf("the documented prometheus.yml does not scrape %s", example)
	}
	if b.name != "prometheus3" {
		_, config, _ = strings.Cut(config, "scrape_configs:") // its only supported section
		config = "scrape_configs:" + config
	}
	config = strings.Replace(config, `"`+example+`"`, target, 1)
	if b.edit != nil {
		config = b.edit(config)
	}
	// Scrape often, so that some scrape sees the last pushed tick.
	config = "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n" + config
	if err := os.WriteFile(b.config, []byte(config), 0o600); err != nil {
		b.t.Fatal(err)
	}
	binary, err := exec.LookPath(b.name)
	if err != nil {
		b.t.Fatal(err)
	}
	b.p = start(b.t, binary, b.args...)
	eventually(b.t, b.name+" answers", func() error {
		_, err := b.query("vector(1)")
		return err
	})
}

// agent starts an agent that reads eight simulated GPUs once a second and pushes to the backend.
func (b *backend) agent(binary string, args ...string) *process {
	b.t.Helper()
	args = append([]string{
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=" + b.url + b.path, binary, "agent", "--simulate", "h200",
		"--interval", "1s", "--slow-interval", "1s", "--listen", "127.0.0.1:0", "--socket", "",
		"--cluster", "cluster-a", "--node-name", "node-a", "--host-name", "host-a",
	}, args...)
	p := start(b.t, "env", args...)
	p.name = "gpumeter"
	return p
}

// sample is a value at a time.
type sample struct {
	at    time.Time
	value string
}

// UnmarshalJSON reads [seconds, "value"].
func (s *sample) UnmarshalJSON(text []byte) error {
	var seconds json.Number
	if err := json.Unmarshal(text, &[]any{&seconds, &s.value}); err != nil {
		return err
	}
	f, err := seconds.Float64()
	s.at = time.UnixMilli(int64(f*1000 + 0.5))
	return err
}

// samples returns the stored samples of the last five minutes of the only series that selector matches.
func (b *backend) samples(selector string) ([]sample, error) {
	body, err := get(b.t, b.url+"/api/v1/query?"+url.Values{"query": {selector + "[5m]"}}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct{ Result []struct{ Values []sample } }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return nil, err
	}
	if n := len(answer.Data.Result); n != 1 {
		return nil, fmt.Errorf("%d series of %s", n, selector)
	}
	return answer.Data.Result[0].Values, nil
}

// at returns the value of expr at a time, by labels.
func (b *backend) at(expr string, when time.Time) map[string]string {
	b.t.Helper()
	body, err := get(b.t, b.url+"/api/v1/query?"+url.Values{"query": {expr}, "time": {seconds(when)}}.Encode())
	if err != nil {
		b.t.Fatalf("%s: %v", expr, err)
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  sample
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		b.t.Fatalf("%s: %v", expr, err)
	}
	got := map[string]string{}
	// The parser of pages gives a metric without a unit the unit of the previous one (3.15).
	ignored := append([]string{"job", "instance", "__unit__"}, b.pushOnly...)
	for _, r := range answer.Data.Result {
		sameBounds(r.Metric)
		for _, label := range ignored {
			delete(r.Metric, label)
		}
		key := fmt.Sprint(r.Metric) // sorted
		if _, ok := got[key]; ok {
			b.t.Errorf("%s occurs twice in %s", key, expr)
		}
		got[key] = r.Value.value
	}
	return got
}

func seconds(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

// sameBounds writes the bound of a bucket in one way: Prometheus has 1.0 if it scrapes, and 1 by OTLP.
func sameBounds(labels map[string]string) {
	if bound, err := strconv.ParseFloat(labels["le"], 64); err == nil {
		labels["le"] = fmt.Sprint(bound)
	}
}
