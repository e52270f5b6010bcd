//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// jaeger starts the real Jaeger, and returns the addresses of its OTLP receiver (HTTP) and its queries.
func jaeger(t *testing.T) (otlp, query string) {
	t.Helper()
	binary, err := exec.LookPath("jaeger")
	if err != nil {
		skip(t, "jaeger", err)
	}
	otlp, query = freeAddress(t), freeAddress(t)
	p := start(t, binary, "--collector.otlp.enabled=true", "--collector.otlp.http.host-port="+otlp, "--collector.otlp.grpc.host-port="+freeAddress(t),
		"--query.http-server.host-port="+query, "--query.grpc-server.host-port="+freeAddress(t), "--admin.http.host-port="+freeAddress(t),
		"--collector.http-server.host-port="+freeAddress(t), "--collector.grpc-server.host-port="+freeAddress(t))
	p.ready(t, "http://"+query+"/api/services")
	return otlp, query
}

// app is an application that sends spans when it is told to.
type app struct {
	*process

	in  io.Writer
	pid int // on this machine
}

func startApp(t *testing.T, inner bool, name string, args ...string) *app {
	t.Helper()
	if inner { // process 1 of a PID namespace of its own
		name, args = "unshare", append([]string{"--pid", "--fork", "--kill-child", name}, args...)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	a := &app{process: &process{name: filepath.Base(name), cmd: exec.Command(name, args...), done: make(chan struct{})}, in: w}
	a.cmd.Stdin, a.cmd.Stdout, a.cmd.Stderr = r, a, a
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(a.done)
		_ = a.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		<-a.done
		if t.Failed() {
			t.Logf("output of %s:\n%s", a.name, a.said())
		}
	})
	a.pid = a.cmd.Process.Pid
	if inner {
		eventually(t, "the process in the namespace", func() error {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", a.pid, a.pid))
			if err != nil {
				return err
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err == nil {
				a.pid = pid
			}
			return err
		})
	}
	return a
}

// jaegerSpan is a span as Jaeger serves it.
type jaegerSpan struct {
	OperationName string
	Tags          []struct {
		Key   string
		Value any
	}
	Logs []struct {
		Fields []struct {
			Key   string
			Value any
		}
	}
}

func (s *jaegerSpan) tag(key string) any {
	for _, t := range s.Tags {
		if t.Key == key {
			return t.Value
		}
	}
	return nil
}

