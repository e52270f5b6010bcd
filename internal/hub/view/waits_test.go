package view

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/hub"
)

// Catches a quiet queue whose few jobs nobody counts because its series begins with them, a series that has a gap and counts anew,
// one that nobody watched before, and jobs that count twice: those that are scraped and pushed, and those of two leaders.
func TestWaitsOfSeries(t *testing.T) {
	t.Parallel()
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	a := s.Appender(t.Context())
	// put writes samples of the minutes between begin and end, before noon.
	put := func(name string, begin, end int, v float64, pairs ...string) {
		set := labels.FromStrings(append([]string{fleet.LabelName, name, queue.LabelScheduler, "kubernetes"}, pairs...)...)
		for m := begin; m >= end; m-- {
			a.Gauge(set, noon.Add(-time.Duration(m)*time.Minute).UnixMilli(), v)
		}
	}
	count := func(name string, begin, end int, jobs, seconds float64, pairs ...string) {
		pairs = append([]string{queue.LabelCluster, "east", queue.LabelQueue, name}, pairs...)
		put(fleet.HistogramCount(queue.HistogramWait), begin, end, jobs, pairs...)
		put(fleet.HistogramSum(queue.HistogramWait), begin, end, jobs*seconds, pairs...)
		for bound, n := range map[string]float64{"60": 0, "120": jobs, "+Inf": jobs} {
			put(fleet.Buckets(queue.HistogramWait), begin, end, n, append([]string{fleet.LabelBucket, bound}, pairs...)...)
		}
	}
	put(queue.SeriesUp, 200, 0, 1, queue.LabelCluster, "east")
	count("quiet", 30, 0, 2, 90)
	count("nothing new", 200, 0, 7, 90)
	count("away for a while", 200, 100, 7, 90)
	count("away for a while", 20, 0, 7, 90)
	for _, instance := range []string{"leader", "its page at another address"} {
		count("twice", 200, 31, 3, 90, "instance", instance)
		count("twice", 30, 0, 5, 90, "instance", instance)
	}
	for _, host := range []string{"gn1", "gn2"} { // first work is counted on the nodes
		for bound, n := range map[string]float64{"120": 0, "240": 1, "+Inf": 1} {
			put(fleet.Buckets(queue.HistogramFirstWork), 30, 0, n, fleet.LabelBucket, bound, queue.LabelCluster, "east", queue.LabelQueue, "quiet", fleet.LabelHost, host)
		}
	}
	put(queue.SeriesUp, 30, 0, 1, queue.LabelCluster, "new")
	put(fleet.HistogramCount(queue.HistogramWait), 30, 0, 1000, queue.LabelCluster, "new", queue.LabelQueue, "ml")
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	list, err := queue.Waits(t.Context(), s, noon.Add(-time.Hour), noon)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]float64{}
	for _, w := range list {
		got[w.Cluster+" "+w.Queue] = []float64{w.Jobs, w.Mean.Default(math.NaN()), w.P50.Default(math.NaN()), w.FirstWork.Default(0)}
	}
	want := map[string][]float64{"east quiet": {2, 90, 90, 180}, "east twice": {2, 90, 90, 0}}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0.05, 0)); diff != "" {
		t.Errorf("jobs, mean, median and first work (-want +got):\n%s", diff)
	}
}
