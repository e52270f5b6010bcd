//go:build linux

package cli_test

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// What a test plants. Each may turn up only where it is meant to go.
var secrets = map[string]string{
	"header of the flag":     "pl4nted-flag-header",
	"header of the variable": "pl4nted-env-header",
	"password":               "pl4nted-password",
	"password, encoded":      base64.StdEncoding.EncodeToString([]byte("me:pl4nted-password")),
	"token of the file":      "pl4nted-token",
	"serial number":          "1650777123456",
	"part number":            "900-PL4NT-0000-000",
	"serial of the log":      "1650777654321",
	"bad value":              "pl4nted-bad-value",
}

// hoard is everything that others can see, by where.
type hoard map[string]string

func (h hoard) check(t *testing.T) {
	t.Helper()
	for where, text := range h {
		if text == "" {
			t.Errorf("%s is empty: it proves nothing", where)
		}
		for what, secret := range secrets {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s has the %s: ...%q", where, what, text[max(0, i-300):min(len(text), i+len(secret)+20)])
			}
		}
	}
}

// folder adds every file below dir.
func (h hoard) folder(t *testing.T, name, dir string) {
	t.Helper()
	all := ""
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		all += path + "\n" + string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h[name] = all
}

// run adds what a command prints.
func (h hoard) run(t *testing.T, env []string, args ...string) {
	t.Helper()
	out, err := command(t.Context(), env, args...).CombinedOutput()
	h[fmt.Sprintf("output %d, of gpumeter %q", len(h), args)] = string(out) + fmt.Sprint(err)
}

// plantedHost returns the flags of a machine whose boards and whose kernel log have
// serial numbers, and log, which writes to the latter.
func plantedHost(t *testing.T) (flags []string, log func(text string)) {
	t.Helper()
	host := nvmltest.New(t, "gpus 2\ngpu * serial "+secrets["serial number"]+"\ngpu * board-part "+secrets["part number"]+"\n")
	root := t.TempDir()
	for _, dir := range []string{"dev", "proc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/uptime"), []byte("1000.00 1.00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "dev/kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	seq := 10
	return []string{"--nvidia-library", host.Library, "--root", root}, func(text string) {
		seq++
		if _, err := fmt.Fprintf(w, "4,%d,%d,-;%s\n", seq, 1_000_000*(1000+seq), text); err != nil {
			t.Fatal(err)
		}
		// The kernel gives one record a read; a FIFO would give what there is.
		await.NoError(t, func() error {
			var n int32
			if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, w.Fd(), syscall.TIOCINQ, uintptr(unsafe.Pointer(&n))); errno != 0 || n > 0 {
				return fmt.Errorf("%d bytes of the kernel log are unread: %w", n, errno)
			}
			return nil
		})
	}
}

// echoes refuses the first two requests and says in the answer what they were made with,
// as a proxy does that is helpful to whoever debugs it; and the fifth and what follows, so
// that something waits in the queue.
func echoes(secret string) func(n int) *refusal {
	// A google.rpc.Status is what the exporter takes a text from.
	body := string([]byte{2<<3 | 2, byte(len(secret))}) + secret
	return func(n int) *refusal {
		switch {
		case n == 1:
			return &refusal{code: 401, body: body, err: status.Error(codes.Unauthenticated, secret)}
		case n == 2, n > 6:
			return &refusal{code: 503, body: body, err: status.Error(codes.Unavailable, secret)}
		}
		return nil
	}
}

// plantedAgent is one that was given secrets, and what it writes to.
type plantedAgent struct {
	*agent

	name, protocol, state, file string
	backend                     *backend
	log                         func(string) // writes to its kernel's
}

// plant starts an agent whose backend refuses and repeats secret. args gets its flags.
func plant(t *testing.T, name, protocol, secret string, env func(addr string) []string, args func(p *plantedAgent, hardware []string) []string) *plantedAgent {
	t.Helper()
	p := &plantedAgent{name: name, protocol: protocol, state: t.TempDir(), file: filepath.Join(t.TempDir(), "otlp.json"), backend: newBackend(t)}
	p.backend.keep, p.backend.refuse = true, echoes(secret)
	p.backend.up(protocol == "grpc")
	hardware, log := plantedHost(t)
	p.log = log
	p.agent = startWith(t, env(p.backend.addr), append(args(p, hardware), "--log-level", "debug")...)
	return p
}

