//go:build linux

package cli_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
)

// planted is a secret that must turn up at the backend and nowhere else.
const planted = "pl4nted-secret"

// pushInterval is between two ticks of an agent that sends.
const pushInterval = 100 * time.Millisecond

// push starts an agent that sends to b, of the model with the fewest points: many such agents run at once.
func push(t *testing.T, b *backend, state string, env []string, args ...string) *agent {
	t.Helper()
	env = append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + b.addr, "OTEL_EXPORTER_OTLP_HEADERS=api-key=" + planted}, env...)
	return startWith(t, env, append([]string{
		"--listen", "localhost:0", "--simulate", "p150a", "--host-name", "host", "--interval", pushInterval.String(), "--no-cloud", "--state-dir", state,
	}, args...)...)
}

func (b *backend) waitTicks(run string, n int) {
	b.t.Helper()
	await.NoError(b.t, func() error {
		if list, _ := b.ticks(run); len(list) < n {
			return fmt.Errorf("%d ticks of run %q, want %d", len(list), run, n)
		}
		return nil
	})
}

// Every protocol arrives, with the header and the identity of the machine.
func TestPush(t *testing.T) {
	t.Parallel()
	f := func(protocol, contentType string) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			b.up(protocol == "grpc")
			a := push(t, b, t.TempDir(), []string{"OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_RESOURCE_ATTRIBUTES=run=1,deployment.environment.name=a%20b", "NODE_NAME=node"},
				"--cluster", "c1", "--log-level", "debug")
			b.waitTicks("1", 5)
			want := map[string]string{
				"host.name": "host", "service.name": "gpumeter", "service.instance.id": "host", "gpumeter.simulated": "true",
				"k8s.cluster.name": "c1", "k8s.node.name": "node", "run": "1", "deployment.environment.name": "a b",
			}
			if diff := cmp.Diff(want, b.attributes()); diff != "" {
				t.Errorf("resource (-want +got):\n%s", diff)
			}
			// The page has the same machine.
			p := a.waitPage(func(p page) error {
				if len(p.byGPU("gpu_up")) == 0 {
					return fmt.Errorf("no GPU")
				}
				return nil
			})
			for series := range p {
				if strings.HasPrefix(series, "gpu_up{") && (label(series, "k8s_cluster_name") != "c1" || label(series, "k8s_node_name") != "node") {
					t.Errorf("the page does not say where the GPU is: %s", series)
				}
			}
			text, err := a.get("/metrics", "")
			if err != nil {
				t.Error(err)
			}
			a.stop()
			b.mu.Lock()
			defer b.mu.Unlock()
			if types := slices.Compact(slices.Clone(b.types)); len(types) != 1 || types[0] != contentType {
				t.Errorf("content types %q, want %q", types, contentType)
			}
			if headers := slices.Compact(slices.Clone(b.headers)); len(headers) != 1 || headers[0] != planted {
				t.Errorf("headers %q", headers)
			}
			if strings.Contains(a.log.String()+text, planted) {
				t.Errorf("the log or the page has the header:\n%s", a.log.String())
			}
		})
	}
	f("grpc", "application/grpc")
	f("http/protobuf", "application/x-protobuf")
	f("http/json", "application/json")
}

// A full queue drops the newest data and logs it. Data accepted before is delivered.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	a := push(t, b, t.TempDir(), nil, "--queue-size", "256KiB", "--log-level", "debug")
	if reason := fmt.Sprint(a.waitLog("The pipeline refuses metrics")["error"]); !strings.Contains(reason, "queue is full") {
		t.Errorf("the reason is %q", reason)
	}
	// The page goes on.
	a.waitPage(func(p page) error {
		if len(p.byGPU("gpu_up")) != 4 {
			return fmt.Errorf("%d GPUs", len(p.byGPU("gpu_up")))
		}
		return nil
	})
	b.up(false)
	a.waitLog("The pipeline accepts metrics again")
	due := a.ledger() // those that it did not refuse
	await.NoError(t, func() error { return b.owes(due) })
	a.stop()
}

