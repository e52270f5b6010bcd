package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// maxAnswer bounds what is read of the controller. Text of 50,000 jobs fits.
const maxAnswer = 64 << 20

// command asks by running one of Slurm's own tools, one process for each question:
//
//	squeue --json --local --all --states=running,...
//	scontrol show job --details
//
// The first has JSON since 21.08, the second since 23.02 only. Measured with sdiag on
// 22.05, squeue costs the controller one request, REQUEST_JOB_INFO, which it has for all
// jobs and not for those of a node; --nodelist makes it two, as does scontrol, with
// REQUEST_NODE_INFO, and without --local it is asked for its federation. So the jobs of
// this node are picked here. The second is for versions without JSON and for clusters
// whose JSON is too large: its text has a third of the size, and of newer versions a
// tenth. The tools find out which by failing once.
type command struct {
	squeue, scontrol string // paths
	conf             string // slurm.conf, or empty
	node             string
	text             atomic.Bool
}

// tools are where Slurm's are looked for: no path of the environment decides what is run.
var tools = []string{"/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin"}

// newCommand returns nil if there are no tools. scontrol may name the tool; squeue is
// expected beside it.
func newCommand(scontrol, conf, node string) *command {
	folders := tools
	if scontrol != "" {
		folders = []string{filepath.Dir(scontrol)}
	}
	c := &command{conf: conf, node: node}
	for _, f := range folders {
		squeue, err1 := exec.LookPath(filepath.Join(f, "squeue"))
		scontrol, err2 := exec.LookPath(filepath.Join(f, "scontrol"))
		if err1 != nil && err2 != nil {
			continue
		}
		if err1 == nil {
			c.squeue = squeue
		}
		if err2 == nil {
			c.scontrol = scontrol
		}
		c.text.Store(err1 != nil)
		return c
	}
	return nil
}

// ask implements asker.
func (c *command) ask(ctx context.Context) ([]Job, error) {
	if c.text.Load() {
		return c.run(ctx, parseText, c.scontrol, "show", "job", "--details")
	}
	jobs, err := c.run(ctx, parseJSON, c.squeue, "--json", "--local", "--all", "--states=running,suspended,completing,configuring,stopped,resizing,signaling,stage_out")
	if c.scontrol != "" && withoutJSON(err) {
		c.text.Store(true)
	}
	return jobs, err
}

var errTooLong = errors.New("the answer is too long")

// withoutJSON reports whether asking for text may do better: the tool does not know the
// option, lacks the plugin that writes JSON, or writes too much of it.
func withoutJSON(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, errTooLong) {
		return true
	}
	for _, s := range []string{"unrecognized option", "invalid option", "plugin", "serializer", "openapi", "data_parser"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

// run runs a tool in a process group of its own, so that all of it ends with ctx.
func (c *command) run(ctx context.Context, parse func(io.Reader, string) ([]Job, error), path string, args ...string) ([]Job, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	// The environment of the agent has its own secrets, and SQUEUE_* would change the answer.
	cmd.Env = []string{"LC_ALL=C", "PATH=" + filepath.Dir(path)}
	if c.conf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+c.conf)
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for a child that left the group and keeps the pipe open
	var stderr beginning
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot run %s: %w", path, err)
	}
	limited := &io.LimitedReader{R: out, N: maxAnswer}
	jobs, err := parse(limited, c.node)
	_, _ = io.Copy(io.Discard, limited) // it may be about to say why it failed
	if limited.N <= 0 {
		err = fmt.Errorf("%w: more than %d MiB", errTooLong, maxAnswer>>20)
		cancel()
	}
	wait := cmd.Wait()
	switch said := stderr.String(); {
	case errors.Is(err, errTooLong):
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	case wait != nil && said != "":
		return nil, fmt.Errorf("%s: %s", filepath.Base(path), said)
	case wait != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), ctx.Err())
	case wait != nil && err != nil:
		return nil, fmt.Errorf("%s: %w, %w", filepath.Base(path), wait, err)
	case wait != nil:
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), wait)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return jobs, nil
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

// String returns the line, without the time that Slurm writes before some.
func (w *beginning) String() string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(w.b), []byte("\n"))
	return text(string(line))
}
