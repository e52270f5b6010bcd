package slurmctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Kinds are the records that there are, each with its event.
var Kinds = map[string]string{
	"squeue": "slurm.job", "sprio": "slurm.priority", "sshare": "slurm.share", "qos": "slurm.qos", "users": "slurm.user",
	"partitions": "slurm.partition", "config": "slurm.config",
}

// MaxRecords bounds those of one kind in a round.
const MaxRecords = 10_000

// Record is one thing that Slurm has, to be kept as a log record.
type Record struct {
	Event string
	Body  string
	Attrs []Attr
}

// Attr is a named value: a string, an int64, a float64 or a bool.
type Attr struct {
	Key   string
	Value any
}

// put adds what is there: no empty text, no time that is not set.
func (r *Record) put(key string, value any) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return
		}
		value = v[:min(len(v), 4096)]
	case time.Time:
		if v.IsZero() {
			return
		}
		value = v.Unix()
	case optional.Float:
		f, ok := v.Get()
		if !ok {
			return
		}
		value = f
	}
	r.Attrs = append(r.Attrs, Attr{key, value})
}

// Records asks for the things of the named kinds, and returns them with how many were left
// out. last are the answers of the last round, which are not asked for again.
func (c *Client) Records(ctx context.Context, kinds []string, last Snapshot) (list []Record, dropped int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	var errs []error
	for _, kind := range kinds {
		var some []Record
		var err error
		switch kind {
		case "squeue":
			some = jobRecords(last.Jobs)
		case "sshare":
			some = shareRecords(last.Shares)
		case "partitions":
			some, err = c.partitionRecords(ctx, last.Partitions)
		default:
			some, err = c.tableRecords(ctx, kind)
		}
		if err != nil {
			errs = append(errs, err)
		}
		if over := len(some) - MaxRecords; over > 0 {
			some, dropped = some[:MaxRecords], dropped+over
		}
		list = append(list, some...)
	}
	return list, dropped, errors.Join(errs...)
}

func jobRecords(jobs []slurm.Job) []Record {
	out := make([]Record, 0, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		r := Record{Event: Kinds["squeue"], Body: fmt.Sprintf("Job %s of %s is %s", j.ID, j.User, strings.ToLower(j.State))}
		r.put("slurm.job.id", j.ID)
		r.put("slurm.array.job.id", j.ArrayJobID)
		r.put("slurm.array.task.id", j.ArrayTaskID)
		r.put("slurm.het.job.id", j.HetJobID)
		r.put("slurm.job.name", j.Name)
		r.put("slurm.user", j.User)
		r.put("slurm.account", j.Account)
		r.put("slurm.partition", j.Partition)
		r.put("slurm.qos", j.QOS)
		r.put("slurm.job.state", strings.ToLower(j.State))
		if j.Pending() || j.Reason != "None" {
			r.put("slurm.job.reason", j.Reason)
		}
		r.put("slurm.job.nodes", j.NodeList)
		r.put("slurm.job.tasks", j.Tasks)
		r.put("slurm.job.node.count", j.Nodes)
		r.put("slurm.job.cpu.count", j.CPUs)
		r.put("slurm.job.gpu.count", j.GPUs)
		r.put("slurm.job.priority", j.Priority)
		r.put("slurm.job.restarts", j.Restarts)
		r.put("slurm.job.submit_time", j.Submit)
		r.put("slurm.job.eligible_time", j.Eligible)
		r.put("slurm.job.start_time", j.Start)
		r.put("slurm.job.end_time", j.End)
		if j.TimeLimit > 0 {
			r.put("slurm.job.time_limit", int64(j.TimeLimit/time.Second))
		}
		out = append(out, r)
	}
	return out
}

func shareRecords(list []Share) []Record {
	out := make([]Record, 0, len(list))
	for _, s := range list {
		r := Record{Event: Kinds["sshare"], Body: "Share of " + strings.TrimSuffix(s.Account+"/"+s.User, "/")}
		r.put("slurm.account", s.Account)
		r.put("slurm.user", s.User)
		r.put("slurm.share.raw", s.Shares)
		r.put("slurm.share.normalized", s.Norm)
		r.put("slurm.share.usage.raw", s.Used)
		r.put("slurm.share.usage.effective", s.Usage)
		r.put("slurm.share.factor", s.Factor)
		out = append(out, r)
	}
	return out
}

func (c *Client) partitionRecords(ctx context.Context, list []Partition) ([]Record, error) {
	if c.rest == nil { // slurmrestd said them in the round
		parts := &partitionList{}
		if err := c.ask(ctx, question{source: askPartitions, text: []string{"scontrol", "--all", "show", "partitions"}, parseText: parts.text}); err != nil {
			return nil, err
		}
		list = parts.list
	}
	var out []Record
	for _, p := range list {
		r := Record{Event: Kinds["partitions"], Body: "Partition " + p.Name + " is " + p.State}
		r.put("slurm.partition", p.Name)
		r.put("slurm.partition.state", p.State)
		r.put("slurm.partition.nodes", p.Nodes)
		r.put("slurm.partition.qos", p.QOS)
		r.put("slurm.partition.default", p.Default)
		r.put("slurm.partition.node.count", p.NodeCount)
		r.put("slurm.partition.cpu.count", p.CPUs)
		r.put("slurm.partition.gpu.count", p.GPUs)
		out = append(out, r)
	}
	return out, nil
}

