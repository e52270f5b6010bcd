//go:build bench

package bill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"golang.org/x/sync/errgroup"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// shape is a fleet and its history.
type shape struct {
	gpus, days int
	step       time.Duration
}

func parse(t *testing.T, text string) (s shape) {
	t.Helper()
	var step string
	_, err := fmt.Sscanf(text, "%dx%d@%s", &s.gpus, &s.days, &step)
	if err == nil {
		s.step, err = time.ParseDuration(step)
	}
	if err != nil {
		t.Fatalf("%q is not like 1000x30@1m: %v", text, err)
	}
	return s
}

// series is one series of a GPU: value returns its value so long after the start of its workload, the
// n-th of the GPU.
type series struct {
	name  string
	who   bool // of the workload
	value func(since time.Duration, n int) float64
}

var perGPU = []series{
	{fleet.SeriesUp, false, func(time.Duration, int) float64 { return 1 }},
	{fleet.SeriesAllocatedTime, true, func(d time.Duration, _ int) float64 { return d.Seconds() }},
	{fleet.SeriesActiveTime, true, func(d time.Duration, n int) float64 { return d.Seconds() * float64(n%4) / 4 }},
	{fleet.SeriesEnergy, true, func(d time.Duration, n int) float64 { return d.Seconds() * float64(300+n) }},
}

// gauges are written for the last hours only, at their real interval.
var gauges = []series{
	{fleet.SeriesAllocation, true, func(time.Duration, int) float64 { return 1 }},
	{fleet.SeriesWorkloadUtilization, true, func(d time.Duration, n int) float64 { return float64(n%4) / 4 * float64(d/time.Second%7) / 6 }},
	{fleet.SeriesSMActive, false, func(d time.Duration, n int) float64 { return float64(n%4) / 5 * float64(d/time.Second%7) / 6 }},
	{fleet.SeriesUtilization, false, func(d time.Duration, n int) float64 { return float64(n%4) / 4 * float64(d/time.Second%7) / 6 }},
	{fleet.SeriesWorkloadMemory, true, func(d time.Duration, n int) float64 { return float64(10+n) * (1 << 30) }},
	{fleet.SeriesMemoryTotal, false, func(time.Duration, int) float64 { return 80 << 30 }},
	{fleet.SeriesPower, false, func(d time.Duration, n int) float64 { return float64(300 + n) }},
}

const (
	day = 24 * time.Hour
	// lifetime is how long a GPU has the same workload.
	lifetime = 36 * time.Hour
)

// history returns a data directory with the history of the fleet, its end and how many samples were written.
func (s shape) history(t *testing.T, name string) (dir string, end time.Time, samples int) {
	t.Helper()
	end = time.Now().UTC().Truncate(time.Minute)
	if *data == "" {
		dir = t.TempDir()
		return dir, end, s.write(t, dir, end)
	}
	if list, _ := filepath.Glob(filepath.Join(*data, name+"-*")); len(list) > 0 {
		dir = list[0]
		unix, err := strconv.ParseInt(dir[strings.LastIndex(dir, "-")+1:], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		end = time.Unix(unix, 0).UTC()
		if end.Sub(s.begin(end)) <= retention {
			return dir, end, 0
		}
	} else {
		dir = filepath.Join(*data, fmt.Sprintf("%s-%d", name, end.Unix()))
	}
	return dir, end, s.write(t, dir, end)
}

// write fills a data directory with blocks of a day. The history ends at end, which is in the current day.
func (s shape) write(t *testing.T, dir string, end time.Time) (samples int) {
	t.Helper()
	begin := s.begin(end)
	if end.Sub(begin) <= retention {
		samples = s.arrive(t, dir, begin, begin, end)
	} else if samples = s.live(t, dir, begin, end); samples == 0 {
		return 0 // by an earlier run
	}
	n, err := s.block(t.Context(), dir, gauges, begin, end.Add(-2*time.Hour), end, 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return samples + n
}

// begin returns when a history that ends at end begins.
func (s shape) begin(end time.Time) time.Time {
	return end.UTC().Truncate(day).Add(-time.Duration(s.days) * day)
}

// arrive writes the samples of a part of a history that began at begin, one block for each day.
func (s shape) arrive(t *testing.T, dir string, begin, from, to time.Time) int {
	t.Helper()
	var samples atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(runtime.GOMAXPROCS(0))
	for at := from; at.Before(to); at = at.Add(day) {
		end := at.Add(day)
		if end.After(to) {
			end = to
		}
		group.Go(func() error {
			n, err := s.block(ctx, dir, perGPU, begin, at, end, s.step)
			samples.Add(int64(n))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return int(samples.Load())
}

func (s shape) block(ctx context.Context, dir string, list []series, begin, from, to time.Time, step time.Duration) (samples int, err error) {
	w, err := tsdb.NewBlockWriter(promslog.NewNopLogger(), filepath.Join(dir, "tsdb"), (72 * time.Hour).Milliseconds()) // it takes samples of half of that in any order
	if err != nil {
		return 0, err
	}
	defer w.Close()
	for gpu := range s.gpus {
		first := begin.Add(-time.Duration(gpu) * 17 * time.Minute) // workloads of different GPUs change at different times
		a := w.Appender(ctx)
		for _, x := range list {
			n := int(from.Add(-1).Sub(first) / lifetime)
			of, ref := s.labels(gpu, n, x), storage.SeriesRef(0)
			add := func(at time.Time) {
				if err != nil {
					return
				}
				samples++
				ref, err = a.Append(ref, of, at.UnixMilli(), x.value(at.Sub(first)-time.Duration(n)*lifetime, n))
			}
			until := func(at time.Time) {
				for end := first.Add(time.Duration(n+1) * lifetime); !end.After(at); end = end.Add(lifetime) {
					if x.who { // an agent sends what a workload had at its end
						add(end)
					}
					n++
					of, ref = s.labels(gpu, n, x), 0
				}
			}
			for at := from; at.Before(to); at = at.Add(step) {
				at := at.Add(time.Duration(gpu%1000) * time.Millisecond)
				until(at)
				add(at)
			}
			until(to.Add(-1))
		}
		if err = errors.Join(err, a.Commit()); err != nil {
			return 0, err
		}
	}
	_, err = w.Flush(ctx)
	return samples, err
}

var teams = []string{"red", "blue", "green", "vision", "speech", "search", "ads", "research"}

func (s shape) labels(gpu, n int, x series) labels.Labels {
	list := []string{
		fleet.LabelName, x.name, fleet.LabelUUID, fmt.Sprintf("GPU-%08d", gpu), fleet.LabelIndex, fmt.Sprint(gpu % 8), fleet.LabelModel, "H100",
		fleet.LabelHost, fmt.Sprintf("node-%d", gpu/8), fleet.LabelCluster, "east", fleet.LabelVendor, "nvidia",
	}
	if x.who {
		pod := fmt.Sprintf("train-%d-%d", gpu, n)
		list = append(list, fleet.LabelKind, "job", fleet.LabelWorkload, pod, fleet.LabelTeam, teams[(gpu/64+n)%len(teams)],
			fleet.LabelNamespace, "ml", fleet.LabelPod, pod, fleet.LabelPodUID, "uid-"+pod)
	}
	return labels.FromStrings(list...)
}
