//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Catches waits that are lost or counted twice when the elected process is killed, is stopped or begins anew: the histogram must be
// that of the pods' own times, to the bucket. Fifty pods are released in five parts, two of them while nobody watches.
func TestKubeWaits(t *testing.T) {
	t.Parallel()
	q := newQueueTest(t)
	for i := range 7 {
		q.node(fmt.Sprint("gn", i), "64", "")
	}
	first := q.agent("first")
	q.shows(first, map[string]float64{`scheduler_gpu_count{state="free",type="H100"}`: 56})
	const parts, size = 5, 10
	for i := range parts * size {
		q.pod([]string{red, red, blue}[i%3], fmt.Sprint("pod-", i), 1, "1", "schedulingGates: [{name: example.com/turn}]")
	}
	part := 0
	release := func() {
		t.Helper()
		for i := range size {
			i += part * size
			q.api.patch(fmt.Sprintf("/api/v1/namespaces/%s/pods/pod-%d", []string{red, red, blue}[i%3], i), `{"spec": {"schedulingGates": null}}`)
		}
		part++
		eventually(t, "the pods are placed", func() error {
			placed := 0
			for _, p := range q.apiPods() {
				if p.Spec.NodeName != "" {
					placed++
				}
			}
			if placed != part*size {
				return fmt.Errorf("%d are, of %d", placed, part*size)
			}
			return nil
		})
	}

	release()
	q.waitedAs(first)
	second := q.agent("second")
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-first.done
	release() // nobody watches
	q.waitedAs(second)
	release()
	q.waitedAs(second)
	if code := second.stop(t); code != 0 {
		t.Errorf("the elected agent ended with %d", code)
	}
	release() // nobody is there
	third := q.agent("third")
	q.waitedAs(third)
	release()
	q.waitedAs(third)
}

// durations is a histogram, with cumulative counts by upper bound.
type durations struct {
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64
}

// waitedAs waits until the waits that an agent reports are those that the API server's pods have.
func (q *queueTest) waitedAs(a queueAgent) {
	q.t.Helper()
	eventually(q.t, a.name+" has counted the waits", func() error {
		text, err := get(q.t, "http://"+a.address+"/metrics")
		if err != nil {
			return err
		}
		got, want := q.histograms(text), map[string]*durations{}
		for queue, h := range got {
			want[queue] = &durations{Buckets: map[float64]uint64{}}
			for bound := range h.Buckets {
				want[queue].Buckets[bound] = 0
			}
		}
		for _, p := range q.apiPods() {
			for _, c := range p.Status.Conditions {
				if c.Type != "PodScheduled" || c.Status != "True" {
					continue
				}
				h := want[p.Metadata.Namespace]
				if h == nil {
					return fmt.Errorf("no waits in %s so far", p.Metadata.Namespace)
				}
				h.add(c.LastTransitionTime.Sub(p.Metadata.CreationTimestamp))
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
			return fmt.Errorf("the waits (-API +page):\n%s", diff)
		}
		return nil
	})
}

func (d *durations) add(wait time.Duration) {
	d.Count++
	d.Sum += wait.Seconds()
	for bound := range d.Buckets {
		if wait.Seconds() <= bound {
			d.Buckets[bound]++
		}
	}
}

// histograms returns the waits of a page by queue.
func (q *queueTest) histograms(text string) map[string]*durations {
	q.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		q.t.Fatal(err)
	}
	out := map[string]*durations{}
	for _, m := range families["scheduler_job_wait_duration_seconds"].GetMetric() {
		i := slices.IndexFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "scheduler_queue" })
		h := &durations{m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum(), map[float64]uint64{}}
		for _, b := range m.GetHistogram().GetBucket() {
			h.Buckets[b.GetUpperBound()] = b.GetCumulativeCount()
		}
		out[m.GetLabel()[i].GetValue()] = h
	}
	return out
}
