package accounting

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Prometheus is an HTTP API as Prometheus has it, of a server that keeps the series of the
// agents.
type Prometheus struct {
	base    string
	client  *http.Client
	timeout time.Duration // of one question
	now     func() time.Time
}

// NewPrometheus returns the API at a URL, as http://prometheus:9090 or one with a prefix.
func NewPrometheus(address string, timeout time.Duration) (*Prometheus, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the address of Prometheus is no http:// or https:// address") // it may hold a password
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/api/v1")
	return &Prometheus{base: u.String(), timeout: timeout, now: time.Now, client: &http.Client{}}, nil
}

// Limits of one question.
const (
	maxPoints  = 11_000 // Prometheus refuses more for each series
	minStep    = 30 * time.Second
	maxStep    = 4 * time.Minute // below the 5 minutes for which a series shows after its end
	maxIDs     = 50
	maxSamples = 200_000 // of one metric, estimated
	maxBody    = 64 << 20
)

// group are jobs that are asked for together.
type group struct {
	at       []int // in the list of jobs
	from, to time.Time
	samples  int
}

// step is the time between two points: fine for short jobs, and never so coarse that the
// last value of one would be missed.
func (g *group) step() time.Duration {
	return min(max((g.to.Sub(g.from)/1440).Truncate(time.Second), minStep), maxStep)
}

// Usage returns what each of the jobs did, in their order. Beside an error it has those
// that were answered; the others have the status error.
func (p *Prometheus) Usage(ctx context.Context, jobs []Job) ([]Usage, error) {
	out := make([]Usage, len(jobs))
	for i := range out {
		out[i].Status = UsageError
	}
	now := p.now()
	var errs []error
	for _, g := range groups(jobs, now) {
		found, err := p.group(ctx, jobs, g)
		if err != nil {
			errs = append(errs, err)
			if len(errs) >= 2 || ctx.Err() != nil { // it does not work today
				break
			}
			continue
		}
		for _, i := range g.at {
			out[i] = usageOf(found[i], windowOf(&jobs[i], jobs, now))
		}
	}
	return out, errors.Join(errs...)
}

// groups puts jobs of about the same time and length together, so that a long one does not
// make the question for short ones long.
func groups(jobs []Job, now time.Time) []group {
	order := make([]int, 0, len(jobs))
	for i := range jobs {
		if !jobs[i].Start.IsZero() && slurm.IsNumber(jobs[i].ID) {
			order = append(order, i)
		}
	}
	length := func(j *Job) time.Duration {
		if j.End.IsZero() {
			return now.Sub(j.Start)
		}
		return j.End.Sub(j.Start)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if c := math.Ilogb(length(&jobs[a]).Hours()+1) - math.Ilogb(length(&jobs[b]).Hours()+1); c != 0 {
			return c
		}
		return jobs[a].Start.Compare(jobs[b].Start)
	})
	var out []group
	for _, i := range order {
		j := &jobs[i]
		one := group{at: []int{i}, from: j.Start.Add(-before), to: j.Start.Add(length(j) + after)}
		one.samples = int(max(j.GPUs, 1)) * int(one.to.Sub(one.from)/one.step()+1)
		if len(out) > 0 {
			g := &out[len(out)-1]
			both := group{at: append(slices.Clone(g.at), i), from: earlier(g.from, one.from), to: g.to, samples: g.samples + one.samples}
			if one.to.After(both.to) {
				both.to = one.to
			}
			longest := max(g.to.Sub(g.from), one.to.Sub(one.from))
			if len(both.at) <= maxIDs && both.samples <= maxSamples && both.to.Sub(both.from) <= 2*longest+time.Hour {
				*g = both
				continue
			}
		}
		out = append(out, one)
	}
	return out
}

