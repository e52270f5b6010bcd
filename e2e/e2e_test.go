//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gpumeter/gpumeter/internal/await"
)

// skip skips the test because tool is missing, or fails it if GPUMETER_REQUIRE names the tool.
func skip(t *testing.T, tool string, why any) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), tool) {
		t.Fatalf("GPUMETER_REQUIRE requires %s: %v", tool, why)
	}
	t.Skipf("%s is missing: %v", tool, why)
}

// gpumeter builds the program as shipped and returns its path.
func gpumeter(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpumeter")
	command(t, "..", "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/gpumeter")
	return path
}

// command runs a program in dir to completion, without cgo, and returns its output.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := tryCommand(t, dir, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func tryCommand(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "TMPDIR="+t.TempDir()) // the builder leaves a folder behind
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// process is a program that runs until the test ends or stops it.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

// start runs a program in the background. It ends with the test.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{name: filepath.Base(name), cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Dir = t.TempDir()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if the test binary is killed
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("cannot start %s: %v", p.name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // stop reports how it ended
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // no error if it has ended
		<-p.done
		if t.Failed() {
			t.Logf("output of %s:\n%s", p.name, p.said())
		}
	})
	return p
}

// stop terminates the process and returns its exit code.
func (p *process) stop(t *testing.T) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("cannot stop %s: %v", p.name, err)
	}
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Write implements io.Writer.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// find waits until the process prints a match of re and returns its first group.
func (p *process) find(t *testing.T, re *regexp.Regexp) string {
	t.Helper()
	var found string
	eventually(t, p.name+" prints "+re.String(), func() error {
		m := re.FindStringSubmatch(p.said())
		if m == nil {
			select {
			case <-p.done:
				t.Fatalf("%s has ended", p.name)
			default:
			}
			return fmt.Errorf("no match yet")
		}
		found = m[1]
		return nil
	})
	return found
}

// ready waits until a page of the process can be had.
func (p *process) ready(t *testing.T, url string) {
	t.Helper()
	eventually(t, p.name+" is ready", func() error {
		select {
		case <-p.done:
			t.Fatalf("%s has ended", p.name)
		default:
		}
		_, err := get(t, url)
		return err
	})
}

// eventually calls f until it returns nil.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	await.NoError(t, func() error {
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func get(t *testing.T, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// pageAddress is what the page exporter logs when it serves.
var pageAddress = regexp.MustCompile(`serving metrics.*"address": ?"([^"]+)"`)
