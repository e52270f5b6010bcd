package billing

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// QueueKind is the report on what waits for devices.
const QueueKind = "queue"

// Queued is the content of a report on what waits: at the end of a period, and in it.
type Queued struct {
	Kind      string       `json:"kind"`
	From      time.Time    `json:"from"` // UTC
	To        time.Time    `json:"to"`
	Zone      string       `json:"time_zone"`
	Currency  string       `json:"currency"`
	Simulated string       `json:"simulated"` // all, some, or empty
	Waits     []QueueWait  `json:"waits"`     // in the period, by queue
	Blocked   []QueueFree  `json:"free_while_waited_for"`
	Jobs      []QueueJob   `json:"waiting"` // at the end
	Pools     []QueuePool  `json:"pools"`
	Teams     []QueueTeam  `json:"teams"`
	Queues    []QueueShare `json:"queues"`
	Notes     []string     `json:"notes"`
}

// QueueWait is how long the jobs waited that got their devices.
type QueueWait struct {
	Cluster   string         `json:"cluster"`
	Scheduler string         `json:"scheduler"`
	Queue     string         `json:"queue"`
	Jobs      float64        `json:"jobs"`
	P50       optional.Float `json:"p50_seconds"`
	P95       optional.Float `json:"p95_seconds"`
	Mean      optional.Float `json:"mean_seconds"`
	FirstWork optional.Float `json:"first_work_p50_seconds"` // from creation
}

// QueueFree is device time that was free while jobs waited for it.
type QueueFree struct {
	Cluster string         `json:"cluster"`
	Model   string         `json:"model"`
	Hours   float64        `json:"gpu_hours"`
	Cost    optional.Float `json:"cost"` // at the rates of the end
}

// QueueJob is a job that waits.
type QueueJob struct {
	Cluster   string         `json:"cluster"`
	Scheduler string         `json:"scheduler"`
	Queue     string         `json:"queue"`
	Team      string         `json:"team"`
	Name      string         `json:"name"` // other: the jobs beyond the limit
	ID        string         `json:"id"`
	Model     string         `json:"model"`
	Reason    string         `json:"reason"`
	Because   string         `json:"because"`
	GPUs      float64        `json:"gpus"`
	Seconds   optional.Float `json:"seconds"`
}

// QueuePool is the devices of a model.
type QueuePool struct {
	Cluster   string         `json:"cluster"`
	Model     string         `json:"model"`
	All       float64        `json:"all"`
	Allocated float64        `json:"allocated"`
	Free      float64        `json:"free"`
	Out       float64        `json:"drained_or_down"`
	Pending   float64        `json:"waited_for"`
	Blocked   float64        `json:"free_meanwhile"`
	PerDay    optional.Float `json:"free_meanwhile_cost_per_day"`
}

// QueueTeam is what a team asks for, has and uses.
type QueueTeam struct {
	Team    string  `json:"team"`
	Asked   float64 `json:"asked"`
	Given   float64 `json:"given"`
	Waiting float64 `json:"waits_for"`
	Busy    float64 `json:"busy"`
	Idle    int     `json:"idle"`
}

// QueueShare is a queue as its queueing system counts it.
type QueueShare struct {
	Cluster   string         `json:"cluster"`
	Scheduler string         `json:"scheduler"`
	Queue     string         `json:"queue"`
	Team      string         `json:"team"`
	Model     string         `json:"model"`
	Used      optional.Float `json:"used"`
	Nominal   optional.Float `json:"nominal"`
	Limit     optional.Float `json:"limit"`
	Borrowed  optional.Float `json:"borrowed"`
	Pending   optional.Float `json:"pending"`
	FairShare optional.Float `json:"fair_share"`
}

