//go:build linux

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/watch"
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
	file := anomalyFile(c.stateDir)
	if file == "" {
		return errors.New("no state folder: name that of the agent with --state-dir")
	}
	list, skipped, err := watch.ReadJournal(file, now.Add(-c.since))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no agent has seen an anomaly yet: there is no %s; gpumeter agent --trace keeps it, gpumeter explain --duration 2m watches now", file)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("cannot read what the agent has seen: %s is not yours; run it as the user of the agent, or name another folder with --state-dir", file)
	}
	if err != nil {
		return fmt.Errorf("cannot read what the agent has seen: %w", err)
	}
	list = lastWords(slices.DeleteFunc(list, func(l watch.Line) bool { return !c.of(&l) }))
	for i := range list {
		if err := c.print(w, &list[i]); err != nil {
			return err
		}
	}
	if !c.asJSON && len(list) == 0 {
		fmt.Fprintf(w, "Nothing got slower in the last %s.\n", c.since)
	}
	if !c.asJSON && skipped > 0 {
		fmt.Fprintf(w, "%s of %s could not be read.\n", pluralOf(skipped, "line", "lines"), file)
	}
	return nil
}

// of reports whether an anomaly is of a chosen process.
func (c *explainCommand) of(l *watch.Line) bool {
	return c.takes(l.PID, workloadOf(l.Attributes))
}

// lastWords returns the last word on each anomaly, by when it began.
func lastWords(list []watch.Line) []watch.Line {
	type key struct {
		pid   uint32
		op    string
		since int64
	}
	last := map[key]watch.Line{}
	for _, l := range list {
		k := key{l.PID, l.Op, l.Since.UnixNano()}
		if was, ok := last[k]; !ok || !l.Time.Before(was.Time) {
			last[k] = l
		}
	}
	out := make([]watch.Line, 0, len(last))
	for _, l := range last {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b watch.Line) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Op, b.Op))
	})
	return out
}

func (c *explainCommand) print(w io.Writer, l *watch.Line) error {
	if c.asJSON {
		return json.NewEncoder(w).Encode(l)
	}
	c.chain(w, &l.Anomaly)
	return nil
}

// chain writes an anomaly in lines: who, what, which facts have what part of it, and where in
// the process it shows. Times are those of the reader.
func (*explainCommand) chain(w io.Writer, a *anomaly.Anomaly) {
	r := &traceReport{}
	when := a.Since.Local().Format("2006-01-02 15:04:05")
	switch a.State {
	case anomaly.Ended:
		when += " to " + a.Time.Local().Format(time.TimeOnly)
	case anomaly.Adopted:
		when += ", and from " + a.Time.Local().Format(time.TimeOnly) + " on taken as normal"
	default:
		when += ", not over at " + a.Time.Local().Format(time.TimeOnly)
	}
	fmt.Fprintln(w, when)
	who := fmt.Sprintf("  %s (pid %d", plain(a.Process), a.PID)
	if a.Workload != "" && a.Workload != "process "+a.Process {
		who += ", " + plain(a.Workload)
	}
	r.text(w, "  ", fmt.Sprintf("%s) %s; %s of %s were lost.", who, slower(a), spanOf(a.Lost.Seconds()), spanOf(a.Over.Seconds())))
	share := func(part float64, words string) {
		if part >= 0.005 {
			r.text(w, "          ", fmt.Sprintf("   %4s  %s", wholePercent(part), words))
		}
	}
	for _, e := range a.Explanations {
		share(e.Share, strings.ReplaceAll(string(e.Cause), "_", " ")+": "+e.Fact)
	}
	if a.Unexplained >= 0.005 {
		share(a.Unexplained, "unexplained: no fact that we know of the same time accounts for it")
	}
	for i, x := range a.Changes {
		if i == 0 {
			fmt.Fprintln(w, "  It shows in")
		}
		name := x.Op
		if name == "bubble" {
			name = "bubble (between calls)"
		}
		fmt.Fprintf(w, "   %-26s %9s instead of %s\n", plain(name), spanOf(x.Observed), spanOf(x.Baseline))
	}
	fmt.Fprintln(w)
}

// slower says what a process does not do as fast as it did.
func slower(a *anomaly.Anomaly) string {
	switch a.Op {
	case anomaly.Step:
		if a.Observed <= 0 {
			return "launched less"
		}
		return "made " + wholePercent(1-a.Baseline/a.Observed) + " fewer launches a second"
	case anomaly.Sync:
		return "waited in one synchronisation that did not return"
	case anomaly.Collective:
		return "waited for ranks that did not come"
	}
	return fmt.Sprintf("took %s instead of %s for %s", spanOf(a.Observed), spanOf(a.Baseline), a.Op)
}

// watch looks for anomalies now.
func (c *explainCommand) watch(ctx context.Context, w io.Writer) (err error) {
	s, err := c.open(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	watcher := watch.NewWatcher(c.proc())
	watcher.Owner = s.Process
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	found := 0
	for range c.duration / c.interval {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, tick := s.look(ctx)
		watcher.See(&tick)
		for _, a := range watcher.Judge(&now) {
			l := watch.Line{Anomaly: a, Words: a.Text()}
			if owner, ok := s.Process(a.PID); ok {
				l.Attributes = owner.Attributes
			}
			if !c.of(&l) || a.State == anomaly.Adopted {
				continue
			}
			found++
			if err := c.print(w, &l); err != nil {
				return err
			}
		}
	}
	if !c.asJSON && found == 0 {
		fmt.Fprintf(w, "Nothing got slower within %s. What is usual is learned first: a longer --duration may see more.\n", c.duration)
	}
	return nil
}
