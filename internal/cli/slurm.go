//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/cli/render"
	"github.com/gpumeter/gpumeter/internal/scheduler/accounting"
)

func newSlurm() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slurm",
		Short: "Show how Slurm jobs used their GPUs",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSlurmJobs())
	return cmd
}

// slurmJobs holds the flags of gpumeter slurm jobs.
type slurmJobs struct {
	users, jobs, accounts, states []string
	since                         string
	store                         storeFlags
	agent                         string
	output                        string
	connection                    accounting.Connection
}

func newSlurmJobs() *cobra.Command {
	var o slurmJobs
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs with their GPU time and GPU usage",
		Long: `List running and finished jobs from Slurm's accounting with their GPU usage. The usage
comes from a Prometheus that stores the agents' series or, as far as it goes, from the
agent on this node.`,
		Example: `  gpumeter slurm jobs --prometheus http://prometheus:9090
  gpumeter slurm jobs --user all --since 7d --state failed,timeout
  gpumeter slurm jobs --job 4711 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.store.check(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.Flags().Changed("since"))
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.users, "user", "u", nil, "jobs of this `USER`, or all (default: your own; all for root and with --job or --account)")
	f.StringSliceVarP(&o.jobs, "job", "j", nil, "`ID` of a job, a job array or an array task")
	f.StringSliceVarP(&o.accounts, "account", "A", nil, "jobs of this `ACCOUNT`")
	f.StringSliceVarP(&o.states, "state", "s", nil, "jobs in this `STATE`: running, pending, completed, failed, cancelled, timeout ...")
	f.StringVar(&o.since, "since", "24h", "jobs that ended within this time, such as 90m, 24h or 7d; unfinished jobs are always listed (default with --job: 365d)")
	o.store.register(cmd, "prometheus", "", "`URL` of a hub or of any Prometheus-compatible store with the agents' series")
	f.StringVar(&o.agent, "agent", "http://localhost:9400/metrics", "`URL` of the Prometheus page of the agent on this node, used without --prometheus")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.StringVar(&o.connection.Tools, "slurm-tools", "", "`FOLDER` with sacct (default: search the usual places)")
	f.StringVar(&o.connection.REST, "slurm-rest", "", "`URL` of slurmrestd (default: use sacct)")
	f.StringVar(&o.connection.Token, "slurm-token", "", "`FILE` with the token for slurmrestd")
	return cmd
}

func (o *slurmJobs) run(ctx context.Context, w io.Writer, sinceSet bool) error {
	if o.output != "table" && o.output != "json" {
		return fmt.Errorf("unknown --output %q, must be table or json", o.output)
	}
	states, err := accounting.ParseStates(o.states)
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	q, err := o.query(time.Now(), sinceSet)
	if err != nil {
		return err
	}
	o.connection.Conf = os.Getenv("SLURM_CONF") // as sacct itself would
	o.connection.User = os.Getenv("SLURM_USER_NAME")
	source, err := accounting.Open(o.connection)
	if err != nil {
		return err
	}
	var meter *accounting.Meter
	if o.store.url != "" {
		store, err := o.store.open(30 * time.Second)
		if err != nil {
			return err
		}
		meter = accounting.NewMeter(store)
	}
	asked, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	all, err := source.Jobs(asked, q)
	var notes []string
	switch {
	case accounting.Unreadable(err):
		notes = append(notes, "Cannot parse part of Slurm's output: "+err.Error()+".")
	case errors.Is(err, accounting.ErrNoSlurm):
		return errors.New("no sacct in the usual folders: run this command where sacct works, or set --slurm-tools or --slurm-rest")
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("slurm did not answer within 2 minutes: a shorter --since may help")
	case err != nil && o.connection.REST == "":
		return fmt.Errorf("%w: run this command where sacct works; SLURM_CONF selects the cluster", err)
	case err != nil:
		return err
	}
	list := make([]accounting.Record, 0, len(all))
	for _, j := range all {
		if len(states) == 0 || slices.Contains(states, j.State) {
			if j.End.IsZero() && !j.Start.IsZero() && j.Elapsed == 0 {
				j.Elapsed = time.Since(j.Start).Truncate(time.Second)
			}
			list = append(list, accounting.Record{Job: j})
		}
	}
	slices.SortStableFunc(list, func(a, b accounting.Record) int { // by start time; pending jobs come last
		return cmp.Or(later(a.Start).Compare(later(b.Start)), a.Submit.Compare(b.Submit))
	})
	if meter != nil {
		notes = append(notes, askPrometheus(ctx, meter, list)...)
	} else {
		notes = append(notes, accounting.AskAgent(ctx, o.agent, list, "Use --prometheus URL with a Prometheus that stores the agents' series.")...)
	}
	if o.output == "json" {
		return render.JobsJSON(w, list)
	}
	return render.Jobs(w, list, notes, o.width(w), q)
}

func later(t time.Time) time.Time {
	if t.IsZero() {
		return time.Unix(1<<40, 0)
	}
	return t
}

// width returns the maximum width of the table in characters; 0: no limit. A terminal without
// $COLUMNS is taken to have 100.
func (*slurmJobs) width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return 0
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n >= 40 {
		return n
	}
	return 100
}

// query returns the accounting query for the flags.
func (o *slurmJobs) query(now time.Time, sinceSet bool) (accounting.Query, error) {
	since := o.since
	if len(o.jobs) > 0 && !sinceSet {
		since = "365d"
	}
	d, err := longDuration(since)
	if err != nil {
		return accounting.Query{}, fmt.Errorf("--since: %w", err)
	}
	q := accounting.Query{From: now.Add(-d), To: now, Unfinished: true, Users: o.users, Accounts: o.accounts, Jobs: o.jobs}
	for flag, list := range map[string][]string{"--user": o.users, "--account": o.accounts, "--job": o.jobs} {
		for _, s := range list {
			if !reSlurmWord.MatchString(s) {
				return accounting.Query{}, fmt.Errorf("%s: %q is not valid", flag, s)
			}
		}
	}
	switch {
	case slices.Contains(o.users, "all"):
		q.Users = nil
	case len(o.users) == 0 && len(o.jobs) == 0 && len(o.accounts) == 0 && os.Geteuid() != 0:
		q.Users = []string{whoAmI()}
	}
	return q, nil
}

// reSlurmWord matches a user, an account or a job ID such as 4_2 or 10+1.
var reSlurmWord = regexp.MustCompile(`^[\w.@+][\w.@+-]*$`)

// whoAmI returns the name of the user, or the UID if the user has no name.
func whoAmI() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// longDuration parses a Go duration, or a number of days (d) or weeks (w).
func longDuration(s string) (time.Duration, error) {
	for unit, length := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			f, err := strconv.ParseFloat(n, 64)
			if err != nil || !(f > 0 && f <= 36500) {
				return 0, fmt.Errorf("%q is not a duration such as 90m, 24h or 7d", s)
			}
			return time.Duration(f * float64(length)), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a duration such as 90m, 24h or 7d", s)
	}
	return d, nil
}

// askPrometheus fills in the GPU usage of the jobs, and returns notes about missing data.
func askPrometheus(ctx context.Context, meter *accounting.Meter, list []accounting.Record) []string {
	asked, missing, err := meter.Fill(ctx, list)
	unseen := 0.0
	for i := range list {
		unseen += list[i].Usage.Unseen
	}
	var notes []string
	if err != nil {
		notes = append(notes, fmt.Sprintf("GPU usage is incomplete: %s.", oneLine(err)))
	}
	if missing > 0 {
		notes = append(notes, fmt.Sprintf("Prometheus has no series for %d of %d jobs with GPUs: no agent ran on their nodes, or the data has expired.", missing, asked))
	}
	if unseen > 0 {
		notes = append(notes, fmt.Sprintf("Job counters already stood at %.1f GPU-hours at their first sample in Prometheus: those hours are not included here, nor in any bill.", unseen/3600))
	}
	return notes
}
