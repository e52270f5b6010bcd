//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/cli/render"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
)

// explainCommand holds the flags of gpumeter explain.
type explainCommand struct {
	traceEnv
	choice
	since    time.Duration
	duration time.Duration
	interval time.Duration
	stateDir string
	asJSON   bool
}

// The detector reports its first anomaly after this many windows: the first sets the starting
// counters, the next ones train the baseline, and two slow ones in a row make an anomaly.
const (
	firstWindows   = 1
	learnedWindows = 6
	slowWindows    = 2
	leastWindows   = firstWindows + learnedWindows + slowWindows
)

func newExplain() *cobra.Command { return (&explainCommand{traceEnv: newTraceEnv()}).command() }

func (c *explainCommand) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Show what got slower, by how much, and why",
		Long: `Show what got slower, by how much, and how much of the lost time each concurrent event
explains. The data comes from an agent with --trace or, with --duration, from tracing now.
Time without a known cause is reported as unexplained.`,
		Example: `  gpumeter explain --since 1h
  gpumeter explain --pod ml/llm-0 --json
  gpumeter explain --duration 2m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed := cmd.Flags().Changed
			switch {
			case changed("since") && changed("duration"):
				return errors.New("--since reads what an agent recorded, --duration traces now: give only one of them")
			case c.since <= 0:
				return fmt.Errorf("--since must be above 0, is %s", c.since)
			case c.interval < time.Second:
				return fmt.Errorf("--interval must be at least 1s, is %s", c.interval)
			case changed("duration") && c.duration < leastWindows*c.interval:
				return fmt.Errorf("--duration must be at least %s, %d windows of %s, is %s: one to start from, %d to learn the baseline and %d slow ones",
					leastWindows*c.interval, leastWindows, c.interval, c.duration, learnedWindows, slowWindows)
			}
			if err := c.choice.check(); err != nil {
				return err
			}
			if changed("duration") {
				return c.watch(cmd.Context(), cmd.OutOrStdout())
			}
			return c.read(cmd.OutOrStdout(), time.Now())
		},
	}
	c.traceEnv.register(cmd)
	c.choice.register(cmd)
	f := cmd.Flags()
	f.DurationVar(&c.since, "since", time.Hour, "show anomalies that began or ended within this time")
	f.DurationVar(&c.duration, "duration", 0, "trace for this long instead, without an agent")
	f.DurationVar(&c.interval, "interval", 10*time.Second, "with --duration, the length of a window; each is compared with the previous ones")
	f.StringVar(&c.stateDir, "state-dir", defaultState(), "state `FOLDER` of the agent")
	f.BoolVar(&c.asJSON, "json", false, "print JSON lines")
	return cmd
}

// read prints the anomalies that the agent recorded.
func (c *explainCommand) read(w io.Writer, now time.Time) error {
	file := agent.AnomalyFile(c.stateDir)
	if file == "" {
		return errors.New("no state folder: set --state-dir to the agent's")
	}
	list, skipped, err := journal.Read(file, now.Add(-c.since))
	if errors.Is(err, fs.ErrNotExist) {
		// An agent creates the journal with the first anomaly.
		if !c.asJSON {
			fmt.Fprintf(w, "No anomaly has been recorded: %s does not exist.\nRun gpumeter agent --trace to record them, or gpumeter explain --duration 2m to trace now.\n", file)
		}
		return nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("cannot read the agent's anomalies: no permission for %s; run explain as the agent's user, or set another --state-dir", file)
	}
	if err != nil {
		return fmt.Errorf("cannot read the agent's anomalies: %w", err)
	}
	list = journal.Latest(slices.DeleteFunc(list, func(l journal.Line) bool { return !c.TakesLine(&l) }))
	for i := range list {
		if err := c.print(w, &list[i]); err != nil {
			return err
		}
	}
	if !c.asJSON && len(list) == 0 {
		fmt.Fprintf(w, "Nothing got slower in the last %s.\n", c.since)
	}
	if !c.asJSON && skipped > 0 {
		fmt.Fprintf(w, "%s of %s could not be read.\n", render.Plural(skipped, "line", "lines"), file)
	}
	return nil
}

func (c *explainCommand) print(w io.Writer, l *journal.Line) error {
	if c.asJSON {
		return json.NewEncoder(w).Encode(l)
	}
	render.Anomaly(w, &l.Anomaly)
	return nil
}

// watch traces without an agent and prints anomalies as they occur.
func (c *explainCommand) watch(ctx context.Context, w io.Writer) (err error) {
	s, err := c.open(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	found := 0
	err = s.Anomalies(ctx, &c.Choice, c.proc(), c.interval, int(c.duration/c.interval), func(l *journal.Line) error {
		found++
		return c.print(w, l)
	})
	if err == nil && ctx.Err() == nil && !c.asJSON && found == 0 {
		fmt.Fprintf(w, "Nothing got slower within %s. The baseline is learned first: a longer --duration may find more.\n", c.duration)
	}
	return err
}
