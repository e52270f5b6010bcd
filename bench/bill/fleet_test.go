//go:build bench

package bill

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

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

// lifetime is how long a GPU has the same workload.
const lifetime = 36 * time.Hour

// history returns a data directory with the history of the fleet, its end and how many samples were written.
func (s shape) history(t *testing.T, name string) (dir string, end time.Time, samples int) {
	t.Helper()
	end = time.Now().UTC().Truncate(time.Minute)
	if *data == "" {
		dir = t.TempDir()
		return dir, end, s.write(t, dir, end)
	}
	if list, _ := filepath.Glob(filepath.Join(*data, name+"-*")); len(list) > 0 {
		unix, err := strconv.ParseInt(list[0][strings.LastIndex(list[0], "-")+1:], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return list[0], time.Unix(unix, 0).UTC(), 0
	}
	dir = filepath.Join(*data, fmt.Sprintf("%s-%d", name, end.Unix()))
	return dir, end, s.write(t, dir, end)
}

// write fills a data directory with blocks of a day. The history ends at end, which is in the current day.
func (s shape) write(t *testing.T, dir string, end time.Time) (samples int) {
	t.Helper()
	today := end.UTC().Truncate(24 * time.Hour)
	begin := today.Add(-time.Duration(s.days) * 24 * time.Hour)
	for day := begin; day.Before(end); day = day.Add(24 * time.Hour) {
		to := day.Add(24 * time.Hour)
		if to.After(end) {
			to = end
		}
		samples += s.block(t, dir, perGPU, begin, day, to, s.step)
	}
	return samples + s.block(t, dir, gauges, begin, end.Add(-2*time.Hour), end, 15*time.Second)
}

func (s shape) block(t *testing.T, dir string, list []series, begin, from, to time.Time, step time.Duration) (samples int) {
	t.Helper()
	w, err := tsdb.NewBlockWriter(promslog.NewNopLogger(), filepath.Join(dir, "tsdb"), (72 * time.Hour).Milliseconds()) // it takes samples of half of that in any order
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for gpu := range s.gpus {
		a := w.Appender(t.Context())
		for _, x := range list {
			var ref storage.SeriesRef
			last := -1
			for at := from; at.Before(to); at = at.Add(step) {
				at := at.Add(time.Duration(gpu%1000) * time.Millisecond)
				// Workloads of different GPUs change at different times.
				since := at.Sub(begin) + time.Duration(gpu)*17*time.Minute
				n := int(since / lifetime)
				if since -= time.Duration(n) * lifetime; n != last {
					ref, last = 0, n
				}
				if ref, err = a.Append(ref, s.labels(gpu, n, x), at.UnixMilli(), x.value(since, n)); err != nil {
					t.Fatal(err)
				}
				samples++
			}
		}
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return samples
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