// Applications with the SDKs for Go and Node.js, and one in a PID namespace of its own that sends JSON, each on a
// GPU of a scripted driver, send spans of known times through the shipped agent to the real Jaeger. The spans
// there have the values of the script, and their joules add up to those of the driver.
func TestSpansInJaeger(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "root", "the sockets of other users' processes")
	}
	energy := 5e6 // J; from the start on: a counter that jumps is not believed
	counters := ""
	for i := range 3 {
		counters += fmt.Sprintf("gpu %d energy %d\n", i, int64(energy*1000))
	}
	driver := nvmltest.New(t, "gpus 3\n"+counters)
	otlp, query := jaeger(t)
	binary := gpumeter(t)
	grpc, http := freeAddress(t), freeAddress(t)
	config, err := tryCommand(t, "", "env", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://"+otlp+"/v1/traces", binary, "agent", "--print-config", "--otlp-receiver",
		"--nvidia-library", driver.Library, "--interval", "200ms", "--slow-interval", "200ms", "--listen", "127.0.0.1:0", "--state-dir", "", "--no-cloud", "--no-inference", "--host-name", "n1")
	if err != nil {
		t.Fatal(config)
	}
	config = strings.NewReplacer("localhost:4317", grpc, "localhost:4318", http).Replace(config)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	page := start(t, binary, "agent", "--config", file, "--socket", "", "--no-standby").find(t, pageAddress)

	golang := filepath.Join(t.TempDir(), "goapp")
	command(t, "..", "go", "build", "-trimpath", "-buildvcs=false", "-o", golang, "./e2e/testdata/spans")
	apps := []*app{startApp(t, false, golang, grpc)}
	if python, err := exec.LookPath("python3"); err == nil {
		apps = append(apps, startApp(t, true, python, "testdata/spans/app.py", http))
	}
	if node, err := exec.LookPath("node"); err == nil {
		dir := t.TempDir()
		command(t, dir, "npm", "install", "--no-audit", "--no-fund", "--silent", "@opentelemetry/api@1.9.0", "@opentelemetry/sdk-trace-base@2.0.1",
			"@opentelemetry/resources@2.0.1", "@opentelemetry/exporter-trace-otlp-proto@0.202.0")
		text, err := os.ReadFile("testdata/spans/app.js")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "app.js"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		apps = append(apps, startApp(t, false, node, filepath.Join(dir, "app.js"), http))
	} else {
		skip(t, "npm", err)
	}

	step := func(util int, joules float64) {
		t.Helper()
		energy += joules
		var script strings.Builder
		script.WriteString("gpus 3\n")
		for i, a := range apps {
			fmt.Fprintf(&script, "gpu %d energy %d\ngpu %d util %d 0\nprocess %d %d compute 1073741824 %d\n", i, int64(energy*1000+0.5), i, util, i, a.pid, util)
		}
		driver.Script(t, script.String())
		eventually(t, "a tick with the script", func() error {
			text, err := get(t, "http://"+page+"/metrics")
			if err != nil {
				return err
			}
			for i := range apps {
				for name, want := range map[string]float64{"gpu_utilization_ratio": float64(util) / 100, "gpu_energy_joules_total": energy} {
					m := regexp.MustCompile(`(?m)^` + name + `\{[^}]*gpu_index="` + strconv.Itoa(i) + `"[^}]*\} (\S+)$`).FindStringSubmatch(text)
					if m == nil {
						return fmt.Errorf("no %s of GPU %d", name, i)
					}
					if v, err := strconv.ParseFloat(m[1], 64); err != nil || math.Abs(v-want) > 1e-4 {
						return fmt.Errorf("%s of GPU %d is %s, want %v", name, i, m[1], want)
					}
				}
			}
			return nil
		})
	}
	step(10, 0)
	const tiny = 0.001 // the counter moves, so that what was estimated before is settled
	step(20, tiny)     // the processes hold their GPUs by now
	from := time.Now()
	step(30, tiny) // a tick after from: what follows is used after it
	first := time.Now()
	step(95, 300)
	second := time.Now()
	step(50, 100)
	to := time.Now()
	step(60, tiny) // the counter was read after the spans
	for _, a := range apps {
		fmt.Fprintln(a.in, from.UnixNano(), first.UnixNano(), second.UnixNano(), to.UnixNano())
		m := regexp.MustCompile(`sent (\S+) (\S+)`)
		a.find(t, regexp.MustCompile(`(sent \S+ \S+)\n`))
		traces := m.FindStringSubmatch(a.said())[1:]
		spans := map[string]jaegerSpan{}
		eventually(t, "three spans of "+a.name, func() error {
			for _, id := range traces {
				text, err := get(t, "http://"+query+"/api/traces/"+id)
				if err != nil {
					return err
				}
				var answer struct {
					Data []struct{ Spans []jaegerSpan }
				}
				if err := json.Unmarshal([]byte(text), &answer); err != nil {
					return err
				}
				for _, d := range answer.Data {
					for _, s := range d.Spans {
						spans[s.OperationName] = s
					}
				}
			}
			if len(spans) != 3 {
				return fmt.Errorf("%d spans", len(spans))
			}
			return nil
		})
		outer, sum := spans["outer"], 0.0
		for _, s := range spans {
			joules, _ := s.tag("gpu.span.energy").(float64)
			sum += joules
		}
		got := map[string]any{"all": sum}
		for _, key := range []string{"start", "end", "max"} {
			got[key] = outer.tag("gpu.span.utilization." + key)
		}
		got["workload"], got["basis"] = outer.tag("gpu.span.workload.energy"), outer.tag("gpu.span.energy.basis")
		want := map[string]any{"all": 400., "start": 0.2, "end": 0.5, "max": 0.95, "workload": 400., "basis": "counter"}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 0.01)); diff != "" {
			t.Errorf("%s: the spans in Jaeger (-want +got):\n%s", a.name, diff)
		}
		high := false
		for _, l := range outer.Logs {
			for _, f := range l.Fields {
				high = high || f.Value == "gpu_high_utilization"
			}
		}
		if !high {
			t.Errorf("%s: no event of high utilization in Jaeger: %+v", a.name, outer.Logs)
		}
	}
}
