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
	"slices"
	"sync"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// tracee is what traces: live.Tracer, or a test.
type tracee interface {
	Run(ctx context.Context) error
	Snapshot(now time.Time, gpus map[uint32][]string) tracer.Snapshot
	Record(pid uint32, on bool) error
}

// traceMachine is what is known of the devices, and of whose processes are.
type traceMachine interface {
	Tick(ctx context.Context, now time.Time) node.Tick
	Learn(ctx context.Context)
	Process(pid uint32) (workload.Workload, bool)
}

// traceEnv is how the commands that trace open the machine; tests open another one.
type traceEnv struct {
	hardware
	mode   string
	tracer func(live.Options) (tracee, error)
	view   func(local.Config) (traceMachine, error)
}

func newTraceEnv() traceEnv {
	return traceEnv{
		tracer: func(o live.Options) (tracee, error) { return live.Open(o) },
		view: func(c local.Config) (traceMachine, error) {
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

// traceSession is a tracer that runs, and the machine beside it.
type traceSession struct {
	tracee
	traceMachine
	stop func() error
}

// open begins to trace, until stop is called.
func (e *traceEnv) open(ctx context.Context) (*traceSession, error) {
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
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	var ended error
	done.Go(func() { ended = t.Run(ctx) })
	done.Go(func() { view.Learn(ctx) })
	return &traceSession{tracee: t, traceMachine: view, stop: func() error {
		cancel()
		done.Wait()
		if errors.Is(ended, context.Canceled) {
			return nil
		}
		return ended
	}}, nil
}

// look makes a reading of both.
func (s *traceSession) look(ctx context.Context) (tracer.Snapshot, node.Tick) {
	t := s.Tick(ctx, time.Now())
	return s.Snapshot(time.Now(), onDevices(&t)), t
}

// onDevices returns whom the driver lists, with the UUIDs of the devices, or of the
// partitions if it knows those.
func onDevices(t *node.Tick) map[uint32][]string {
	all := map[uint32][]string{}
	cut := map[uint32][]string{} // devices of which a partition is already there
	for _, partitions := range []bool{true, false} {
		for i := range t.Readings {
			r := &t.Readings[i]
			if (r.ID.Parent != "") != partitions {
				continue
			}
			for _, p := range r.Processes {
				if slices.Contains(cut[p.PID], r.ID.UUID) {
					continue
				}
				all[p.PID] = append(all[p.PID], r.ID.UUID)
				cut[p.PID] = append(cut[p.PID], r.ID.Parent)
			}
		}
	}
	return all
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
	defer func() { err = errors.Join(err, s.stop()) }()
	if c.perfetto != "" {
		return c.record(ctx, s, w)
	}
	return c.watch(ctx, s, w)
}

// watch reports until ctx ends, and once more then.
func (c *traceCommand) watch(ctx context.Context, s *traceSession, w io.Writer) error {
	before, _ := s.look(ctx)
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for first, over := true, false; !over; first = false {
		select {
		case <-ctx.Done():
			over = true
		case <-ticker.C:
		}
		now, tick := s.look(context.WithoutCancel(ctx))
		if !first && now.Time.Sub(before.Time) < c.interval/2 { // it ended right after a report
			return nil
		}
		r := c.report(s, before, now, &tick)
		out := bufio.NewWriter(w)
		if c.asJSON {
			if err := json.NewEncoder(out).Encode(r); err != nil {
				return err
			}
		} else {
			if c.terminal {
				fmt.Fprint(out, "\x1b[H\x1b[2J")
				if width, height, err := term.GetSize(os.Stdout.Fd()); err == nil {
					r.width, r.height = width, height
				}
			}
			r.print(out)
		}
		if err := out.Flush(); err != nil {
			return err
		}
		before = now
	}
	return nil
}

// traceReport is what is shown of an interval.
type traceReport struct {
	Time      time.Time          `json:"time"`
	Seconds   float64            `json:"seconds"` // since the report before
	Mode      string             `json:"mode,omitempty"`
	Processes []tracedProcess    `json:"processes"`
	Groups    []tracer.CommGroup `json:"groups,omitempty"`
	Libraries []tracer.Library   `json:"libraries"`
	Untraced  []tracer.Untraced  `json:"untraced,omitempty"`
	Losses    tracer.Losses      `json:"losses"`
	Problem   string             `json:"problem,omitempty"` // why the last reading failed
	Missing   []probe.Feature    `json:"missing,omitempty"` // what the kernel or our rights lack, and what that costs
	Others    int                `json:"others,omitempty"`  // processes that were not chosen

	places        map[string]string // what people call devices by, by UUID
	width, height int               // of the terminal; 0: not known
}

// tracedProcess is one process with whose it is.
type tracedProcess struct {
	tracer.Process
	Workload *workload.Workload `json:"workload,omitempty"`
	Verdict  *anomaly.Verdict   `json:"verdict,omitempty"`

	delta tracer.Process // what it did in the interval
}

func (c *traceCommand) report(s *traceSession, before, now tracer.Snapshot, t *node.Tick) *traceReport {
	r := &traceReport{
		Time: now.Time, Seconds: now.Time.Sub(before.Time).Seconds(), Groups: now.Groups, Libraries: now.Libraries, Losses: now.Losses,
		Processes: []tracedProcess{}, places: map[string]string{},
	}
	if f, ok := s.tracee.(interface{ Features() []probe.Feature }); ok {
		r.Missing = slices.DeleteFunc(slices.Clone(f.Features()), func(f probe.Feature) bool { return f.OK })
	}
	if f, ok := s.tracee.(interface{ Err() error }); ok {
		if err := f.Err(); err != nil {
			r.Problem = err.Error()
		}
	}
	if len(now.Libraries) > 0 {
		r.Mode = now.Libraries[0].Mode
	}
	for i := range t.Readings {
		id := t.Readings[i].ID
		r.places[id.UUID] = fmt.Sprintf("GPU %d", id.Index)
		if id.Parent != "" {
			r.places[id.UUID] += " " + id.Profile
		}
	}
	was := map[uint32]*tracer.Process{}
	for i := range before.Processes {
		was[before.Processes[i].PID] = &before.Processes[i]
	}
	verdicts := map[uint32]*anomaly.Verdict{}
	for _, v := range anomaly.Judge(before, now) {
		verdicts[v.PID] = &v
	}
	for i := range now.Processes {
		p := &now.Processes[i]
		one := tracedProcess{Process: *p, Verdict: verdicts[p.PID]}
		if w, ok := s.Process(p.PID); ok {
			one.Workload = &w
		}
		if !c.takes(p.PID, one.Workload) {
			r.Others++
			continue
		}
		one.delta = processSince(p, was[p.PID])
		r.Processes = append(r.Processes, one)
	}
	for _, u := range now.Untraced {
		w, ok := s.Process(u.PID)
		if !ok && c.takes(u.PID, nil) || ok && c.takes(u.PID, &w) {
			r.Untraced = append(r.Untraced, u)
		}
	}
	return r
}