// sprioColumns are those of the format that sprio is asked for.
var sprioColumns = []string{"Id", "Queue", "User", "Sum", "Site", "Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS", "Nice", "TRES"}

// tableRecords asks for what only the tools have, in columns.
func (c *Client) tableRecords(ctx context.Context, kind string) ([]Record, error) {
	t := &table{event: Kinds[kind]}
	q := question{parseText: t.text}
	switch kind {
	case "sprio":
		t.columns, t.prefix, t.subject = sprioColumns, "slurm.priority.", "Priority of job"
		t.names = map[string]string{"Id": "slurm.job.id", "Queue": "slurm.partition", "User": "slurm.user"}
		q.source, q.text = askPriorities, []string{"sprio", "--noheader", "--format=%i|%r|%u|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T"}
	case "qos":
		t.prefix, t.subject = "slurm.qos.", "QoS"
		t.names = map[string]string{"Name": "slurm.qos"}
		q.source, q.text = askQOS, []string{"sacctmgr", "--readonly", "--parsable2", "show", "qos"}
	case "users":
		t.prefix, t.subject = "slurm.user.", "User"
		t.names = map[string]string{"User": "slurm.user", "Account": "slurm.account", "Cluster": "slurm.cluster", "Partition": "slurm.partition"}
		q.source, q.text = askUsers, []string{
			"sacctmgr", "--readonly", "--parsable2", "show", "user", "withassoc",
			"format=User,Account,Cluster,Partition,AdminLevel,DefaultAccount,DefaultQOS,QOS,Share,Priority,GrpTRES,MaxTRES,MaxJobs,MaxSubmit,MaxWall",
		}
	case "config":
		var conf configList
		q.source, q.text, q.parseText = askConfig, []string{"scontrol", "show", "config"}, conf.text
		if err := c.ask(ctx, q); err != nil {
			return nil, err
		}
		return []Record{conf.record()}, nil
	default:
		return nil, fmt.Errorf("there are no records of %q", kind)
	}
	if err := c.ask(ctx, q); err != nil {
		return nil, err
	}
	return t.list, nil
}

// table reads what a tool writes in columns, with | between them.
type table struct {
	event, prefix, subject string
	columns                []string          // nil: the first line says them
	names                  map[string]string // attributes with names of their own
	list                   []Record
}

func (t *table) text(r io.Reader) error {
	t.list = nil
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	columns := t.columns
	for sc.Scan() {
		row := strings.Split(sc.Text(), "|")
		if columns == nil {
			columns = row
			continue
		}
		if len(row) != len(columns) { // a line break or a bar in a text
			continue
		}
		rec := Record{Event: t.event, Body: t.subject + " " + slurm.Text(row[0])}
		for i, value := range row {
			name := t.names[columns[i]]
			if value = slurm.Text(value); name != "" {
				rec.put(name, value) // an identity, though it may be a number
				continue
			}
			rec.put(t.prefix+snake(columns[i]), typed(value))
		}
		t.list = append(t.list, rec)
	}
	return sc.Err()
}

// typed returns a number as one.
func typed(s string) any {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	if v, ok := slurm.ParseFloat(s).Get(); ok {
		return v
	}
	return s
}

// snake returns MaxTRESPerNode as max_tres_per_node.
func snake(s string) string {
	var b strings.Builder
	upper := func(i int) bool { return i >= 0 && i < len(s) && s[i] >= 'A' && s[i] <= 'Z' }
	for i := range len(s) {
		switch ch := s[i]; {
		case upper(i):
			if i > 0 && s[i-1] != ' ' && s[i-1] != '_' && (!upper(i-1) || i+1 < len(s) && s[i+1] >= 'a' && s[i+1] <= 'z') {
				b.WriteByte('_')
			}
			b.WriteByte(ch | 0x20)
		case ch >= 'a' && ch <= 'z' || ch >= '0' && ch <= '9':
			b.WriteByte(ch)
		default:
			b.WriteByte('_')
		}
	}
	return b.String()
}

// configList is what scontrol show config writes: Key = Value.
type configList struct{ pairs [][2]string }

// maxConfig bounds its lines; Slurm has some 200.
const maxConfig = 1000

func (l *configList) text(r io.Reader) error {
	l.pairs = nil
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	for sc.Scan() && len(l.pairs) < maxConfig {
		key, value, ok := strings.Cut(sc.Text(), "=")
		if key = strings.TrimSpace(key); ok && key != "" && !strings.ContainsAny(key, " \t") {
			l.pairs = append(l.pairs, [2]string{slurm.Text(key), slurm.Text(value)})
		}
	}
	if len(l.pairs) == 0 && sc.Err() == nil {
		return errors.New("the answer has no configuration")
	}
	return sc.Err()
}

func (l *configList) get(key string) string {
	for _, p := range l.pairs {
		if p[0] == key {
			return p[1]
		}
	}
	return ""
}

// secrets are parts of the names of what nobody else is to know, whatever it holds.
var secrets = []string{"pass", "secret", "token", "key"}

func (l *configList) record() Record {
	r := Record{Event: Kinds["config"], Body: "Configuration of " + l.get("ClusterName")}
	for _, p := range l.pairs {
		name, value := strings.ToLower(p[0]), strings.ToLower(p[1])
		if !slices.ContainsFunc(secrets, func(s string) bool { return strings.Contains(name, s) || strings.Contains(value, s+"=") }) {
			r.put("slurm.config."+snake(p[0]), typed(p[1]))
		}
	}
	return r
}