// gather waits until the agent has sent, was refused and has something in its queue, and
// puts all that it wrote into h.
func (p *plantedAgent) gather(t *testing.T, h hoard) {
	t.Helper()
	b := p.backend
	p.waitLog(serving)
	p.log("NVRM: GPU Board Serial Number: " + secrets["serial of the log"])
	p.log("NVRM: Xid (PCI:0000:10:00): 62, GPU serial number " + secrets["serial of the log"])
	await.NoError(t, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.asked) < 7 || p.protocol != "grpc" && b.others["logs"] == 0 {
			return fmt.Errorf("%s: %d requests, others %v", p.name, len(b.asked), b.others)
		}
		return nil
	})
	for _, accept := range []string{"", "application/openmetrics-text"} {
		text, err := p.get("/metrics", accept)
		if err != nil {
			t.Error(err)
		}
		h[p.name+": page "+accept] = text
	}
	h.folder(t, p.name+": queue", p.state)
	p.stop()
	h.folder(t, p.name+": state", p.state)
	h.folder(t, p.name+": file", filepath.Dir(p.file))
	h[p.name+": log"] = p.agent.log.String()
	for _, said := range []string{"Exporting failed. Dropping data.", "Exporting failed. Will retry the request after interval."} {
		if !strings.Contains(h[p.name+": log"], said) {
			t.Errorf("%s: the log has no %q", p.name, said)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h[p.name+": what was sent"] = string(b.bodies)
}

// withPassword are the variables of an agent that has a password and a header.
func withPassword(addr string) []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://me:" + secrets["password"] + "@" + addr,
		"OTEL_EXPORTER_OTLP_HEADERS=api-key=" + secrets["header of the variable"],
	}
}

func withToken(string) []string { return []string{"TOKEN=" + secrets["token of the file"]} }

// tokenConfig is a configuration with a token, and all records there are.
func tokenConfig(t *testing.T, addr, state, file string, hardware []string) string {
	t.Helper()
	return write(t, "config.yaml", fmt.Sprintf(`
extensions:
  gpu: {interval: 200ms, nvidia_library: %q, root: %q, host_name: host, state_dir: %q}
  file_storage: {directory: %q, fsync: false, create_directory: true}
receivers:
  gpu: {snapshots: true}
exporters:
  page: {endpoint: "localhost:0"}
  file: {path: %q}
  debug: {verbosity: detailed}
  otlp_http/metrics:
    endpoint: "http://%s"
    compression: none
    headers: {authorization: "Bearer ${env:TOKEN}"}
    sending_queue: {storage: file_storage, num_consumers: 1}
service:
  extensions: [gpu, file_storage]
  pipelines:
    metrics: {receivers: [gpu], exporters: [page, file, debug, otlp_http/metrics]}
    logs: {receivers: [gpu], exporters: [file, debug, otlp_http/metrics]}
`, hardware[1], hardware[3], state, filepath.Join(state, "queue"), file, addr))
}

