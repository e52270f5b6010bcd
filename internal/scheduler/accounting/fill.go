package accounting

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Fill sets the usage of each job that ran. asked is the number of such jobs; missing is how many
// of them have no series in Prometheus.
func (m *Meter) Fill(ctx context.Context, list []Record) (asked, missing int, err error) {
	var jobs []Job
	var at []int
	for i := range list {
		if list[i].Ran() {
			jobs, at = append(jobs, list[i].Job), append(at, i)
		}
	}
	if len(jobs) == 0 {
		return 0, 0, nil
	}
	got, err := m.Usage(ctx, jobs)
	for k, i := range at {
		list[i].Usage = got[k]
		if got[k].Status == UsageMissing {
			missing++
		}
	}
	return len(jobs), missing, err
}

// Fill sets the usage of each job that ran and returns how many have known usage.
func (p *Page) Fill(list []Record) (known int) {
	for i := range list {
		if r := &list[i]; r.Ran() {
			if r.Usage = p.Usage(&r.Job); r.Usage.Status == UsageOK {
				known++
			}
		}
	}
	return known
}

// pageTimeout is the deadline for the agent of this node to answer.
const pageTimeout = 3 * time.Second

// FetchPage reads the metrics page of an agent.
func FetchPage(ctx context.Context, address string) (*Page, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return ParsePage(resp.Body)
}
