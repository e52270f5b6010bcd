package view

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// chart is a picture that the page can ask for. Its questions are written here: the page
// cannot ask for anything else.
type chart struct {
	unit  string // ratio, bytes, watts, celsius, gpus, hertz
	lines []line
}

// points is how many of them a line has at most. One of the whole fleet costs as many
// values as it has devices.
func (c chart) points(name string) int {
	if strings.HasPrefix(name, "fleet-") {
		return maxPoints / 4
	}
	return maxPoints
}

// line is one question of a chart, whose answers are as many lines.
type line struct {
	name string // of the line, if it is one
	by   string // label whose values name the lines, if they are several
	expr string // with %s for the selector of what the chart is about
}

var charts = map[string]chart{
	"fleet-use": {"gpus", []line{
		{name: "Held", expr: `count(max by (gpu_uuid) (gpu_allocation_ratio{gpu_workload_kind!="unallocated"%s}) > 0)`},
		{name: "Busy", expr: `sum(max by (gpu_uuid) (gpu_utilization_ratio{gpu_task="compute",gpu_partition_id=""%s}))`},
	}},
	"fleet-power": {"watts", []line{{name: "Power", expr: `sum(avg by (gpu_uuid) (gpu_power_draw_watts{gpu_power_scope!="memory",gpu_partition_id=""%s}))`}}},

	"gpu-utilization": {"ratio", []line{
		{name: "Busy", expr: `max(gpu_utilization_ratio{gpu_task="compute",gpu_partition_id=""%s})`},
		{name: "SM active", expr: `max(gpu_sm_active_ratio{gpu_partition_id=""%s})`},
		{name: "Tensor pipe", expr: `max(gpu_pipe_active_ratio{gpu_pipe="tensor",gpu_partition_id=""%s})`},
		{name: "DRAM", expr: `max(gpu_dram_active_ratio{gpu_partition_id=""%s})`},
	}},
	"gpu-memory": {"bytes", []line{
		{name: "Used", expr: `max(gpu_memory_used_bytes{gpu_partition_id=""%s})`},
		{name: "Total", expr: `max(gpu_memory_total_bytes{gpu_partition_id=""%s})`},
	}},
	"gpu-power": {"watts", []line{
		{name: "Drawn", expr: `avg(gpu_power_draw_watts{gpu_power_scope!="memory",gpu_partition_id=""%s})`},
		{name: "Limit", expr: `max(gpu_power_limit_watts{gpu_power_scope!="memory",gpu_partition_id=""%s})`},
	}},
	"gpu-temperature": {"celsius", []line{{by: "gpu_temperature_sensor", expr: `max by (gpu_temperature_sensor) (gpu_temperature_celsius{gpu_partition_id=""%s})`}}},
	"gpu-clock":       {"hertz", []line{{by: "gpu_clock_type", expr: `max by (gpu_clock_type) (gpu_clock_frequency_hertz{gpu_partition_id="",gpu_clock_type=~"graphics|sm|memory|soc|ai|fabric"%s})`}}},
	"gpu-owners":      {"ratio", []line{{by: "gpu_workload_name", expr: `sum by (gpu_workload_name) ` + once(`gpu_workload_utilization_ratio{gpu_workload_kind!="unallocated"%s}`)}}},

	"workload-gpus": {"gpus", []line{
		{name: "Held", expr: "sum" + once(`gpu_allocation_ratio{gpu_uuid!=""%s}`)},
		{name: "Busy", expr: "sum" + once(`gpu_workload_utilization_ratio{gpu_uuid!=""%s}`)},
	}},
	"workload-memory": {"bytes", []line{{name: "Used", expr: "sum" + once(`gpu_workload_memory_used_bytes{gpu_uuid!=""%s}`)}}},
	"workload-power":  {"watts", []line{{name: "Drawn", expr: "sum" + once(`gpu_workload_power_draw_watts{gpu_uuid!=""%s}`)}}},
}

type rangeAnswer struct {
	Unit  string   `json:"unit"`
	Times []int64  `json:"times"` // seconds since 1970
	Names []string `json:"names"`
	Lines []column `json:"lines"` // null where there is no value
	More  bool     `json:"more"`  // lines were left out
}

func (v *viewer) rangePage(ctx context.Context, r request) (any, error) {
	name := r.values.Get("chart")
	c, ok := charts[name]
	if !ok {
		return nil, fmt.Errorf("%w: no chart %q", errBad, name)
	}
	var which string
	if uuid := r.values.Get("gpu"); uuid != "" {
		which = `,gpu_uuid=` + strconv.Quote(uuid)
	}
	if id := r.values.Get("workload"); id != "" {
		matchers, err := selects(id)
		if err != nil {
			return nil, err
		}
		which += "," + matchers
	}
	step := stepOf(r.to.Sub(r.from), c.points(name))
	// Steps at whole multiples: the picture moves by columns, and does not shimmer.
	start, end := r.from.Truncate(step), r.to.Truncate(step)
	key := strings.Join([]string{name, which, start.String(), end.String()}, "\n")
	return v.pictures.get(ctx, key, v.opts.Now(), min(step, time.Minute), func(ctx context.Context) (*rangeAnswer, error) { return v.draw(ctx, c, which, start, end, step) })
}

// draw asks for the lines of a chart about what the matchers in which select.
func (v *viewer) draw(ctx context.Context, c chart, which string, start, end time.Time, step time.Duration) (*rangeAnswer, error) {
	a := &rangeAnswer{Unit: c.unit, Times: []int64{}, Names: []string{}, Lines: []column{}}
	n := int(end.Sub(start)/step) + 1
	for i := range n {
		a.Times = append(a.Times, start.Add(time.Duration(i)*step).Unix())
	}
	for _, l := range c.lines {
		series, err := v.store.Range(ctx, fmt.Sprintf(l.expr, which), start, end, step)
		if err != nil {
			return nil, err
		}
		if l.by != "" {
			slices.SortFunc(series, func(x, y query.Series) int { return cmp.Compare(x.Labels[l.by], y.Labels[l.by]) })
		}
		for _, s := range series {
			if len(a.Lines) == maxLines {
				a.More = true
				break
			}
			a.Names = append(a.Names, cmp.Or(l.name, s.Labels[l.by]))
			a.Lines = append(a.Lines, onto(s.Points, start, step, n))
		}
	}
	return a, nil
}

// stepOf returns a round length of time that gives a picture enough points.
func stepOf(length time.Duration, points int) time.Duration {
	for _, step := range []time.Duration{
		10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 6 * time.Hour, 24 * time.Hour,
	} {
		if length/step <= time.Duration(points) {
			return step
		}
	}
	return 7 * 24 * time.Hour
}

// onto puts points where they belong. Between them nothing is known.
func onto(points []query.Point, start time.Time, step time.Duration, n int) column {
	c := make(column, n)
	for i := range c {
		c[i] = absent
	}
	for _, p := range points {
		if i := int(math.Round(float64(p.Time.Sub(start)) / float64(step))); i >= 0 && i < n {
			c[i] = p.Value
		}
	}
	return c
}
