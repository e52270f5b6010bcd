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

// explainCommand are the flags of explain.
type explainCommand struct {
	traceEnv
	choice
	since    time.Duration
	duration time.Duration
	interval time.Duration
	stateDir string
	asJSON   bool
}

// Windows that the detector must have seen before it can say anything: the first is what the
// next is counted from, then what is usual is learned, then it must be slow twice in a row.
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
		Short: "Say what got slower, by how much, and what explains it",
		Long: `Say what got slower, by how much, and which facts of the same time explain what part of
the time that was lost: from what an agent with --trace has seen, or with --duration by
watching now. What nothing explains is called unexplained.`,
		Example: `  gpumeter explain --since 1h
  gpumeter explain --pod ml/llm-0 --json
  gpumeter explain --duration 2m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed := cmd.Flags().Changed
			switch {
			case changed("since") && changed("duration"):
				return errors.New("--since is of what an agent has seen, --duration watches now: give one of them")
			case c.since <= 0:
				return fmt.Errorf("--since must be above 0, is %s", c.since)
			case c.interval < time.Second:
				return fmt.Errorf("--interval must be at least 1s, is %s", c.interval)
			case changed("duration") && c.duration < leastWindows*c.interval:
				return fmt.Errorf("--duration must be at least %s, %d windows of %s, is %s: one to begin with, %d to learn what is usual and %d that are slower",
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
	f.DurationVar(&c.since, "since", time.Hour, "what began or ended within this time")
	f.DurationVar(&c.duration, "duration", 0, "watch for this time instead, without an agent")
	f.DurationVar(&c.interval, "interval", 10*time.Second, "with --duration, the window that is compared with those before")
	f.StringVar(&c.stateDir, "state-dir", defaultState(), "`FOLDER` of the agent")
	f.BoolVar(&c.asJSON, "json", false, "print lines of JSON")
	return cmd
}

// read prints what the agent has seen.
func (c *explainCommand) read(w io.Writer, now time.Time) error {
	file := agent.AnomalyFile(c.stateDir)
	if file == "" {
		return errors.New("no state folder: name that of the agent with --state-dir")
	}
	list, skipped, err := journal.Read(file, now.Add(-c.since))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no agent has seen an anomaly yet: there is no %s; gpumeter agent --trace keeps it, gpumeter explain --duration 2m watches now", file)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("cannot read what the agent has seen: %s is not yours; run it as the user of the agent, or name another folder with --state-dir", file)
	}
	if err != nil {
		return fmt.Errorf("cannot read what the agent has seen: %w", err)
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

// watch looks for anomalies now.
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
		fmt.Fprintf(w, "Nothing got slower within %s. What is usual is learned first: a longer --duration may see more.\n", c.duration)
	}
	return err
}
