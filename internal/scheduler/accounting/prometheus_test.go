package accounting

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fakeAPI answers range queries over raw samples as Prometheus does: a sample holds for
// 5 minutes, or until its series ends.
type fakeAPI struct {
	t testing.TB

	mu      sync.Mutex
	series  []rawSeries
	fail    int // answers of this status
	body    string
	queries []string
	points  int // the most that an answer had
}

type rawSeries struct {
	name   string
	labels map[string]string
	at     []int64
	value  []float64
}

var asked = regexp.MustCompile(`^(?:max_over_time\()?([a-z_]+)\{slurm_job_id=~"([^"]*)"(?:,slurm_cluster=~"([^"]*)")?\}(?:\[(\d+)s\]\))?$`)

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail != 0 {
		w.WriteHeader(a.fail)
		fmt.Fprint(w, a.body)
		return
	}
	if a.body != "" {
		fmt.Fprint(w, a.body)
		return
	}
	query := r.PostFormValue("query")
	a.queries = append(a.queries, query)
	m := asked.FindStringSubmatch(query)
	if m == nil || r.URL.Path != "/prefix/api/v1/query_range" {
		a.t.Errorf("%s: %s", r.URL.Path, query)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	start, end, step := number(r, "start"), number(r, "end"), number(r, "step")
	if step <= 0 || step >= 300 || (end-start)/step+1 > 11_000 {
		a.t.Errorf("%d points of %d s", (end-start)/step+1, step)
	}
	ids := regexp.MustCompile("^(?:" + m[2] + ")$")
	clusters := regexp.MustCompile("^(?:" + strings.ReplaceAll(m[3], `\\`, `\`) + ")$")
	result := []any{}
	for _, s := range a.series {
		if s.name != m[1] || !ids.MatchString(s.labels["slurm_job_id"]) || m[3] != "" && !clusters.MatchString(s.labels["slurm_cluster"]) {
			continue
		}
		var values [][2]any
		for t := start; t <= end; t += step {
			look := int64(300)
			if m[4] != "" {
				look, _ = strconv.ParseInt(m[4], 10, 64)
			}
			v, ok := s.read(t, look, m[4] != "")
			if ok {
				values = append(values, [2]any{t, strconv.FormatFloat(v, 'g', -1, 64)})
			}
		}
		if values != nil {
			a.points = max(a.points, len(values))
			labels := maps.Clone(s.labels)
			if m[4] == "" {
				labels["__name__"] = s.name
			}
			result = append(result, map[string]any{"metric": labels, "values": values})
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "matrix", "result": result}})
}

func number(r *http.Request, name string) int64 {
	n, _ := strconv.ParseInt(r.PostFormValue(name), 10, 64)
	return n
}

// read returns the value at t; NaN is the end of a series.
func (s *rawSeries) read(t, look int64, most bool) (v float64, ok bool) {
	for i, at := range s.at {
		if at > t || at <= t-look {
			continue
		}
		switch {
		case most && !math.IsNaN(s.value[i]):
			v, ok = max(v, s.value[i]), true
		case !most:
			v, ok = s.value[i], !math.IsNaN(s.value[i])
		}
	}
	return v, ok
}

// run adds the series of one GPU of a job as an agent that is scraped each 30 s has them:
// from its start to 5 minutes after its end. busy is the part of the time that it works.
func (a *fakeAPI) run(labels map[string]string, start, end time.Time, busy float64, resets ...time.Time) {
	names := []string{seriesAllocated, seriesActive, seriesIdle, seriesEnergy, seriesMemory}
	list := make([]rawSeries, len(names))
	for i, name := range names {
		list[i] = rawSeries{name: name, labels: labels}
	}
	for at := start.Add(time.Duration(len(labels["gpu_uuid"])) * time.Second); !at.After(end.Add(5 * time.Minute)); at = at.Add(30 * time.Second) {
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
		memory := 1e9 + t
		for i, v := range []float64{t, t * busy, t * (1 - busy), t * 100, memory} {
			list[i].at = append(list[i].at, at.Unix())
			if i == 4 && at.After(end) {
				v = math.NaN()
			}
			list[i].value = append(list[i].value, v)
		}
	}
	for i := range list { // the page shows it no more
		n := len(list[i].at)
		list[i].at, list[i].value = append(list[i].at, list[i].at[n-1]+30), append(list[i].value, math.NaN())
	}
	a.series = append(a.series, list...)
}

func gpu(job, uuid string, more ...string) map[string]string {
	m := map[string]string{"slurm_job_id": job, "slurm_cluster": "c", "gpu_uuid": uuid, "host_name": "n", "instance": "n:9400"}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

func newAPI(t testing.TB, now time.Time) (*fakeAPI, *Prometheus) {
	a := &fakeAPI{t: t}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	p, err := NewPrometheus(server.URL+"/prefix/", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p.now = func() time.Time { return now }
	return a, p
}

var near = cmpopts.EquateApprox(0, 0.001)

func measured(allocated, busy, peak float64) Usage {
	return Usage{
		Status: UsageOK, Allocated: allocated, Active: Measure{allocated * busy, true}, Idle: Measure{allocated * (1 - busy), true},
		Energy: Measure{allocated * 100, true}, Peak: Measure{peak, true},
	}
}

// The last value of a short job is found though a point falls only each 30 s, GPUs add
// up, and a job that nobody measured has none, not 0.
func TestUsage(t *testing.T) {
	a, p := newAPI(t, epoch.Add(time.Hour))
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	a.run(gpu("1", "GPU-a"), at(0), at(1000), 0.5)
	a.run(gpu("1", "GPU-bb"), at(0), at(1000), 0.25)
	a.run(gpu("2", "GPU-a"), at(1100), at(1110), 1)
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
		t.Error("the efficiency of a job that nobody measured is known")
	}
	if len(a.queries) != 5 {
		t.Errorf("%d questions for 3 jobs", len(a.queries))
	}
}

// What an agent that was killed had counted is not lost; a second Prometheus that scrapes
// the same agent counts nothing twice, nor does a label that is learnt later; a run of the
// same number, or of another cluster, is another job's.
func TestUsageTraps(t *testing.T) {
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	allocated := func(name string, want float64, tolerance float64, jobs []Job, build func(a *fakeAPI)) {
		t.Helper()
		a, p := newAPI(t, epoch.Add(10*time.Hour))
		build(a)
		got, err := p.Usage(t.Context(), jobs)
		if err != nil || got[0].Status != UsageOK || math.Abs(got[0].Allocated-want) > tolerance {
			t.Errorf("%s: %+v, %v, want %v", name, got[0], err, want)
		}
	}
	one := []Job{job(1, at(0), at(3600))}
	allocated("reset", 3600, 35, one, func(a *fakeAPI) { a.run(gpu("1", "G"), at(0), at(3600), 1, at(1000), at(2000)) })
	allocated("twice scraped", 3600, 1, one, func(a *fakeAPI) {
		a.run(gpu("1", "G"), at(0), at(3600), 1)
		a.run(gpu("1", "G", "replica", "b"), at(0), at(3600), 1)
	})
	allocated("partitions", 7200, 1, one, func(a *fakeAPI) {
		a.run(gpu("1", "G", "gpu_partition_id", "x"), at(0), at(3600), 1)
		a.run(gpu("1", "G", "gpu_partition_id", "y"), at(0), at(3600), 1)
	})
	allocated("more labels later", 3600, 1, one, func(a *fakeAPI) {
		a.run(gpu("1", "G"), at(0), at(3600), 1)
		a.run(gpu("1", "G", "slurm_account", "ml"), at(0), at(3600), 1)
		for i := range a.series {
			s := &a.series[i]
			for k, when := range s.at {
				if known := when >= at(600).Unix(); known != (i >= 5) {
					s.value[k] = math.NaN()
				}
			}
		}
	})
	allocated("no cluster", 3600, 1, one, func(a *fakeAPI) { a.run(gpu("1", "G", "slurm_cluster", ""), at(0), at(3600), 1) })
	allocated("another cluster", 3600, 1, one, func(a *fakeAPI) {
		a.run(gpu("1", "G"), at(0), at(3600), 1)
		a.run(gpu("1", "H", "slurm_cluster", "d"), at(0), at(3600), 1)
	})
	other := job(1, at(0), at(1800))
	other.Cluster = "d"
	allocated("a number of two clusters", 3600, 1, []Job{one[0], other}, func(a *fakeAPI) {
		a.run(gpu("1", "G"), at(0), at(3600), 1)
		a.run(gpu("1", "H", "slurm_cluster", "d"), at(0), at(1800), 1)
	})
	again := []Job{job(1, at(4000), at(5000)), job(1, at(0), at(3900))}
	again[1].State = "REQUEUED"
	allocated("requeued, the second run", 1000, 1, again, func(a *fakeAPI) {
		a.run(gpu("1", "G"), at(0), at(3900), 1)
		a.run(gpu("1", "GG"), at(4000), at(5000), 1)
	})
	allocated("requeued, the first run", 3900, 1, again[1:], func(a *fakeAPI) {
		a.run(gpu("1", "G"), at(0), at(3900), 1)
		a.run(gpu("1", "GG"), at(4000), at(5000), 1)
	})
	// A failed run whose number comes again before its series are gone.
	allocated("used again, the first run", 3900, 1, []Job{job(1, at(0), at(3900)), job(1, at(4000), at(5000))}, func(a *fakeAPI) {
		a.run(gpu("1", "G"), at(0), at(3900), 1)
		a.run(gpu("1", "GG"), at(4000), at(5000), 1)
	})
	month := []Job{job(1, at(0), at(40*86400))}
	allocated("40 days", 40*86400, 1, month, func(a *fakeAPI) {
		s := rawSeries{name: seriesAllocated, labels: gpu("1", "G")}
		for when := int64(60); when <= 40*86400+240; when += 60 {
			s.at, s.value = append(s.at, at(0).Unix()+when), append(s.value, float64(min(when, 40*86400)))
		}
		a.series = append(a.series, s)
	})
}

// Memory that was used for a moment between two points counts.
func TestPeak(t *testing.T) {
	a, p := newAPI(t, epoch.Add(time.Hour))
	a.run(gpu("1", "G"), epoch, epoch.Add(10*time.Minute), 1)
	spike := rawSeries{name: seriesMemory, labels: gpu("1", "G", "gpu_share_basis", "process")}
	for s := int64(0); s < 600; s += 5 {
		spike.at, spike.value = append(spike.at, epoch.Unix()+s), append(spike.value, 2e9)
	}
	spike.value[50] = 7e10
	a.series = append(a.series, spike)
	got, err := p.Usage(t.Context(), []Job{job(1, epoch, epoch.Add(10*time.Minute))})
	if err != nil || got[0].Peak != (Measure{7e10, true}) {
		t.Errorf("%+v, %v", got[0].Peak, err)
	}
}

// Many jobs cost few questions, of bounded length; long ones do not ride with short ones.
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
		if s := g.step(); s < minStep || s > maxStep {
			t.Errorf("step %s", s)
		}
	}
	if seen != 401 || len(list) > 12 {
		t.Errorf("%d jobs in %d groups", seen, len(list))
	}
}

// An API that fails, hangs or talks nonsense is an error, never a job without use.
func TestUsageFails(t *testing.T) {
	jobs := []Job{job(1, epoch, epoch.Add(time.Minute))}
	for _, c := range []struct {
		status int
		body   string
		want   string
	}{
		{503, "", "503"},
		{422, `{"status":"error","error":"query processing would load too many samples"}`, "too many samples"},
		{0, "<html>", "no JSON"},
		{0, `{"status":"success","data":{"resultType":"vector","result":[]}}`, "vector"},
		{0, `{}`, "it says"},
	} {
		a, p := newAPI(t, epoch.Add(time.Hour))
		a.fail, a.body = c.status, c.body
		got, err := p.Usage(t.Context(), jobs)
		if err == nil || !strings.Contains(err.Error(), c.want) || got[0].Status != UsageError {
			t.Errorf("%q: %+v, %v", c.body, got, err)
		}
	}
	p, err := NewPrometheus("http://user:secret@127.0.0.1:1/", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Usage(t.Context(), jobs); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "prometheus:9090", "ftp://x", "http://", "http://x/?q=1", "::"} {
		if _, err := NewPrometheus(bad, time.Second); err == nil {
			t.Errorf("%q is an address", bad)
		}
	}
}

func FuzzMatrix(f *testing.F) {
	f.Add(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"slurm_job_id":"1","gpu_uuid":"G"},"values":[[1,"2"],[2,"NaN"]]}]}}`)
	f.Fuzz(func(t *testing.T, s string) {
		var list []*series
		_ = parseMatrix(strings.NewReader(s), func(s *series) { list = append(list, s) })
		if sum, _ := total(list, window{0, math.MaxFloat64}); sum < 0 || math.IsNaN(sum) {
			t.Errorf("%v", sum)
		}
	})
}

// The page of the agent tells of jobs that ran on its node alone.
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
	want := Usage{Status: UsageOK, Allocated: 200, Active: Measure{50, true}}
	if diff := cmp.Diff(want, p.Usage(&j)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	j.Nodes, j.NodeList = 2, "n[1-2]"
	if got := p.Usage(&j); got.Status != "" {
		t.Errorf("a job of two nodes: %+v", got)
	}
	j = job(2, epoch, time.Time{})
	j.NodeList = "n1"
	if got := p.Usage(&j); got.Status != UsageMissing {
		t.Errorf("a job that it does not know: %+v", got)
	}
	if _, err := ParsePage(strings.NewReader("<html>")); err == nil {
		t.Error("a page of something else")
	}
}
