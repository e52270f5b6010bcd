package accounting

import (
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Page is what the page of the agent of one node says now of the jobs on it.
type Page struct {
	Host string // what the agent calls the node
	jobs map[string]map[string][]*series
}

// maxPage bounds a page.
const maxPage = 64 << 20

// ParsePage reads the page of an agent.
func ParsePage(r io.Reader) (*Page, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(r, maxPage))
	if err != nil {
		return nil, fmt.Errorf("the page of the agent cannot be read: %w", err)
	}
	p := &Page{jobs: map[string]map[string][]*series{}}
	for _, name := range append([]string{seriesMemory}, sums...) {
		for _, m := range families[name].GetMetric() {
			s := &series{labels: map[string]string{}}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() // one of them
			s.points = []point{{0, value}}
			if host := s.labels["host_name"]; host != "" {
				p.Host = host
			}
			if id := s.labels["slurm_job_id"]; id != "" {
				if p.jobs[id] == nil {
					p.jobs[id] = map[string][]*series{}
				}
				p.jobs[id][name] = append(p.jobs[id][name], s)
			}
		}
	}
	return p, nil
}

// Usage returns what the page knows of a job that has run on the node alone. Its peak of
// memory is not known: a page has what is used now.
func (p *Page) Usage(j *Job) Usage {
	short, _, _ := strings.Cut(p.Host, ".")
	if p.Host == "" || j.NodeList != p.Host && j.NodeList != short {
		return Usage{}
	}
	mine := map[string][]*series{}
	for name, list := range p.jobs[j.ID] {
		for _, s := range list {
			if s.of(j) && name != seriesMemory {
				mine[name] = append(mine[name], s)
			}
		}
	}
	return usageOf(mine, window{0, 1})
}
