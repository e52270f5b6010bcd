//go:build linux

// The tests of this package run the binary as users do and check what users see: its page, its
// output, its log and its exit code.
package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpumeter/gpumeter/internal/await"
)

// binary is the path of gpumeter, built as it is shipped.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gpumeter")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "gpumeter")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "github.com/gpumeter/gpumeter/cmd/gpumeter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("cannot build gpumeter: %v\n%s", err, out))
	}
	m.Run()
}

// command returns gpumeter with args, in an environment with only env.
func command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append([]string{"HOME=/"}, env...)
	if gogc, ok := os.LookupEnv("GOGC"); ok { // make test saves time with it
		cmd.Env = append(cmd.Env, "GOGC="+gogc)
	}
	// A test that is killed takes its children with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// result is the output and the exit code of a command.
type result struct {
	code           int
	stdout, stderr string
}

// run runs gpumeter until it exits.
func run(t *testing.T, args ...string) result {
	t.Helper()
	cmd := command(t.Context(), nil, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// output is run for a command that must succeed without output on standard error.
func output(t *testing.T, args ...string) string {
	t.Helper()
	r := run(t, args...)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("gpumeter %s: exit code %d, %s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// shortDir returns a fresh folder whose path fits into the 108 bytes of a socket's
// address, which that of t.TempDir may not.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// agent is a running gpumeter agent.
type agent struct {
	t      *testing.T
	cmd    *exec.Cmd
	socket string
	log    *lockedBuffer
	ended  chan struct{} // closed when it has

	url func() string // of its page
}

// start starts an agent with its page at a free port and a socket of its own.
func start(t *testing.T, args ...string) *agent {
	t.Helper()
	return startWith(t, nil, append(args, "--listen", "localhost:0", "--no-cloud")...)
}

// startConfig starts an agent with a configuration, whose page is at a free port.
func startConfig(t *testing.T, config string) *agent {
	t.Helper()
	return startWith(t, nil, "--config", write(t, "config.yaml", config))
}

// startWith starts an agent with flags. Agents of several tests share this machine, so none waits for
// another one.
func startWith(t *testing.T, env []string, args ...string) *agent {
	t.Helper()
	return launch(t, env, append(args, "--no-standby")...)
}

func launch(t *testing.T, env []string, args ...string) *agent {
	t.Helper()
	a := &agent{t: t, socket: filepath.Join(shortDir(t), "sock"), log: &lockedBuffer{}, ended: make(chan struct{})}
	if !slices.Contains(args, "--config") && !slices.Contains(args, "--state-dir") {
		args = append(args, "--state-dir", t.TempDir())
	}
	if slices.Contains(args, "--trace") && !slices.Contains(args, "--trace-keep") {
		args = append(args, "--trace-keep", "") // nothing stays on the machine that runs the tests
	}
	a.cmd = command(context.Background(), env, append([]string{"agent", "--socket", a.socket}, args...)...)
	a.cmd.Stderr = a.log
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(a.ended)
		_ = a.cmd.Wait() // whoever cares looks at the exit code
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // unless it has ended
		<-a.ended
		if t.Failed() {
			lines := strings.SplitAfter(a.log.String(), "\n")
			t.Logf("log of the agent, its end:\n%s", strings.Join(lines[max(0, len(lines)-40):], ""))
		}
	})
	a.url = sync.OnceValue(func() string {
		return "http://" + a.waitLog("serving metrics")["address"].(string)
	})
	return a
}

// write writes a file into a folder of its own and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// stop stops the agent as systemd does and checks that it exits cleanly.
func (a *agent) stop() {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		a.t.Fatal(err)
	}
	<-a.ended
	if code := a.cmd.ProcessState.ExitCode(); code != 0 {
		a.t.Errorf("exit code after SIGTERM is %d", code)
	}
}

// entries returns the log so far.
func (a *agent) entries() []map[string]any {
	a.t.Helper()
	var list []map[string]any
	for line := range strings.Lines(a.log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			a.t.Fatalf("the log has a line that is not JSON: %q", line)
		}
		list = append(list, entry)
	}
	return list
}

// waitLog waits for a line whose message is msg and returns the last such.
func (a *agent) waitLog(msg string) (entry map[string]any) {
	a.t.Helper()
	await.NoError(a.t, func() error {
		for _, entry = range slices.Backward(a.entries()) {
			if entry["msg"] == msg {
				return nil
			}
		}
		select {
		case <-a.ended: // nothing more will come
			a.t.Fatalf("the agent ended without the log line %q", msg)
		default:
		}
		return fmt.Errorf("no log line %q", msg)
	})
	return entry
}

// get returns the body at path, an error unless the status is 200.
func (a *agent) get(path, accept string) (string, error) {
	req, err := http.NewRequestWithContext(a.t.Context(), http.MethodGet, a.url()+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return string(body), err
}

// running fails the test if the agent has ended: what the test waits for will not come.
func (a *agent) running() {
	a.t.Helper()
	select {
	case <-a.ended:
		a.t.Fatal("the agent ended")
	default:
	}
}

// loopback returns a host name of this machine that other tests are unlikely to use: at 127.0.0.1
// another one may be given a port that was found free.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250))
}

// waitPage waits until ok accepts the page, and returns it.
func (a *agent) waitPage(ok func(page) error) (p page) {
	a.t.Helper()
	await.NoError(a.t, func() error {
		a.running()
		text, err := a.get("/metrics", "")
		if err != nil {
			return err
		}
		if p, err = parse(text); err != nil {
			a.t.Fatalf("the page is broken: %v\n%s", err, text)
		}
		return ok(p)
	})
	return p
}

// page is a Prometheus page: series, written as in the text format, and their values.
type page map[string]float64

func parse(text string) (page, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	p := page{}
	for _, f := range families {
		for _, m := range f.Metric {
			p[series(f.GetName(), m.Label)] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return p, nil
}

func series(name string, labels []*dto.LabelPair) string {
	var list []string
	for _, l := range labels {
		list = append(list, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	return name + "{" + strings.Join(list, ",") + "}"
}

// byGPU returns the values of the series called name, by index of the GPU.
func (p page) byGPU(name string) map[string]float64 {
	list := map[string]float64{}
	for s, v := range p {
		if strings.HasPrefix(s, name+"{") && !strings.Contains(s, "gpu_partition_id=") {
			list[label(s, "gpu_index")] = v
		}
	}
	return list
}

// names returns the names of the metrics of devices on the page.
func (p page) names() []string {
	set := map[string]bool{}
	for s := range p {
		if name, _, _ := strings.Cut(s, "{"); strings.HasPrefix(name, "gpu_") {
			set[name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// label returns the value of a label of a series, empty if it has none.
func label(series, name string) string {
	_, rest, _ := strings.Cut(series, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// lockedBuffer is a bytes.Buffer that may be read while a process writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns the whole lines written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	whole := bytes.LastIndexByte(b.b.Bytes(), '\n') + 1
	return string(b.b.Bytes()[:whole])
}
