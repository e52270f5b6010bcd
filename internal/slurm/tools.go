package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxAnswer bounds an answer of the controller. The text form of 50,000 jobs fits.
const maxAnswer = 64 << 20

// ErrTooLong means that an answer exceeded maxAnswer bytes.
var ErrTooLong = errors.New("answer too long")

// Tools runs Slurm's command-line programs from one directory.
type Tools struct {
	dir  string
	conf string   // path of slurm.conf; may be empty
	env  []string // additional environment variables
}

// folders are the directories searched for the tools. PATH is ignored on purpose: the
// environment must not decide which program runs.
var folders = []string{"/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin"}

// FindTools returns the tools in dir or, if dir is empty, in the first usual directory that
// has at least one of the named tools. ok is false if there is none. conf is the path of
// slurm.conf; if empty, the tools use their default.
func FindTools(dir, conf string, names ...string) (t Tools, ok bool) {
	list := folders
	if dir != "" {
		list = []string{dir}
	}
	for _, dir := range list {
		t := Tools{dir: dir, conf: conf}
		if slices.ContainsFunc(names, t.Has) {
			return t, true
		}
	}
	return Tools{}, false
}

// Has reports whether the directory has an executable of that name.
func (t Tools) Has(name string) bool {
	if t.dir == "" {
		return false
	}
	_, err := exec.LookPath(filepath.Join(t.dir, name))
	return err == nil
}

// With returns a copy of t that adds variables such as TZ=UTC0 to the tools' environment.
func (t Tools) With(env ...string) Tools {
	t.env = slices.Concat(t.env, env)
	return t
}

// Run runs a tool and passes its standard output to parse. The tool gets its own process
// group, so canceling ctx kills its children as well.
func (t Tools) Run(ctx context.Context, parse func(io.Reader) error, name string, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(t.dir, name), args...)
	// The agent's environment may hold secrets, and SQUEUE_* variables change the output.
	cmd.Env = []string{"LC_ALL=C", "PATH=" + t.dir}
	if t.conf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+t.conf)
	}
	cmd.Env = append(cmd.Env, t.env...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for a child that left the group and keeps the pipe open
	var stderr beginning
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot run %s: %w", name, err)
	}
	limited := &io.LimitedReader{R: out, N: maxAnswer}
	err = parse(limited)
	_, _ = io.Copy(io.Discard, limited) // drain the pipe so the tool can still report why it failed
	if limited.N <= 0 {
		err = fmt.Errorf("%w: more than %d MiB", ErrTooLong, maxAnswer>>20)
		cancel()
	}
	wait := cmd.Wait()
	switch said := stderr.String(); {
	case errors.Is(err, ErrTooLong):
		return fmt.Errorf("%s: %w", name, err)
	case wait != nil && said != "":
		return fmt.Errorf("%s: %s", name, said)
	case wait != nil && ctx.Err() != nil:
		return fmt.Errorf("%s: %w", name, ctx.Err())
	case wait != nil && err != nil:
		return fmt.Errorf("%s: %w, %w", name, wait, err)
	case wait != nil:
		return fmt.Errorf("%s: %w", name, wait)
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// WithoutJSON reports whether requesting text may succeed where JSON failed: the tool does
// not know the option, lacks the JSON plugin, or writes more than maxAnswer.
func WithoutJSON(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, ErrTooLong) {
		return true
	}
	for _, s := range []string{"unrecognized option", "invalid option", "plugin", "serializer", "openapi", "data_parser"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

// beginning keeps the first 512 bytes written to it and discards the rest.
type beginning struct{ b []byte }

// Write implements io.Writer.
func (w *beginning) Write(p []byte) (int, error) {
	if room := 512 - len(w.b); room > 0 {
		w.b = append(w.b, p[:min(len(p), room)]...)
	}
	return len(p), nil
}

// String returns the first line.
func (w *beginning) String() string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(w.b), []byte("\n"))
	return Text(string(line))
}
