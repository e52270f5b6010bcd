package pageexporter

import (
	"sync/atomic"

	dto "github.com/prometheus/client_model/go"
)

// reason is why something is not on the page.
type reason int

const (
	batchLimit reason = iota
	deltaTemporality
	exponentialHistogram
	helpConflict
	invalidPoint
	invalidLabel
	nameConflict
	seriesConflict
	reasonCount
)

// reasonLabels are label values that users alert on; README.md documents them.
var reasonLabels = [reasonCount]string{
	batchLimit:           "batch_limit",
	deltaTemporality:     "delta",
	exponentialHistogram: "exponential_histogram",
	helpConflict:         "help_conflict",
	invalidPoint:         "invalid",
	invalidLabel:         "label",
	nameConflict:         "name_conflict",
	seriesConflict:       "series_conflict",
}

const (
	droppedName = "gpumeter_page_dropped_total"
	droppedHelp = "Data that the page exporter received and does not show, by reason: points, except for batch_limit (batches), help_conflict (descriptions) and label (labels)."
)

// dropped counts what is not on the page. It is safe for concurrent use.
type dropped struct {
	counts [reasonCount]atomic.Uint64
	// first, if not nil, is called with the first name for each reason.
	first func(r reason, name string)
}

func (d *dropped) add(r reason, n int, name string) {
	if n > 0 && d.counts[r].Add(uint64(n)) == uint64(n) && d.first != nil {
		d.first(r, name)
	}
}

// family includes reasons with a zero count: an alert on a series that does not exist yet
// would miss its first increase.
func (d *dropped) family() *dto.MetricFamily {
	f := &dto.MetricFamily{
		Name: new(droppedName),
		Help: new(droppedHelp),
		Type: dto.MetricType_COUNTER.Enum(),
	}
	for r, label := range reasonLabels {
		f.Metric = append(f.Metric, &dto.Metric{
			Label:   []*dto.LabelPair{{Name: new("reason"), Value: new(label)}},
			Counter: &dto.Counter{Value: new(float64(d.counts[r].Load()))},
		})
	}
	return f
}