// group returns the series of each job of a group, by their names.
func (p *Prometheus) group(ctx context.Context, jobs []Job, g group) (map[int]map[string][]*series, error) {
	var ids, clusters []string
	for _, i := range g.at {
		ids = append(ids, jobs[i].ID)
		clusters = append(clusters, regexp.QuoteMeta(jobs[i].Cluster))
	}
	slices.Sort(ids)
	slices.Sort(clusters)
	match := "{slurm_job_id=~" + quote(strings.Join(slices.Compact(ids), "|"))
	if !slices.Contains(clusters, "") {
		match += ",slurm_cluster=~" + quote("|"+strings.Join(slices.Compact(clusters), "|"))
	}
	match += "}"
	found := map[int]map[string][]*series{}
	for _, i := range g.at {
		found[i] = map[string][]*series{}
	}
	step := g.step()
	for _, name := range append(slices.Clone(sums), seriesMemory) {
		query := name + match
		if name == seriesMemory { // what lies between two points counts too
			query = fmt.Sprintf("max_over_time(%s[%ds])", query, int(step.Seconds()))
		}
		list, err := p.rangeQuery(ctx, query, g.from, g.to, step)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			for _, i := range g.at {
				if s.of(&jobs[i]) {
					found[i][name] = append(found[i][name], s)
				}
			}
		}
	}
	return found, nil
}

// quote writes a string of PromQL, which has Go's escapes.
func quote(s string) string { return strconv.Quote(s) }

// rangeQuery asks for a range in as many parts as the limit of points needs.
func (p *Prometheus) rangeQuery(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]*series, error) {
	merged := map[string]*series{}
	var out []*series
	for from = from.Truncate(time.Second); !from.After(to); {
		last := from.Add((maxPoints - 1) * step)
		if last.After(to) {
			last = to
		}
		err := p.ask(ctx, query, from, last, step, func(s *series) {
			key := fmt.Sprint(s.labels) // maps are printed in order
			if known := merged[key]; known != nil {
				known.points = append(known.points, s.points...)
				return
			}
			merged[key] = s
			out = append(out, s)
		})
		if err != nil {
			return nil, err
		}
		from = last.Add(step)
	}
	return out, nil
}

func (p *Prometheus) ask(ctx context.Context, query string, from, to time.Time, step time.Duration, each func(*series)) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	form := url.Values{
		"query": {query}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)},
		"step": {strconv.FormatInt(int64(step.Seconds()), 10)}, "timeout": {p.timeout.String()},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+"/api/v1/query_range", strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("the address of Prometheus cannot be asked")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("prometheus: %w", err)
	}
	defer resp.Body.Close()
	limited := &io.LimitedReader{R: resp.Body, N: maxBody}
	err = parseMatrix(limited, each)
	switch {
	case limited.N <= 0:
		return fmt.Errorf("prometheus: more than %d MiB", maxBody>>20)
	case err != nil && resp.StatusCode != http.StatusOK:
		return fmt.Errorf("prometheus: %s: %w", resp.Status, err)
	case err != nil:
		return fmt.Errorf("prometheus: %w", err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("prometheus: %s", resp.Status)
	}
	return nil
}

// parseMatrix reads the answer to a range query.
func parseMatrix(r io.Reader, each func(*series)) error {
	var answer struct {
		Status string     `json:"status"`
		Error  slurm.Line `json:"error"`
		Data   struct {
			Type   string `json:"resultType"`
			Result []struct {
				Metric map[string]string `json:"metric"`
				Values [][2]any          `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(r).Decode(&answer); err != nil {
		return fmt.Errorf("the answer is no JSON: %w", err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("it says %.20q: %.200s", answer.Status, string(answer.Error))
	}
	if answer.Data.Type != "matrix" {
		return fmt.Errorf("the answer is a %.20q", answer.Data.Type)
	}
	for _, one := range answer.Data.Result {
		s := &series{labels: one.Metric}
		for _, v := range one.Values {
			at, ok1 := v[0].(float64)
			text, ok2 := v[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if !ok1 || !ok2 || err != nil || math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
				continue
			}
			s.points = append(s.points, point{at, value})
		}
		if len(s.points) > 0 {
			each(s)
		}
	}
	return nil
}