// No secret is in a log, page, record or file of an agent, nor in what it sends, even if
// the backend repeats it.
func TestSecretsOfAgent(t *testing.T) {
	t.Parallel()
	flags := func(p *plantedAgent, hardware []string, more ...string) []string {
		return slices.Concat(hardware, []string{
			"--listen", "localhost:0", "--host-name", "host", "--interval", "200ms", "--no-cloud", "--state-dir", p.state, "--otlp-file", p.file,
		}, more)
	}
	agents := []*plantedAgent{
		plant(t, "variables", "http", "Basic "+secrets["password, encoded"]+" and "+secrets["header of the variable"], withPassword,
			func(p *plantedAgent, hardware []string) []string { return flags(p, hardware) }),
		plant(t, "flags", "grpc", secrets["header of the flag"], func(string) []string { return nil },
			func(p *plantedAgent, hardware []string) []string {
				return flags(p, hardware, "--otlp-endpoint", "http://"+p.backend.addr, "--otlp-protocol", "grpc", "--otlp-header", "api-key="+secrets["header of the flag"])
			}),
		plant(t, "file", "http", "Bearer "+secrets["token of the file"], withToken,
			func(p *plantedAgent, hardware []string) []string {
				return []string{"--config", tokenConfig(t, p.backend.addr, p.state, p.file, hardware)}
			}),
	}
	h := hoard{}
	for _, p := range agents {
		p.gather(t, h)
	}
	h.check(t)
	for i, want := range []string{secrets["header of the variable"], secrets["header of the flag"], ""} {
		if got := agents[i].backend.headers[0]; got != want {
			t.Errorf("%s: the header is %q, want %q: nothing was planted", agents[i].name, got, want)
		}
	}
}

// Nor is one in what commands print, or in the error for a bad value.
func TestSecretsOfCommands(t *testing.T) {
	t.Parallel()
	h := hoard{}
	hardware, _ := plantedHost(t)
	for _, args := range [][]string{
		{"devices"},
		{"devices", "--json"},
		{"doctor"},
		{"doctor", "--json"},
		{"agent", "--once"},
		{"agent", "--once", "--output", "json"},
		{"agent", "--once", "--output", "prometheus"},
		{"agent", "--print-config"},
	} {
		h.run(t, withPassword("localhost:1"), append(args, hardware...)...)
	}
	h.run(t, nil, "agent", "--print-config", "--otlp-endpoint", "http://localhost:1", "--otlp-header", "api-key="+secrets["header of the flag"])
	config := tokenConfig(t, "localhost:1", t.TempDir(), "/dev/null", hardware)
	h.run(t, withToken(""), "agent", "--print-config", "--config", config)
	h.run(t, withToken(""), "validate", "--config", config)

	bad := secrets["bad value"]
	h.run(t, nil, "agent", "--otlp-endpoint", "http://localhost:1", "--otlp-header", bad)
	h.run(t, nil, "agent", "--otlp-endpoint", "http://localhost:1", "--otlp-header", "a=b\n"+bad)
	h.run(t, nil, "agent", "--otlp-endpoint", "http://me:"+bad+"@local host:1")
	h.run(t, nil, "agent", "--otlp-endpoint", "ftp://me:"+bad+"@localhost:1")
	h.run(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:1", "OTEL_EXPORTER_OTLP_HEADERS=a=%zz" + bad}, "agent")
	h.run(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:1", "OTEL_EXPORTER_OTLP_HEADERS=" + bad}, "agent")
	config = `
extensions: {gpu: {simulate: h200}}
receivers: {gpu: }
exporters: {page: {endpoint: "localhost:0"}, otlp_http: {%s}}
service: {extensions: [gpu], pipelines: {metrics: {receivers: [gpu], exporters: [page, otlp_http]}}}
`
	for _, exporter := range []string{
		`endpoint: "http://localhost:1", headers: {authorization: [` + bad + `]}`,
		`endpoint: "http://localhost:1", headers: {authorization: {a: ` + bad + `}}`,
		`endpoint: "http://localhost:1", headers: ` + bad,
		`endpoint: "http://localhost:1", header: {authorization: ` + bad + `}`,
		`endpoint: "http://localhost:1", headers: {authorization: ` + bad + `, : }`,
		`endpoint: "http://me:` + bad + `@local host:1"`,
		`endpoint: "http://me:` + bad + `@localhost:1:2"`,
	} {
		h.run(t, nil, "agent", "--socket", "", "--config", write(t, "bad.yaml", fmt.Sprintf(config, exporter)))
	}
	// A scheme that the exporter refuses only when it sends, with the URL in its error.
	a := startConfig(t, fmt.Sprintf(config, `endpoint: "ftp://me:`+bad+`@localhost:1"`))
	a.waitLog("Exporting failed. Will retry the request after interval.")
	h["log of a bad scheme"] = a.log.String()
	h.check(t)
}