// ReadQueue fills a report from a store, by the same model as the page.
func ReadQueue(ctx context.Context, store query.Store, price fleet.Pricer, d *Queued) error {
	clusters, err := queue.At(ctx, store, d.To)
	if err != nil {
		return err
	}
	waits, err := queue.Waits(ctx, store, d.From, d.To)
	if err != nil {
		return err
	}
	blocked, err := queue.BlockedIn(ctx, store, d.From, d.To)
	if err != nil {
		return err
	}
	reader := fleet.NewReader(store, fleet.Options{Price: price})
	f, err := reader.At(ctx, d.To)
	if err != nil {
		return err
	}
	holders, err := reader.Holdings(ctx, d.To, "")
	if err != nil {
		return err
	}
	d.Kind, d.Simulated = QueueKind, simulatedPart(f)
	d.Waits, d.Blocked, d.Jobs, d.Pools, d.Teams, d.Queues = []QueueWait{}, []QueueFree{}, []QueueJob{}, []QueuePool{}, []QueueTeam{}, []QueueShare{}
	rates := queue.RatesOf(f)
	for _, w := range waits {
		d.Waits = append(d.Waits, QueueWait{w.Cluster, w.Scheduler, w.Queue, w.Jobs, w.P50, w.P95, w.Mean, w.FirstWork})
	}
	for _, b := range blocked {
		hours := b.Seconds / 3600
		d.Blocked = append(d.Blocked, QueueFree{b.Cluster, b.Model, hours, rates.Of(b.Model).Scale(hours)})
	}
	for i := range clusters {
		c := &clusters[i]
		if c.Down() {
			d.Notes = append(d.Notes, c.Source()+" did not answer everything at the end: some numbers are missing.")
		}
		for _, j := range c.Waiting {
			d.Jobs = append(d.Jobs, QueueJob{c.Name, c.Scheduler, j.Queue, j.Team, j.Name, j.ID, j.Model, j.Reason, queue.Because(j.Reason), j.Devices, j.Seconds})
		}
		for _, p := range c.Pools() {
			d.Pools = append(d.Pools, QueuePool{c.Name, p.Model, p.All, p.Allocated, p.Free, p.Drained + p.Down, p.Pending, p.Blocked, rates.Of(p.Model).Scale(24 * p.Blocked)})
		}
		for _, q := range c.Queues {
			d.Queues = append(d.Queues, QueueShare{c.Name, c.Scheduler, q.Queue, q.Team, q.Model, q.Used, q.Nominal, q.Limit, q.Borrowed, q.Pending, q.FairShare})
		}
	}
	for _, t := range queue.Teams(clusters, f, holders) {
		d.Teams = append(d.Teams, QueueTeam{t.Team, t.Given + t.Waiting, t.Given, t.Waiting, t.Busy, t.Idle})
	}
	if len(clusters) == 0 && len(waits) == 0 {
		d.Notes = append(d.Notes, "The store has no scheduler: start one or two agents with --scheduler kubernetes, or one with --scheduler slurm.")
	}
	return nil
}

