package accounting

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// run adds the series of one GPU of a job, scraped every 30 s from its start to 5 minutes after its
// end. busy is the fraction of the time that the job is active.
func run(m *querytest.Memory, labels query.Labels, start, end time.Time, busy float64, resets ...time.Time) {
	names := []string{fleet.SeriesAllocatedTime, fleet.SeriesActiveTime, fleet.SeriesEnergy, fleet.SeriesWorkloadMemory}
	add := func(i int, at time.Time, v float64) {
		l := maps.Clone(labels)
		l[fleet.LabelName] = names[i]
		m.Add(l, at, v)
	}
	at := start.Add(time.Duration(len(labels[fleet.LabelUUID])) * time.Second)
	for ; !at.After(end.Add(5 * time.Minute)); at = at.Add(30 * time.Second) {
		now := at
		if now.After(end) {
			now = end
		}
		since := start
		for _, r := range resets {
			if !r.After(at) {
				since = r
			}
		}
		t := now.Sub(since).Seconds()
		for i, v := range []float64{t, t * busy, t * 100, 1e9 + t} {
			if i == 3 && at.After(end) {
				v = math.NaN()
			}
			add(i, at, v)
		}
	}
	for i := range names { // no longer exported
		add(i, at, math.NaN())
	}
}

func gpu(job, uuid string, more ...string) query.Labels {
	m := query.Labels{"slurm_job_id": job, "slurm_cluster": "c", "gpu_uuid": uuid, "host_name": "n", "instance": "n:9400"}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

func newStore(now time.Time) (*querytest.Memory, *Meter) {
	s := querytest.NewMemory()
	m := NewMeter(s)
	m.now = func() time.Time { return now }
	return s, m
}

var near = cmpopts.EquateApprox(0, 0.001)

func measured(allocated, busy, peak float64) Usage {
	return Usage{
		Status: UsageOK, Allocated: allocated, Active: optional.Of(allocated * busy), Idle: optional.Of(allocated * (1 - busy)),
		Energy: optional.Of(allocated * 100), Peak: optional.Of(peak),
	}
}

// Catches the lost last value of a short job between scrapes, GPUs that do not add up, and 0 instead
// of absent usage for an unmeasured job.
func TestUsage(t *testing.T) {
	a, p := newStore(epoch.Add(time.Hour))
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	run(a, gpu("1", "GPU-a"), at(0), at(1000), 0.5)
	run(a, gpu("1", "GPU-bb"), at(0), at(1000), 0.25)
	run(a, gpu("2", "GPU-a"), at(1100), at(1110), 1)
	jobs := []Job{job(1, at(0), at(1000)), job(2, at(1100), at(1110)), job(3, at(0), at(1000))}
	jobs[0].GPUs = 2
	got, err := p.Usage(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	want := []Usage{measured(2000, 0.375, 1e9+996), measured(10, 1, 1e9+5), {Status: UsageMissing}}
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e, _ := got[0].Efficiency().Get(); math.Abs(e-0.375) > 1e-9 {
		t.Errorf("efficiency %v", e)
	}
	if _, known := got[2].Efficiency().Get(); known {
		t.Error("an unmeasured job has an efficiency")
	}
	if a.Asked() > 50 {
		t.Errorf("%d queries for 3 jobs", a.Asked())
	}
}

// Catches usage lost with a killed agent; usage counted twice by a second scraper or a late label; and
// usage of another run or another cluster with the same job ID.
func TestUsageTraps(t *testing.T) {
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	allocated := func(name string, want float64, tolerance float64, jobs []Job, build func(a *querytest.Memory)) {
		t.Helper()
		a, p := newStore(epoch.Add(10 * time.Hour))
		build(a)
		got, err := p.Usage(t.Context(), jobs)
		if err != nil || got[0].Status != UsageOK || math.Abs(got[0].Allocated-want) > tolerance {
			t.Errorf("%s: %+v, %v, want %v", name, got[0], err, want)
		}
	}
	one := []Job{job(1, at(0), at(3600))}
	allocated("reset", 3600, 35, one, func(a *querytest.Memory) { run(a, gpu("1", "G"), at(0), at(3600), 1, at(1000), at(2000)) })
	allocated("twice scraped", 3600, 1, one, func(a *querytest.Memory) {
		run(a, gpu("1", "G"), at(0), at(3600), 1)
		run(a, gpu("1", "G", "replica", "b"), at(0), at(3600), 1)
	})
	allocated("partitions", 3600, 1, one, func(a *querytest.Memory) { // of half a device each
		all := querytest.NewMemory()
		run(all, gpu("1", "G", "gpu_partition_id", "x"), at(0), at(3600), 1)
		run(all, gpu("1", "G", "gpu_partition_id", "y"), at(0), at(3600), 1)
		for _, s := range all.Series() {
			for _, p := range s.Points {
				a.Add(s.Labels, p.Time, p.Value/2)
			}
		}
	})
	allocated("more labels later", 3600, 1, one, func(a *querytest.Memory) {
		all := querytest.NewMemory()
		run(all, gpu("1", "G"), at(0), at(3600), 1)
		for _, s := range all.Series() {
			for _, p := range s.Points {
				l := maps.Clone(s.Labels)
				if p.Time.After(at(600)) {
					l["slurm_account"] = "ml"
				}
				a.Add(l, p.Time, p.Value)
			}
		}
	})
	allocated("no cluster", 3600, 1, one, func(a *querytest.Memory) { run(a, gpu("1", "G", "slurm_cluster", ""), at(0), at(3600), 1) })
	allocated("another cluster", 3600, 1, one, func(a *querytest.Memory) {
		run(a, gpu("1", "G"), at(0), at(3600), 1)
		run(a, gpu("1", "H", "slurm_cluster", "d"), at(0), at(3600), 1)
	})
	other := job(1, at(0), at(1800))
	other.Cluster = "d"
	allocated("a number of two clusters", 3600, 1, []Job{one[0], other}, func(a *querytest.Memory) {
		run(a, gpu("1", "G"), at(0), at(3600), 1)
		run(a, gpu("1", "H", "slurm_cluster", "d"), at(0), at(1800), 1)
	})
	again := []Job{job(1, at(4000), at(5000)), job(1, at(0), at(3900))}
	again[1].State = "REQUEUED"
	allocated("requeued, the second run", 1000, 1, again, func(a *querytest.Memory) {
		run(a, gpu("1", "G"), at(0), at(3900), 1)
		run(a, gpu("1", "GG"), at(4000), at(5000), 1)
	})
	allocated("requeued, the first run", 3900, 1, again[1:], func(a *querytest.Memory) {
		run(a, gpu("1", "G"), at(0), at(3900), 1)
		run(a, gpu("1", "GG"), at(4000), at(5000), 1)
	})
	// A failed run whose ID is reused before its series expire.
	allocated("used again, the first run", 3900, 1, []Job{job(1, at(0), at(3900)), job(1, at(4000), at(5000))}, func(a *querytest.Memory) {
		run(a, gpu("1", "G"), at(0), at(3900), 1)
		run(a, gpu("1", "GG"), at(4000), at(5000), 1)
	})
	month := []Job{job(1, at(0), at(40*86400))}
	allocated("40 days", 40*86400, 1, month, func(a *querytest.Memory) {
		l := gpu("1", "G", fleet.LabelName, fleet.SeriesAllocatedTime)
		for when := 60; when <= 40*86400+240; when += 60 {
			a.Add(l, at(when), float64(min(when, 40*86400)))
		}
	})
}

// Catches a lost memory peak between two samples.
func TestPeak(t *testing.T) {
	a, p := newStore(epoch.Add(time.Hour))
	run(a, gpu("1", "G"), epoch, epoch.Add(10*time.Minute), 1)
	spike := gpu("1", "G", "gpu_share_basis", "process", fleet.LabelName, fleet.SeriesWorkloadMemory)
	for i := range 120 {
		v := 2e9
		if i == 50 {
			v = 7e10
		}
		a.Add(spike, epoch.Add(time.Duration(5*i)*time.Second), v)
	}
	got, err := p.Usage(t.Context(), []Job{job(1, epoch, epoch.Add(10*time.Minute))})
	if err != nil || got[0].Peak != optional.Of(7e10) {
		t.Errorf("%+v, %v", got[0].Peak, err)
	}
}

// Catches too many queries, unbounded queries, and long jobs grouped with short ones.
func TestGroups(t *testing.T) {
	var jobs []Job
	for i := range 400 {
		start := epoch.Add(time.Duration(i) * 10 * time.Second)
		jobs = append(jobs, job(i+1, start, start.Add(20*time.Minute)))
	}
	jobs = append(jobs, job(999, epoch.Add(-7*24*time.Hour), epoch), job(0, time.Time{}, epoch))
	jobs[400].GPUs = 512
	seen := 0
	list := groups(jobs, epoch)
	for _, g := range list {
		seen += len(g.at)
		if len(g.at) > maxIDs || len(g.at) > 1 && (g.samples > maxSamples || g.to.Sub(g.from) > 4*time.Hour) {
			t.Errorf("%d jobs, %d samples, %s", len(g.at), g.samples, g.to.Sub(g.from))
		}
	}
	if seen != 401 || len(list) > 12 {
		t.Errorf("%d jobs in %d groups", seen, len(list))
	}
}

// broken is a store that always fails.
type broken struct{ query.Store }

func (broken) Instant(context.Context, string, time.Time) ([]query.Sample, error) {
	return nil, errors.New("too many samples")
}

func (broken) Raw(context.Context, string, time.Time, time.Time) ([]query.Series, error) {
	return nil, errors.New("too many samples")
}

// Catches a store failure reported as a job without usage.
func TestUsageFails(t *testing.T) {
	got, err := NewMeter(broken{}).Usage(t.Context(), []Job{job(1, epoch, epoch.Add(time.Minute))})
	if err == nil || !strings.Contains(err.Error(), "too many samples") || got[0].Status != UsageError {
		t.Errorf("%+v, %v", got, err)
	}
}

// Catches a job whose start the store missed and that does not report the hours seen, as its bill
// does, or the hours missed.
func TestUsageOfLateStore(t *testing.T) {
	a, p := newStore(epoch.Add(10 * time.Hour))
	l := gpu("1", "G", fleet.LabelName, fleet.SeriesAllocatedTime)
	for s := 7200; s <= 9000; s += 30 {
		a.Add(l, epoch.Add(time.Duration(s)*time.Second), float64(s))
	}
	got, err := p.Usage(t.Context(), []Job{job(1, epoch, epoch.Add(9000*time.Second))})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Usage{{Status: UsageOK, Allocated: 1800, Unseen: 7200}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	bill, err := cost.Bill(t.Context(), a, cost.Prices{}, epoch, epoch.Add(10*time.Hour), cost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if hours, unseen := bill.Total.Time().Float(), bill.Missing.Unseen.Held.Float(); hours != got[0].Allocated || unseen != got[0].Unseen {
		t.Errorf("the bill has %v s and misses %v s, accounting has %v s and misses %v s", hours, unseen, got[0].Allocated, got[0].Unseen)
	}
}

// Catches wrong usage from the agent's page for jobs that ran on its node only.
func TestPage(t *testing.T) {
	page := `# TYPE gpu_workload_allocated_time_seconds_total counter
gpu_workload_allocated_time_seconds_total{gpu_uuid="a",host_name="n1.site",slurm_job_id="1",slurm_cluster="c"} 100
gpu_workload_allocated_time_seconds_total{gpu_uuid="b",host_name="n1.site",slurm_job_id="1",slurm_cluster="c"} 100
# TYPE gpu_workload_active_time_seconds_total counter
gpu_workload_active_time_seconds_total{gpu_uuid="a",host_name="n1.site",slurm_job_id="1",slurm_cluster="c"} 50
# TYPE gpu_workload_memory_used_bytes gauge
gpu_workload_memory_used_bytes{gpu_uuid="a",host_name="n1.site",slurm_job_id="1",slurm_cluster="c"} 5e9
`
	p, err := ParsePage(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	j := job(1, epoch, time.Time{})
	j.NodeList = "n1"
	want := Usage{Status: UsageOK, Allocated: 200, Active: optional.Of(50), Idle: optional.Of(150)}
	if diff := cmp.Diff(want, p.Usage(&j)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	j.Nodes, j.NodeList = 2, "n[1-2]"
	if got := p.Usage(&j); got.Status != "" {
		t.Errorf("a job on two nodes: %+v", got)
	}
	j = job(2, epoch, time.Time{})
	j.NodeList = "n1"
	if got := p.Usage(&j); got.Status != UsageMissing {
		t.Errorf("an unknown job: %+v", got)
	}
	for _, bad := range []string{"<html>", "{} 1\n", page + "{} 1\n"} {
		if _, err := ParsePage(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is accepted as a metrics page", bad)
		}
	}
}
