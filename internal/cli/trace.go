//go:build linux

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/cli/profiling"
	"github.com/gpumeter/gpumeter/internal/cli/render"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// traceEnv opens the tracer and the devices for trace and explain. Tests replace both.
type traceEnv struct {
	hardware
	mode   string
	tracer func(live.Options) (inspect.Tracer, error)
	view   func(local.Config) (inspect.Machine, error)
}

func newTraceEnv() traceEnv {
	return traceEnv{
		tracer: func(o live.Options) (inspect.Tracer, error) { return live.Open(o) },
		view: func(c local.Config) (inspect.Machine, error) {
			v, err := local.Open(c, nil)
			if err != nil {
				return nil, err
			}
			return v, nil
		},
	}
}

func (e *traceEnv) register(cmd *cobra.Command) {
	e.hardware.register(cmd)
	cmd.Flags().StringVar(&e.mode, "mode", "", "probe type: session, multi, perf (default: the best one the kernel supports)")
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"session", "multi", "perf"}, cobra.ShellCompDirectiveNoFileComp))
}

func (e *traceEnv) proc() string { return filepath.Join("/", e.root, "proc") }

// open starts a tracing session. The caller must close it.
func (e *traceEnv) open(ctx context.Context) (*inspect.Session, error) {
	c := e.config()
	c.Interval = 5 * time.Second // the timeout of reading a device
	c.NoPCIeThroughput = true
	view, err := e.view(c)
	if err != nil {
		return nil, err
	}
	t, err := e.tracer(live.Options{Proc: e.proc(), Probe: probe.Options{Mode: e.mode}})
	if err != nil {
		if os.Geteuid() != 0 {
			return nil, fmt.Errorf("%w; run this command as root or with these capabilities", err)
		}
		return nil, err // the error names what is missing
	}
	return inspect.Begin(ctx, t, view), nil
}

// Length of a recording.
const (
	defaultRecording = 5 * time.Second
	maxRecording     = time.Minute
)

// traceCommand holds the flags of gpumeter trace.
type traceCommand struct {
	traceEnv
	choice
	duration  time.Duration
	interval  time.Duration
	asJSON    bool
	perfetto  string
	profiling profiling.Flags
	socket    string // of the agent
	keep      string // where an agent keeps its probes
	start     bool   // make the agent trace
	stop      bool   // make the agent end tracing
	terminal  bool   // redraw the report in place
}

func newTrace() *cobra.Command {
	return (&traceCommand{traceEnv: newTraceEnv(), terminal: isTerminal(os.Stdout)}).command()
}

func (c *traceCommand) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Trace CUDA and NCCL calls live, and show what processes wait for",
		Long: `Trace CUDA and NCCL calls live: calls, kernels, copies, waits, memory, collectives, delays
caused by the host, and a verdict on what limits the speed of each process. Processes are
not modified; each traced call costs about a microsecond.

Tracing needs root, or CAP_BPF and CAP_PERFMON, and CAP_SYS_PTRACE and
CAP_CHECKPOINT_RESTORE for processes of other users.

--profile writes which line of Python launches which kernels, with launches, waits and estimated
GPU time. The agent of this machine takes the profile if it traces, otherwise this command.

--stop ends the tracing of the agent on this machine (gpumeter agent --trace) without a
restart: when it returns, no probe is left. --start starts it again. Probes survive a restart
of the agent; if it was uninstalled instead, --stop removes them.`,
		Example: `  gpumeter trace
  gpumeter trace --pod ml/llm-0 --duration 30s
  gpumeter trace --job 4711 --json
  gpumeter trace --pid 4242 --perfetto calls.json
  gpumeter trace --profile 30s -o train.pb.gz && go tool pprof -http : train.pb.gz
  gpumeter trace --stop`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.start || c.stop {
				return c.tell(cmd)
			}
			for _, name := range []string{"socket", "trace-keep"} {
				if cmd.Flags().Changed(name) && (name != "socket" || !cmd.Flags().Changed("profile")) {
					return fmt.Errorf("--%s has no effect without --stop or --start", name)
				}
			}
			if asked, err := c.profiling.Run(cmd, errors.Join(c.choice.check(), c.config().Validate()), &c.Choice, c.socket, c.proc(), c.open); asked || err != nil {
				return err
			}
			if err := c.check(cmd.Flags().Changed("duration")); err != nil {
				return err
			}
			return c.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	c.traceEnv.register(cmd)
	c.choice.register(cmd)
	f := cmd.Flags()
	f.DurationVar(&c.duration, "duration", 0, "stop after this time (default: never; 5s with --perfetto)")
	f.DurationVar(&c.interval, "interval", 2*time.Second, "time between reports, 200ms to 5m")
	f.BoolVar(&c.asJSON, "json", false, "print a JSON object per interval; its counters start when the process was first seen")
	f.StringVar(&c.perfetto, "perfetto", "", "record every call to `FILE` for ui.perfetto.dev, for at most a minute")
	c.profiling.Register(cmd)
	f.BoolVar(&c.stop, "stop", false, "end the tracing of the running agent: all its probes are removed")
	f.BoolVar(&c.start, "start", false, "start the tracing of the running agent again after --stop")
	f.StringVar(&c.socket, "socket", defaultSocket(), "control socket of the agent, for --stop, --start and --profile")
	f.StringVar(&c.keep, "trace-keep", agent.DefaultTraceKeep, "`FOLDER` in which the agent keeps its probes, for --stop after the agent is gone")
	cmd.MarkFlagsMutuallyExclusive("stop", "start")
	return cmd
}

