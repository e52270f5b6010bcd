package accounting

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Query selects jobs.
type Query struct {
	// From and To bound the end of finished jobs, inclusive.
	From, To time.Time
	// Unfinished includes pending and running jobs.
	Unfinished bool
	// Empty means all. Where Slurm is configured so, an ordinary user sees only their own jobs.
	Users, Accounts, Jobs []string
}

// Source reads the accounting of a cluster.
type Source interface {
	// Jobs returns the matching jobs, ordered by end. If some rows are unreadable, it returns
	// the others along with an error for which Unreadable is true.
	Jobs(ctx context.Context, q Query) ([]Job, error)
	// Backlog returns how many messages the controller has not sent to the database yet; ok is
	// false if that is unknown.
	Backlog(ctx context.Context) (n int, ok bool)
}

// Unreadable reports whether an error concerns only some rows.
func Unreadable(err error) bool {
	_, ok := errors.AsType[*unreadableError](err)
	return ok
}

// collect keeps the rows that match a query: in Slurm a time range selects all jobs that existed in
// it, and the meaning of a state filter depends on the version.
type collect struct {
	q       Query
	cluster string // overrides the reported cluster name
	jobs    []Job
	seen    map[string]bool
}

func (c *collect) add(j Job) error {
	j.Cluster = cmp.Or(c.cluster, j.Cluster)
	if len(c.jobs) >= maxJobs {
		return fmt.Errorf("%w: more than %d jobs", slurm.ErrTooLong, maxJobs)
	}
	switch {
	case !j.Ended():
		if !c.q.Unfinished || !j.End.IsZero() {
			return nil
		}
	case j.End.Before(c.q.From) || j.End.After(c.q.To):
		return nil
	}
	if uid := j.UID() + j.State; !c.seen[uid] {
		c.seen[uid] = true
		c.jobs = append(c.jobs, j)
	}
	return nil
}

func (c *collect) sorted() []Job {
	slices.SortStableFunc(c.jobs, func(a, b Job) int { return a.End.Compare(b.End) })
	return c.jobs
}

// maxJobs bounds one response.
const maxJobs = 200_000

// Connection tells how to reach Slurm.
type Connection struct {
	Tools string // folder of its programs; empty: the usual folders
	Conf  string // path of slurm.conf; empty: the programs' default
	// REST is the address of slurmrestd, used instead of the programs. Token is the file with
	// the token of User.
	REST, Token, User string
	// Cluster is the cluster name in records; empty: as Slurm reports it.
	Cluster string
}

// Open returns the accounting of a cluster. It sends no request.
func Open(c Connection) (Source, error) {
	if c.REST == "" {
		return &sacct{dir: c.Tools, conf: c.Conf, cluster: c.Cluster}, nil
	}
	client, err := slurm.NewREST(c.REST, c.Token, c.User)
	if err != nil {
		return nil, err
	}
	return &rest{client: client, cluster: c.Cluster}, nil
}

// ErrNoSlurm means that there is neither sacct nor a slurmrestd.
var ErrNoSlurm = errors.New("no sacct in the usual folders and no slurmrestd configured")

// sacct runs Slurm's own tools. It looks them up for each query: a file system may be mounted late.
type sacct struct{ dir, conf, cluster string }

// States are requested by name: only then does sacct apply a time range to the end of jobs and show
// jobs that were cancelled before their begin time.
const (
	endedStates      = "BF,CA,CD,DL,F,NF,OOM,PR,TO,RQ,RS,RV"
	unfinishedStates = ",PD,R,S"
)

// Jobs implements Source.
func (s *sacct) Jobs(ctx context.Context, q Query) ([]Job, error) {
	tools, ok := slurm.FindTools(s.dir, s.conf, "sacct")
	if !ok && s.dir != "" {
		return nil, fmt.Errorf("no sacct in %s", s.dir)
	}
	if !ok {
		return nil, ErrNoSlurm
	}
	// The delimiter is random, so that no job name can look like a row.
	delimiter := "|" + rand.Text()[:10] + "|"
	states := endedStates
	if q.Unfinished {
		states += unfinishedStates
	}
	args := []string{
		"--allusers", "--allocations", "--duplicates", "--noconvert", "--parsable", "--delimiter=" + delimiter,
		"--format=" + strings.Join(columns, ","), "--state=" + states,
		"--starttime=uts" + strconv.FormatInt(q.From.Unix(), 10), "--endtime=uts" + strconv.FormatInt(q.To.Unix(), 10),
	}
	for _, one := range []struct {
		name string
		list []string
	}{{"--user=", q.Users}, {"--accounts=", q.Accounts}, {"--jobs=", q.Jobs}} {
		if len(one.list) > 0 {
			args = append(args, one.name+strings.Join(one.list, ","))
		}
	}
	if len(q.Users) > 0 {
		args = args[1:] // --allusers would take precedence
	}
	// In local time one hour occurs twice each autumn.
	tools = tools.With("TZ=UTC0", "SLURM_TIME_FORMAT=%s")
	c := collect{q: q, cluster: s.cluster, seen: map[string]bool{}}
	var odd *unreadableError
	err := tools.Run(ctx, func(r io.Reader) error {
		err := parseText(r, delimiter, time.UTC, c.add)
		if errors.As(err, &odd) {
			return nil
		}
		return err
	}, "sacct", args...)
	switch {
	case err != nil:
		return nil, err
	case odd != nil:
		return c.sorted(), odd
	}
	return c.sorted(), nil
}