// Without a folder the queue is in memory, which is logged.
func TestNoState(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"", write(t, "file", "")} {
		b := newBackend(t)
		b.up(false)
		a := push(t, b, state, nil)
		b.waitTicks("", 2)
		a.waitLog("No send queue on disk: telemetry that an OTLP endpoint has not accepted is lost when the agent stops")
		a.stop()
	}
	// Nor do two agents share one.
	b, state := newBackend(t), t.TempDir()
	b.up(false)
	push(t, b, state, []string{"OTEL_RESOURCE_ATTRIBUTES=run=1"}).waitLog("serving metrics")
	second := push(t, b, state, []string{"OTEL_RESOURCE_ATTRIBUTES=run=2"})
	b.waitTicks("1", 2)
	b.waitTicks("2", 2)
	if reason := second.waitLog("No send queue on disk: telemetry that an OTLP endpoint has not accepted is lost when the agent stops")["reason"].(string); !strings.HasPrefix(reason, "another agent uses "+state) {
		t.Errorf("the reason is %q", reason)
	}
}

// The agent never prints the secret in a header.
func TestPrintConfig(t *testing.T) {
	t.Parallel()
	file := write(t, "config.yaml", `
receivers: {gpu: }
extensions: {gpu: {simulate: h200}}
exporters: {otlp_http: {endpoint: "http://me:`+planted+`@localhost:1", headers: {api-key: `+planted+`}}}
service: {extensions: [gpu], pipelines: {metrics: {receivers: [gpu], exporters: [otlp_http]}}}
`)
	f := func(env []string, args ...string) {
		t.Helper()
		cmd := command(t.Context(), env, append([]string{"agent", "--print-config"}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || stderr.Len() > 0 {
			t.Errorf("%v: %v %s", args, err, stderr.String())
		}
		if !bytes.Contains(out, []byte("[REDACTED]")) || !bytes.Contains(out, []byte("localhost:1")) || bytes.Contains(out, []byte(planted)) {
			t.Errorf("%v prints\n%s", args, out)
		}
	}
	state := filepath.Join(t.TempDir(), "state")
	f([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://me:" + planted + "@localhost:1", "OTEL_EXPORTER_OTLP_HEADERS=api-key=" + planted}, "--state-dir", state)
	f(nil, "--otlp-endpoint", "http://localhost:1", "--otlp-header", "api-key="+planted, "--otlp-protocol", "grpc", "--state-dir", state)
	f(nil, "--config", file)
	if _, err := os.Stat(state); err == nil {
		t.Error("printing made the state folder")
	}
}

// The agent forwards telemetry from applications, and writes it to a file.
func TestGateway(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"localhost:4317", "localhost:4318"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Skipf("another program has the port of OTLP: %v", err)
		}
		l.Close()
	}
	b := newBackend(t)
	b.up(false)
	file := filepath.Join(t.TempDir(), "otlp.json")
	push(t, b, t.TempDir(), nil, "--otlp-receiver", "--otlp-file", file).waitLog("serving metrics")
	for signal, body := range map[string]string{
		"metrics": `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"app","gauge":{"dataPoints":[{"asInt":"1"}]}}]}]}]}`,
		"logs":    `{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"hello"}}]}]}]}`,
		"traces":  `{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"work","traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174"}]}]}]}`,
	} {
		await.NoError(t, func() error {
			resp, err := http.Post("http://localhost:4318/v1/"+signal, "application/json", strings.NewReader(body))
			if err != nil {
				return err
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", signal, resp.Status)
			}
			return nil
		})
		await.NoError(t, func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.others[signal] == 0 {
				return fmt.Errorf("no %s arrived", signal)
			}
			return nil
		})
	}
	await.NoError(t, func() error {
		text, err := os.ReadFile(file)
		for _, want := range []string{`"app"`, `"hello"`, `"work"`, `"gpu.up"`} {
			if err == nil && !bytes.Contains(text, []byte(want)) {
				err = fmt.Errorf("no %s in the file", want)
			}
		}
		return err
	})
}