// tell makes the agent start or end tracing.
func (c *traceCommand) tell(cmd *cobra.Command) error {
	for _, name := range append([]string{"duration", "interval", "job", "json", "mode", "perfetto", "pid", "pod"}, profiling.Names...) {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s has no effect with --stop and --start", name)
		}
	}
	if c.socket == "" {
		return errors.New("no default socket for this user: set --socket to the agent's")
	}
	answer, err := agent.Trace(cmd.Context(), c.socket, c.start)
	if err != nil && c.stop { // the agent may be gone for good, but its probes not
		if found, e := probe.Remove(c.keep); found && e == nil {
			answer, err = fmt.Sprintf("Removed the probes that an agent had left in %s.", c.keep), nil
		} else if e != nil {
			err = fmt.Errorf("%w; probes in %s cannot be removed either: %w", err, c.keep, e)
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), answer)
	return nil
}

func (c *traceCommand) check(durationSet bool) error {
	if c.perfetto != "" && !durationSet {
		c.duration = defaultRecording
	}
	switch {
	case c.duration < 0 || durationSet && c.duration == 0:
		return fmt.Errorf("--duration must be above 0, is %s", c.duration)
	case c.perfetto != "" && c.duration > maxRecording:
		return fmt.Errorf("--perfetto records every call: --duration must be at most %s, is %s", maxRecording, c.duration)
	case c.perfetto != "" && c.asJSON:
		return errors.New("--perfetto and --json are mutually exclusive")
	case c.interval < 200*time.Millisecond || c.interval > 5*time.Minute:
		return fmt.Errorf("--interval must be between 200ms and 5m, is %s", c.interval)
	}
	if err := c.choice.check(); err != nil {
		return err
	}
	return c.config().Validate()
}

func (c *traceCommand) run(ctx context.Context, w io.Writer) (err error) {
	if c.duration > 0 {
		limited, cancel := context.WithTimeout(ctx, c.duration)
		defer cancel()
		ctx = limited
	}
	s, err := c.open(context.WithoutCancel(ctx)) // the last reading follows the end of ctx
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if c.perfetto != "" {
		return c.record(ctx, s, w)
	}
	return c.watch(ctx, s, w)
}

// watch prints a report per interval until ctx is canceled, then a last one.
func (c *traceCommand) watch(ctx context.Context, s *inspect.Session, w io.Writer) error {
	before, _ := s.Look(ctx)
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for first, over := true, false; !over; first = false {
		select {
		case <-ctx.Done():
			over = true
		case <-ticker.C:
		}
		now, tick := s.Look(context.WithoutCancel(ctx))
		if !first && now.Time.Sub(before.Time) < c.interval/2 { // ctx ended right after a report
			return nil
		}
		r := s.Report(&c.Choice, before, now, &tick)
		out := bufio.NewWriter(w)
		if c.asJSON {
			if err := json.NewEncoder(out).Encode(r); err != nil {
				return err
			}
		} else {
			width, height := 0, 0
			if c.terminal {
				fmt.Fprint(out, "\x1b[H\x1b[2J")
				if x, y, err := term.GetSize(os.Stdout.Fd()); err == nil {
					width, height = x, y
				}
			}
			render.Trace(out, r, width, height)
		}
		if err := out.Flush(); err != nil {
			return err
		}
		before = now
	}
	return nil
}

// record writes every call of the chosen processes to a file until ctx is canceled.
func (c *traceCommand) record(ctx context.Context, s *inspect.Session, w io.Writer) error {
	f, err := os.OpenFile(c.perfetto, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot record: %w", err)
	}
	got, err := s.RecordCalls(ctx, &c.Choice, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if got.Processes == 0 {
		return fmt.Errorf("nothing was recorded: %s did not call CUDA within %s", &c.Choice, c.duration)
	}
	fmt.Fprintf(w, "%s of %s written to %s, %d lost. Open it at https://ui.perfetto.dev.\n",
		render.Plural(got.Calls, "call", "calls"), render.Plural(got.Processes, "process", "processes"), c.perfetto, got.Lost)
	return nil
}

// choice holds the flags that select processes.
type choice struct{ inspect.Choice }

func (c *choice) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.UintSliceVar(&c.PIDs, "pid", nil, "host `PID` of a process; may be repeated (default: all processes that use CUDA)")
	f.Lookup("pid").DefValue = "" // otherwise the help shows (default [])
	f.StringVar(&c.Pod, "pod", "", "processes of this pod, as `NAMESPACE/NAME`")
	f.StringVar(&c.Job, "job", "", "processes of the Slurm job with this `ID`")
}

func (c *choice) check() error {
	if c.Pod != "" {
		namespace, name, ok := strings.Cut(c.Pod, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("--pod must be NAMESPACE/NAME, is %q", c.Pod)
		}
	}
	given := 0
	for _, set := range []bool{len(c.PIDs) > 0, c.Pod != "", c.Job != ""} {
		if set {
			given++
		}
	}
	if given > 1 {
		return fmt.Errorf("give only one of --pid, --pod and --job, not %d", given)
	}
	return nil
}