// simulatedPart returns all or some if all or some devices of a fleet do not exist.
func simulatedPart(f *fleet.Fleet) string {
	n := 0
	for i := range f.Devices {
		if f.Devices[i].Simulated {
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case len(f.Devices):
		return "all"
	}
	return "some"
}

// section is one table of the report. A leading number of columns are names.
type section struct {
	title string
	names int
	head  []string
	rows  [][]string
}

func decimal(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

func decimalOr(v optional.Float) string {
	if f, ok := v.Get(); ok {
		return decimal(f)
	}
	return "-"
}

func (d *Queued) money(v optional.Float) string {
	if f, ok := v.Get(); ok {
		return strconv.FormatFloat(f, 'f', 2, 64)
	}
	return "-"
}

// lasts returns a time in its two largest units.
func lasts(seconds optional.Float) string {
	s, ok := seconds.Get()
	if !ok {
		return "-"
	}
	return scheduler.Duration(time.Duration(s * float64(time.Second)))
}

// at names the cluster of something, if there is one.
func at(cluster, name string) string { return Plain(strings.TrimPrefix(cluster+"/"+name, "/")) }

// sections returns the tables that have rows.
func (d *Queued) sections() []section {
	jobs := section{title: "waiting at the end of the period", names: 3, head: []string{"JOB", "TEAM", "BECAUSE", "GPUS", "WAITED"}}
	for _, j := range d.Jobs {
		name, because := at(j.Cluster, j.Queue+"/"+j.Name), j.Reason+": "+j.Because
		if !j.Seconds.OK() {
			name, because = "(jobs with shorter waits)", ""
		} else if j.Scheduler == "slurm" {
			name = at(j.Cluster, j.Queue+"/"+j.ID+" "+j.Name)
		}
		jobs.rows = append(jobs.rows, []string{name, Plain(j.Team), Plain(because), decimal(j.GPUs), lasts(j.Seconds)})
	}
	pools := section{title: "GPUs at the end of the period", names: 1, head: []string{"MODEL", "ALL", "GIVEN", "FREE", "OUT", "WAITED FOR", "FREE MEANWHILE", "COST/DAY"}}
	for _, p := range d.Pools {
		pools.rows = append(pools.rows, []string{
			at(p.Cluster, cmp.Or(p.Model, "(none named)")), decimal(p.All), decimal(p.Allocated), decimal(p.Free), decimal(p.Out), decimal(p.Pending), decimal(p.Blocked), d.money(p.PerDay),
		})
	}
	free := section{title: "free in the period while jobs waited for them", names: 1, head: []string{"MODEL", "GPU-HOURS", "COST"}}
	for _, b := range d.Blocked {
		free.rows = append(free.rows, []string{at(b.Cluster, cmp.Or(b.Model, "(none named)")), strconv.FormatFloat(b.Hours, 'f', 2, 64), d.money(b.Cost)})
	}
	teams := section{title: "teams at the end of the period", names: 1, head: []string{"TEAM", "ASKED", "GIVEN", "WAITS FOR", "BUSY", "IDLE"}}
	for _, t := range d.Teams {
		teams.rows = append(teams.rows, []string{Plain(cmp.Or(t.Team, "(none)")), decimal(t.Asked), decimal(t.Given), decimal(t.Waiting), decimal(t.Busy), strconv.Itoa(t.Idle)})
	}
	queues := section{title: "queues, as their systems count", names: 2, head: []string{"QUEUE", "SYSTEM", "USED", "OWN SHARE", "BORROWED", "LIMIT", "WAITS FOR", "FAIR SHARE"}}
	for _, q := range d.Queues {
		queues.rows = append(queues.rows, []string{
			at(q.Cluster, strings.TrimSpace(cmp.Or(q.Queue, q.Team)+" "+q.Model)), Plain(q.Scheduler),
			decimalOr(q.Used), decimalOr(q.Nominal), decimalOr(q.Borrowed), decimalOr(q.Limit), decimalOr(q.Pending), decimalOr(q.FairShare),
		})
	}
	out := []section{d.waits(), free, jobs, pools, teams, queues}
	kept := out[:0]
	for _, s := range out {
		if len(s.rows) > 0 {
			kept = append(kept, s)
		}
	}
	return kept
}

func (d *Queued) waits() section {
	s := section{title: "waits of jobs that were placed in the period", names: 1, head: []string{"QUEUE", "JOBS", "MEDIAN", "P95", "MEAN", "FIRST WORK"}}
	for _, w := range d.Waits {
		s.rows = append(s.rows, []string{at(w.Cluster, w.Queue), strconv.FormatFloat(w.Jobs, 'f', 0, 64), lasts(w.P50), lasts(w.P95), lasts(w.Mean), lasts(w.FirstWork)})
	}
	return s
}

// report returns what this report has in common with the others.
func (d *Queued) report() *Report {
	return &Report{Kind: QueueKind, By: "model", From: d.From, To: d.To, Zone: d.Zone, Simulated: d.Simulated, Notes: d.Notes}
}

// Write writes the report as table, csv, json or html. CSV has the waits of the period or, with now, the jobs that wait at its
// end.
func (d *Queued) Write(w io.Writer, format string, now bool) error {
	switch format {
	case "csv":
		return d.csv(w, now)
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(d)
	case "html":
		return d.html(w)
	}
	var b strings.Builder
	r := d.report()
	fmt.Fprint(&b, QueueKind+", "+r.period())
	if d.Currency != "" {
		fmt.Fprint(&b, ", ", d.Currency)
	}
	fmt.Fprintln(&b)
	if d.Simulated != "" {
		fmt.Fprintln(&b, r.Warning())
	}
	for _, s := range d.sections() {
		fmt.Fprintf(&b, "\n%s\n\n", s.title)
		printAligned(&b, append([][]string{s.head}, s.rows...), s.names)
	}
	for i, note := range d.Notes {
		if i == 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintln(&b, Plain(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// html writes a page like that of other reports.
func (d *Queued) html(w io.Writer) error {
	page := htmlPage{Report: d.report()}
	page.Title, page.Period = QueueKind+", "+page.Report.period(), page.Report.period()
	for _, s := range d.sections() {
		page.Tables = append(page.Tables, htmlTable{strings.ToUpper(s.title[:1]) + s.title[1:], s.names, s.head, s.rows})
	}
	return page.write(w)
}

func (d *Queued) csv(w io.Writer, now bool) error {
	exact := func(v optional.Float) string {
		if f, ok := v.Get(); ok {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
		return ""
	}
	rows := [][]string{strings.Fields("cluster scheduler queue jobs p50_seconds p95_seconds mean_seconds first_work_p50_seconds from to simulated")}
	const second = "2006-01-02T15:04:05Z"
	part := cmp.Or(d.Simulated, "none")
	for _, x := range d.Waits {
		rows = append(rows, []string{cell(x.Cluster), cell(x.Scheduler), cell(x.Queue), strconv.FormatFloat(x.Jobs, 'f', -1, 64), exact(x.P50), exact(x.P95), exact(x.Mean), exact(x.FirstWork), d.From.Format(second), d.To.Format(second), part})
	}
	if now {
		rows = [][]string{strings.Fields("cluster scheduler queue team name id model reason gpus seconds at simulated")}
		for _, j := range d.Jobs {
			rows = append(rows, []string{
				cell(j.Cluster), cell(j.Scheduler), cell(j.Queue), cell(j.Team), cell(j.Name), cell(j.ID), cell(j.Model), cell(j.Reason),
				strconv.FormatFloat(j.GPUs, 'f', -1, 64), exact(j.Seconds), d.To.Format(second), part,
			})
		}
	}
	return csv.NewWriter(w).WriteAll(rows)
}