// Backlog implements Source. It never resets sdiag's statistics.
func (s *sacct) Backlog(ctx context.Context) (n int, ok bool) {
	tools, ok := slurm.FindTools(s.dir, s.conf, "sdiag")
	if !ok {
		return 0, false
	}
	err := tools.Run(ctx, func(r io.Reader) error {
		n, ok = parseBacklog(r)
		return nil
	}, "sdiag")
	return n, ok && err == nil
}

// parseBacklog finds "DBD Agent queue size: 12" in the output of sdiag.
func parseBacklog(r io.Reader) (n int, ok bool) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if strings.EqualFold(strings.TrimSpace(name), "DBD Agent queue size") {
			v, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31)
			return int(v), err == nil
		}
	}
	return 0, false
}

// rest queries slurmrestd.
type rest struct {
	client  *slurm.REST
	cluster string
	dialect int // the last one accepted
}

// Jobs implements Source. It sends two queries: without states, jobs that never became eligible are
// missing; with states, 22.05 omits requeued jobs.
func (s *rest) Jobs(ctx context.Context, q Query) ([]Job, error) {
	c := collect{q: q, cluster: s.cluster, seen: map[string]bool{}}
	v := url.Values{"skip_steps": {"true"}}
	if len(q.Accounts) > 0 {
		v.Set("account", strings.Join(q.Accounts, ","))
	}
	for _, states := range []string{"", "BF,CA,CD,DL,F,NF,OOM,PR,TO"} {
		v.Del("state")
		if states != "" {
			v.Set("state", states)
		}
		if err := s.ask(ctx, q, v, c.matching); err != nil {
			return nil, err
		}
	}
	return c.sorted(), nil
}

// dialects are the query parameters by version, newest first: 22.05 rejects unknown parameters,
// always includes duplicates and whole times, and needs the prefix uts for seconds.
var dialects = []struct {
	before string
	also   url.Values
}{
	{"", url.Values{"show_duplicates": {"true"}, "disable_truncate_usage_time": {"true"}}},
	{"uts", url.Values{"show_duplicates": {"true"}, "disable_truncate_usage_time": {"true"}}},
	{"uts", nil},
}

// ask sends the query in the last accepted dialect, then in the others.
func (s *rest) ask(ctx context.Context, q Query, v url.Values, each func(Job) error) error {
	var errs []error
	for i := range dialects {
		n := (s.dialect + i) % len(dialects)
		d := dialects[n]
		all := maps.Clone(v)
		maps.Copy(all, d.also)
		all.Set("start_time", d.before+strconv.FormatInt(q.From.Unix(), 10))
		all.Set("end_time", d.before+strconv.FormatInt(q.To.Unix(), 10))
		err := s.client.Get(ctx, "slurmdb", "jobs/?"+all.Encode(), func(r io.Reader) error { return parseJSON(r, each) })
		if err == nil {
			s.dialect = n
			return nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || errors.Is(err, slurm.ErrDenied) || errors.Is(err, slurm.ErrTooLong) || !strings.Contains(err.Error(), " for /slurmdb/") {
			break // no other words would help
		}
	}
	return errs[0]
}

// matching applies the filters that not all versions of slurmrestd support.
func (c *collect) matching(j Job) error {
	if len(c.q.Users) > 0 && !slices.Contains(c.q.Users, j.User) {
		return nil
	}
	if len(c.q.Jobs) > 0 && !slices.ContainsFunc(c.q.Jobs, j.is) {
		return nil
	}
	return c.add(j)
}

// is reports whether the ID that a user wrote means the job: 4 is every task of array 4.
func (j *Job) is(id string) bool {
	return id == j.ID || id == j.UserID || id == j.ArrayJobID || id == j.HetJobID
}

// Backlog implements Source.
func (s *rest) Backlog(ctx context.Context) (n int, ok bool) {
	err := s.client.Get(ctx, "slurm", "diag/", func(r io.Reader) error {
		var err error
		n, ok, err = parseDiag(r)
		return err
	})
	return n, ok && err == nil
}
