//go:build linux

package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/local"
)

// everything is a configuration with every component and every kind of secret.
const everything = `
extensions:
  gpu:
    simulate: h200
    resource: {k8s.cluster.name: "a$$b $${env:HOME}", rack: "${env:GPUMETER_TEST_RACK}"}
    workloads: {slurm: {rest: "http://slurm:6820/?key=sekrit"}}
  file_storage: {directory: DIR/queue, create_directory: true}
  bearertokenauth: {token: sekrit}
  health_check: {endpoint: "localhost:0"}
  local_only:
  pprof: {endpoint: "localhost:0"}
receivers:
  gpu:
  cuda: {}
  host: {}
  inference: {targets: [{url: "http://localhost:1/metrics", headers: {authorization: "Bearer sekrit"}, tls: {key_pem: sekrit, cert_pem: sekrit}}]}
  self: {}
  scheduler: {slurm: {}}
  otlp: {protocols: {grpc: {endpoint: "localhost:0"}, http: {endpoint: "localhost:0"}}}
processors:
  gpuspan:
  memory_limiter: {check_interval: 1s, limit_mib: 100}
  reserved:
  training:
  workload: {}
  batch: {}
  resource: {attributes: [{key: rack, value: r1, action: upsert}]}
exporters:
  page: {endpoint: "localhost:0", tls: {key_pem: sekrit, cert_pem: sekrit}}
  hub: {data_dir: DIR/hub}
  otlp_http: {endpoint: "http://u:sekrit@localhost:1/?api_key=sekrit", headers: {authorization: "Bearer sekrit"}, sending_queue: {sizer: bytes, storage: file_storage}}
  otlp_grpc: {endpoint: "localhost:1", headers: [{name: a, value: sekrit}], tls: {insecure: true}}
  file: {path: DIR/otlp.json, rotation: {max_megabytes: 1}}
  stdout: {}
  debug: {}
service:
  extensions: [gpu, file_storage, bearertokenauth, health_check, local_only, pprof]
  pipelines:
    metrics: {receivers: [gpu, cuda, host, inference, self, scheduler, otlp], processors: [memory_limiter, reserved, training, workload, resource, batch], exporters: [page, hub, otlp_http, otlp_grpc, file, stdout, debug]}
    logs: {receivers: [gpu, cuda, scheduler, otlp], processors: [memory_limiter, reserved, workload], exporters: [hub, otlp_http, otlp_grpc, file, stdout, debug]}
    traces: {receivers: [otlp], processors: [memory_limiter, gpuspan, workload], exporters: [otlp_http, otlp_grpc, file, stdout, debug]}
  telemetry: {logs: {level: warn}}
`

// Catches a printed configuration that cannot be validated, that differs from the one that runs,
// or that shows a secret, for any component of the distribution.
func TestPrintedConfigCanBeRead(t *testing.T) {
	t.Setenv("GPUMETER_TEST_RACK", "0123") // a string that YAML reads as a number
	dir := t.TempDir()
	text := strings.ReplaceAll(everything, "DIR", dir)
	var written map[string]any
	if err := yaml.Unmarshal([]byte(text), &written); err != nil {
		t.Fatal(err)
	}
	all, err := Components()
	if err != nil {
		t.Fatal(err)
	}
	for kind, names := range all {
		var used []string
		for name := range written[kind].(map[string]any) {
			used = append(used, name)
		}
		slices.Sort(used)
		if diff := cmp.Diff(names, used); diff != "" {
			t.Errorf("the test does not use all %s (-components +test):\n%s", kind, diff)
		}
	}
	printed := text
	for range 2 {
		file := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(file, []byte(printed), 0o600); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := (&Agent{Options: Options{ConfigFile: file}}).WriteConfig(t.Context(), &b); err != nil {
			t.Fatalf("%v:\n%s", err, printed)
		}
		if err := Validate(t.Context(), "test", file); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "sekrit") {
			t.Errorf("the printed configuration has a secret:\n%s", b.String())
		}
		if printed != text {
			if diff := cmp.Diff(printed, b.String()); diff != "" {
				t.Errorf("the configuration changes when it is printed again (-first +second):\n%s", diff)
			}
		}
		printed = b.String()
	}
	var got struct {
		Extensions struct {
			GPU struct {
				Resource map[string]any `yaml:"resource"`
			} `yaml:"gpu"`
		} `yaml:"extensions"`
	}
	if err := yaml.Unmarshal([]byte(printed), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"k8s.cluster.name": "a$$b $${env:HOME}", "rack": "0123"}, got.Extensions.GPU.Resource); diff != "" {
		t.Errorf("resource (-want +got):\n%s", diff)
	}
}

// Catches flags whose printed configuration cannot be validated.
func TestPrintedConfigOfFlagsCanBeRead(t *testing.T) {
	dir := t.TempDir()
	a, err := New(Options{
		Env: func(string) string { return "" }, Listen: "localhost:9400", StateDir: filepath.Join(dir, "state"), File: "-", Trace: true, Receiver: true,
		OTLP:     OTLP{Endpoint: "http://localhost:4318/?token=sekrit", Headers: []string{"a=sekrit"}},
		Identity: Identity{Cluster: "a$b ${env:HOME}"},
		Local:    local.Config{Interval: time.Second, SlowInterval: time.Minute, Root: "/"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := a.WriteConfig(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "sekrit") {
		t.Errorf("the printed configuration has a secret:\n%s", b.String())
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Validate(t.Context(), "test", file); err != nil {
		t.Errorf("%v:\n%s", err, b.String())
	}
	var again bytes.Buffer
	if err := (&Agent{Options: Options{ConfigFile: file}}).WriteConfig(t.Context(), &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), again.String()); diff != "" {
		t.Errorf("(-flags +file):\n%s", diff)
	}
}
