//go:build linux

package sampler

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// skip skips a test for lack of something, or fails it if GPUMETER_REQUIRE names it.
func skip(t testing.TB, what string, why error) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), what) {
		t.Fatalf("GPUMETER_REQUIRE asks for %s: %v", what, why)
	}
	t.Skipf("needs %s: %v", what, why)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pythons returns the interpreters of this machine, by version.
func pythons(t testing.TB) map[string]string {
	t.Helper()
	found := map[string]string{}
	patterns := []string{"/usr/bin/python3.[0-9]*", "/usr/local/bin/python3.[0-9]*"}
	if home, err := os.UserHomeDir(); err == nil {
		patterns = append(patterns, filepath.Join(home, ".pyenv/versions/3.*/bin/python3.[0-9]*"))
	}
	for _, pattern := range append(patterns, os.Getenv("GPUMETER_PYTHONS")) {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if version, ok := strings.CutPrefix(filepath.Base(path), "python"); ok && strings.Trim(version, "0123456789.") == "" {
				found[version+" in "+filepath.Dir(path)] = path
			}
		}
	}
	if len(found) == 0 {
		skip(t, "python3", errors.New("no interpreter found"))
	}
	return found
}

// interpreter returns one of Python whose frames are understood.
func interpreter(t testing.TB) string {
	t.Helper()
	all := pythons(t)
	for _, version := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(version, "3.1") {
			return all[version]
		}
	}
	skip(t, "python3", errors.New("none from 3.10 on"))
	return ""
}

// library builds the libcuda without a device that package probe is tested with.
func library(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		skip(t, "gcc", err)
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	out, err := exec.Command("gcc", "-O1", "-fPIC", "-shared", "-fcf-protection=none", "-DPROLOGUE=580", "-Wl,-soname,libcuda.so.1",
		"-o", path, "../../probe/testdata/cuda.c", "-lpthread").CombinedOutput()
	if err != nil {
		t.Fatalf("cannot build libcuda: %v\n%s", err, out)
	}
	return path
}

// program is a running program that takes commands.
type program struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t testing.TB, name string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	p := &program{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(p.kill)
	p.reaches("ready")
	return p
}

func (p *program) pid() uint32 { return uint32(p.cmd.Process.Pid) }

func (p *program) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func (p *program) reaches(step string) {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != step {
		p.t.Fatalf("the program says %q, want %q: %v", line, step, err)
	}
}

func (p *program) does(what string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, what+"\n")
	check(p.t, err)
	p.reaches("done")
}

// taken profiles what processes do meanwhile.
func taken(t testing.TB, o Options, do func()) profile.Profile {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, end := make(chan struct{}), make(chan error, 1)
	o.Ready = func() { close(ready) }
	var p profile.Profile
	go func() {
		var err error
		p, err = Take(ctx, o)
		end <- err
	}()
	select {
	case err := <-end:
		if err != nil {
			skip(t, "bpf", err)
		}
		t.Fatal("a profile ended by itself")
	case <-ready:
	}
	do()
	cancel()
	check(t, <-end)
	return p
}

func only(pids ...uint32) func(uint32) bool {
	return func(pid uint32) bool { return slices.Contains(pids, pid) }
}
