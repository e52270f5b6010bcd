package view

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/query"
)

// devicesIn queries the devices of all clusters that are in a state.
func devicesIn(state string) func(...string) string {
	return func(matchers ...string) string {
		return "sum" + fleet.Once(fleet.Select(queue.SeriesDevices, nil, append([]string{fleet.Equals(queue.LabelDeviceState, state)}, matchers...)...))
	}
}

// waitWindow is the shortest window for quantiles of waits: few jobs are placed in a minute.
const waitWindow = time.Hour

// placed draws a quantile of how long the jobs waited that got their devices.
func placed(q float64) line {
	return line{Name: fmt.Sprintf("p%.0f", 100*q), over: func(window time.Duration, matchers ...string) string {
		buckets := fleet.Once("rate(" + fleet.Select(fleet.Buckets(queue.HistogramWait), nil, matchers...) + "[" + query.Duration(max(window, waitWindow)) + "])")
		return fmt.Sprintf("histogram_quantile(%g, sum by (%s) %s)", q, fleet.LabelBucket, buckets)
	}}
}
