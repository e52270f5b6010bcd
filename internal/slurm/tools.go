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

// maxAnswer bounds what is read of the controller. Text of 50,000 jobs fits.
const maxAnswer = 64 << 20

// ErrTooLong means that an answer has more than maxAnswer bytes.
var ErrTooLong = errors.New("the answer is too long")

// Tools are Slurm's own programs.
type Tools struct {
	dir  string
	conf string   // path of slurm.conf, or empty
	env  []string // more variables
}

// folders are where the tools are looked for: no path of the environment decides what is
// run.
var folders = []string{"/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin"}

// FindTools returns the tools in dir, or in the first usual folder that has one of those
// named. ok is false if there are none. conf is the path of slurm.conf; empty: they know.
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

// Has reports whether there is a tool of that name.
func (t Tools) Has(name string) bool {
	if t.dir == "" {
		return false
	}
	_, err := exec.LookPath(filepath.Join(t.dir, name))
	return err == nil
}

// With returns the tools with variables in their environment, such as TZ=UTC0.
func (t Tools) With(env ...string) Tools {
	t.env = slices.Concat(t.env, env)
	return t
}

// Run runs a tool, in a process group of its own so that all of it ends with ctx, and
// gives what it writes to parse.
func (t Tools) Run(ctx context.Context, parse func(io.Reader) error, name string, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(t.dir, name), args...)
	// The environment of the agent has its own secrets, and SQUEUE_* would change the answer.
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
	_, _ = io.Copy(io.Discard, limited) // it may be about to say why it failed
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

// WithoutJSON reports whether asking for text may do better: the tool does not know the
// option, lacks the plugin that writes JSON, or writes too much of it.
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

// beginning keeps the first line of what is written, and takes all.
type beginning struct{ b []byte }

// Write implements io.Writer.
func (w *beginning) Write(p []byte) (int, error) {
	if room := 512 - len(w.b); room > 0 {
		w.b = append(w.b, p[:min(len(p), room)]...)
	}
	return len(p), nil
}

// String returns the line.
func (w *beginning) String() string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(w.b), []byte("\n"))
	return Text(string(line))
}
