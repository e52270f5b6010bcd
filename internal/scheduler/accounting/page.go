package accounting

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/promtext"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Page is the current metrics page of a node's agent, for the jobs on the node.
type Page struct {
	Host string // the node's name according to the agent
	// counters has the values by series name and account, labels the labels of each account.
	counters map[string]map[string]float64
	labels   map[string]query.Labels
}

// maxPage bounds a page, in bytes.
const maxPage = 64 << 20

// ParsePage parses the metrics page of an agent.
func ParsePage(r io.Reader) (*Page, error) {
	page, err := promtext.Parse(r, maxPage)
	if err != nil {
		return nil, fmt.Errorf("cannot parse the metrics page of the agent: %w", err)
	}
	p := &Page{counters: map[string]map[string]float64{}, labels: map[string]query.Labels{}}
	for _, name := range []string{fleet.SeriesAllocatedTime, fleet.SeriesActiveTime, fleet.SeriesEnergy} {
		p.counters[name] = map[string]float64{}
		for _, s := range page[name] {
			l := query.Labels{}
			for _, pair := range s.Labels {
				l[pair.Name] = pair.Value
			}
			if host := l[fleet.LabelHost]; host != "" {
				p.Host = host
			}
			if l[fleet.LabelSlurmJob] != "" {
				key := fleet.Account(l)
				p.labels[key] = l
				p.counters[name][key] = s.Value
			}
		}
	}
	return p, nil
}

// Usage returns the usage of a job that ran on this node only. Its memory peak is unknown: a page
// has current memory only.
func (p *Page) Usage(j *Job) Usage {
	short, _, _ := strings.Cut(p.Host, ".")
	if p.Host == "" || j.NodeList != p.Host && j.NodeList != short {
		return Usage{}
	}
	sum := func(name string) optional.Float {
		var v optional.Float
		for key, value := range p.counters[name] {
			if of(p.labels[key], j) {
				before, _ := v.Get()
				v = optional.Of(before + value)
			}
		}
		return v
	}
	allocated, ok := sum(fleet.SeriesAllocatedTime).Get()
	if !ok {
		return Usage{Status: UsageMissing}
	}
	u := Usage{Status: UsageOK, Allocated: allocated, Active: sum(fleet.SeriesActiveTime), Energy: sum(fleet.SeriesEnergy)}
	if active, ok := u.Active.Get(); ok {
		u.Idle = optional.Of(max(0, allocated-active))
	}
	return u
}

// AskAgent fills in the GPU usage of the jobs from the Prometheus page of the agent on this node, and returns notes
// about missing data. hint says how to get the rest.
func AskAgent(ctx context.Context, address string, list []Record, hint string) []string {
	if !slices.ContainsFunc(list, func(r Record) bool { return r.Ran() }) {
		return nil
	}
	page, err := FetchPage(ctx, address)
	if err != nil {
		return []string{"GPU usage is unknown: no agent responds on this node. " + hint}
	}
	if page.Fill(list) == 0 {
		return []string{fmt.Sprintf("GPU usage is unknown: no job ran only on %s, the node of the queried agent. %s", cmp.Or(page.Host, "this node"), hint)}
	}
	return []string{fmt.Sprintf("GPU usage is from the agent on %s: only of jobs on that node alone, since the agent first saw them. %s", page.Host, hint)}
}
