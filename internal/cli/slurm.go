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
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/scheduler/accounting"
)

func newSlurm() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slurm",
		Short: "What jobs of Slurm did with their GPUs",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSlurmJobs())
	return cmd
}

// slurmJobs are the flags of slurm jobs.
type slurmJobs struct {
	users, jobs, accounts, states []string
	since                         string
	prometheus, agent             string
	output                        string
	connection                    accounting.Connection
}

func newSlurmJobs() *cobra.Command {
	var o slurmJobs
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs, the time they had GPUs, and what they did with it",
		Long: `List jobs that run or ended, from Slurm's accounting, with what they did with their
GPUs: from a Prometheus that keeps the series of the agents, or from the agent of this
node, as far as that knows.`,
		Example: `  gpumeter slurm jobs --prometheus http://prometheus:9090
  gpumeter slurm jobs --user all --since 7d --state failed,timeout
  gpumeter slurm jobs --job 4711 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.Flags().Changed("since"))
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.users, "user", "u", nil, "jobs of this `USER`, or of all (default: yours, all for root, and all with --job or --account)")
	f.StringSliceVarP(&o.jobs, "job", "j", nil, "`ID` of a job, an array or a task of one")
	f.StringSliceVarP(&o.accounts, "account", "A", nil, "jobs of this `ACCOUNT`")
	f.StringSliceVarP(&o.states, "state", "s", nil, "jobs in this `STATE`: running, pending, completed, failed, cancelled, timeout ...")
	f.StringVar(&o.since, "since", "24h", "jobs that ended at most this long ago, as 90m, 24h or 7d; those that have not ended are listed anyway (default with --job: 365d)")
	f.StringVar(&o.prometheus, "prometheus", "", "`URL` of a Prometheus that keeps the series of the agents")
	f.StringVar(&o.agent, "agent", "http://localhost:9400/metrics", "`URL` of the page of the agent of this node, for want of a Prometheus")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.StringVar(&o.connection.Tools, "slurm-tools", "", "`FOLDER` with sacct (default: the usual ones)")
	f.StringVar(&o.connection.REST, "slurm-rest", "", "`URL` of slurmrestd (default: sacct is asked)")
	f.StringVar(&o.connection.Token, "slurm-token", "", "`FILE` with the token for slurmrestd")
	return cmd
}

func (o *slurmJobs) run(ctx context.Context, w io.Writer, sinceSet bool) error {
	if o.output != "table" && o.output != "json" {
		return fmt.Errorf("unknown --output %q, known are table, json", o.output)
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
	if o.prometheus != "" {
		store, err := query.Open(query.Config{URL: o.prometheus, Timeout: 30 * time.Second})
		if err != nil {
			return fmt.Errorf("--prometheus: %w", err)
		}
		meter = accounting.NewMeter(store)
	}
	asked, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	all, err := source.Jobs(asked, q)
	var notes []string
	switch {
	case accounting.Unreadable(err):
		notes = append(notes, "Slurm wrote something that cannot be read: "+err.Error()+".")
	case errors.Is(err, accounting.ErrNoSlurm):
		return errors.New("there is no Slurm here: no sacct in the usual folders; run it where sacct works, or name a folder by --slurm-tools or slurmrestd by --slurm-rest")
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("slurm did not answer within 2 minutes: a shorter --since may help")
	case err != nil && o.connection.REST == "":
		return fmt.Errorf("%w: run it where sacct works; SLURM_CONF says which cluster is asked", err)
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
	slices.SortStableFunc(list, func(a, b accounting.Record) int { // as they began; those that wait come last
		return cmp.Or(later(a.Start).Compare(later(b.Start)), a.Submit.Compare(b.Submit))
	})
	if meter != nil {
		notes = append(notes, askPrometheus(ctx, meter, list)...)
	} else {
		notes = append(notes, askAgent(ctx, o.agent, list)...)
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

// width returns how wide a table may be; 0 is any. The kernel's answer would need another
// library: 100 columns are what most terminals have at least.
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

// query returns what Slurm is asked for.
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
				return accounting.Query{}, fmt.Errorf("%s: %q is none", flag, s)
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

// reSlurmWord matches what may be a user, an account or a job: 4_2, 10+1.
var reSlurmWord = regexp.MustCompile(`^[\w.@+][\w.@+-]*$`)

// whoAmI returns the name of the user, or the number where nobody knows the name.
func whoAmI() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// longDuration parses what Go does, and days and weeks.
func longDuration(s string) (time.Duration, error) {
	for unit, length := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			f, err := strconv.ParseFloat(n, 64)
			if err != nil || !(f > 0 && f <= 36500) {
				return 0, fmt.Errorf("%q is no time span", s)
			}
			return time.Duration(f * float64(length)), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is no time span: 90m, 24h and 7d are", s)
	}
	return d, nil
}

// askPrometheus fills in what the jobs did, and returns what there is to say about it.
func askPrometheus(ctx context.Context, meter *accounting.Meter, list []accounting.Record) []string {
	asked, missing, err := meter.Fill(ctx, list)
	unseen := 0.0
	for i := range list {
		unseen += list[i].Usage.Unseen
	}
	var notes []string
	if err != nil {
		notes = append(notes, fmt.Sprintf("Not all is known of what jobs did: %s.", oneLine(err)))
	}
	if missing > 0 {
		notes = append(notes, fmt.Sprintf("Prometheus has nothing of %d of %d jobs with GPUs: no agent ran on their nodes, or it has forgotten.", missing, asked))
	}
	if unseen > 0 {
		notes = append(notes, fmt.Sprintf("Counters of jobs already stood at %.1f GPU-hours when Prometheus first saw them: those hours are in no figure here, as they are in no bill.", unseen/3600))
	}
	return notes
}

// askAgent does the same by the page of the agent of this node.
func askAgent(ctx context.Context, address string, list []accounting.Record) []string {
	if !slices.ContainsFunc(list, func(r accounting.Record) bool { return r.Ran() }) {
		return nil
	}
	const mend = "--prometheus URL of a Prometheus that keeps the series of the agents"
	page, err := accounting.FetchPage(ctx, address)
	if err != nil {
		return []string{"What jobs did is not known: no agent answers on this node. With " + mend + " it is."}
	}
	if page.Fill(list) == 0 {
		return []string{fmt.Sprintf("What jobs did is not known: none of them ran on %s alone, whose agent was asked. With %s it is.", cmp.Or(page.Host, "this node"), mend)}
	}
	return []string{fmt.Sprintf("What jobs did is from the agent of %s: of jobs on that node alone, since it saw them. With %s all is known.", page.Host, mend)}
}
