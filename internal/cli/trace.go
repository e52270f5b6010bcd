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

	"github.com/gpumeter/gpumeter/internal/cli/render"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// traceEnv is how the commands that trace open the machine; tests open another one.
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
	cmd.Flags().StringVar(&e.mode, "mode", "", "how functions are probed: session, multi, perf (default: the best that the kernel has)")
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"session", "multi", "perf"}, cobra.ShellCompDirectiveNoFileComp))
}

func (e *traceEnv) proc() string { return filepath.Join("/", e.root, "proc") }

// open begins to trace, until stop is called.
func (e *traceEnv) open(ctx context.Context) (*inspect.Session, error) {
	c := e.config()
	c.Interval = 5 * time.Second // the deadline of a device
	c.NoPCIeThroughput = true
	view, err := e.view(c)
	if err != nil {
		return nil, err
	}
	t, err := e.tracer(live.Options{Proc: e.proc(), Probe: probe.Options{Mode: e.mode}})
	if err != nil {
		if os.Geteuid() != 0 {
			return nil, fmt.Errorf("%w; run it as root, or with these capabilities", err)
		}
		return nil, err // it names what is missing, and what that costs
	}
	return inspect.Begin(ctx, t, view), nil
}

// The bounds of a recording.
const (
	defaultRecording = 5 * time.Second
	maxRecording     = time.Minute
)

// traceCommand are the flags of trace.
type traceCommand struct {
	traceEnv
	choice
	duration time.Duration
	interval time.Duration
	asJSON   bool
	perfetto string
	terminal bool // what is printed is redrawn in place
}

func newTrace() *cobra.Command {
	return (&traceCommand{traceEnv: newTraceEnv(), terminal: isTerminal(os.Stdout)}).command()
}

func (c *traceCommand) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show live what processes ask of CUDA and NCCL, and what they wait for",
		Long: `Show live what processes ask of CUDA and NCCL: calls, kernels, copies, waits, memory,
collectives, what the host kept them from, and a verdict: what their speed depends on.
Nothing is installed into the processes; each traced call costs about a microsecond.

It needs root, or CAP_BPF and CAP_PERFMON, and CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE
for processes of other users.`,
		Example: `  gpumeter trace
  gpumeter trace --pod ml/llm-0 --duration 30s
  gpumeter trace --job 4711 --json
  gpumeter trace --pid 4242 --perfetto calls.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(cmd.Flags().Changed("duration")); err != nil {
				return err
			}
			return c.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	c.traceEnv.register(cmd)
	c.choice.register(cmd)
	f := cmd.Flags()
	f.DurationVar(&c.duration, "duration", 0, "end after this time (default: never; with --perfetto 5s)")
	f.DurationVar(&c.interval, "interval", 2*time.Second, "time between two reports, 200ms to 5m")
	f.BoolVar(&c.asJSON, "json", false, "print an object of JSON for each interval; what is counted in it is since the process was first seen")
	f.StringVar(&c.perfetto, "perfetto", "", "record every call to `FILE` for ui.perfetto.dev, for at most a minute")
	return cmd
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
		return errors.New("--perfetto writes a file of its own: leave --json out")
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
	s, err := c.open(context.WithoutCancel(ctx)) // the last reading is made before it ends
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if c.perfetto != "" {
		return c.record(ctx, s, w)
	}
	return c.watch(ctx, s, w)
}

// watch reports until ctx ends, and once more then.
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
		if !first && now.Time.Sub(before.Time) < c.interval/2 { // it ended right after a report
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

// record writes every call of the chosen processes to a file, until ctx ends.
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

// choice are the flags that say which processes are looked at.
type choice struct{ inspect.Choice }

func (c *choice) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.UintSliceVar(&c.PIDs, "pid", nil, "`PID` of a process, on the host; may be repeated (default: all that use CUDA)")
	f.Lookup("pid").DefValue = "" // or the help adds that the default is []
	f.StringVar(&c.Pod, "pod", "", "processes of this pod, as `NAMESPACE/NAME`")
	f.StringVar(&c.Job, "job", "", "processes of the Slurm job of this `ID`")
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
		return fmt.Errorf("--pid, --pod and --job are one choice: give one of them, not %d", given)
	}
	return nil
}
