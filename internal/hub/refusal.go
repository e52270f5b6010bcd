package hub

import (
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Reason is why the hub refused something.
type Reason int

// The reasons. Those up to Invalid count samples, events or labels, the others requests.
const (
	TooOld Reason = iota
	Future
	Duplicate
	SeriesLimit
	NodeSeriesLimit
	NodeEventLimit
	Delta
	BadLabel
	Foreign
	Invalid
	Malformed
	BodySize
	BodyTimeout
	Unauthorized
	Forbidden
	QueryLimit
	QueryTimeout
	Unavailable
	PeerLimit
	SlowReader
	reasonCount
)

// reasonLabels are label values that users alert on; docs/hub.md documents them.
var reasonLabels = [reasonCount]string{
	TooOld: "too_old", Future: "future", Duplicate: "duplicate", SeriesLimit: "series_limit",
	NodeSeriesLimit: "node_series_limit", NodeEventLimit: "node_event_limit", Delta: "delta", BadLabel: "label", Foreign: "foreign", Invalid: "invalid",
	Malformed: "malformed", BodySize: "body_size", BodyTimeout: "body_timeout", Unauthorized: "unauthorized", Forbidden: "forbidden",
	QueryLimit: "query_limit", QueryTimeout: "query_timeout", Unavailable: "unavailable",
	PeerLimit: "peer_limit", SlowReader: "slow_reader",
}

// Refusals counts refusals by reason. It is safe for concurrent use.
type Refusals struct {
	counts [reasonCount]atomic.Uint64
	desc   *prometheus.Desc
}

// NewRefusals returns counters for a hub without its own store. A Store has its own.
func NewRefusals() *Refusals {
	return &Refusals{desc: prometheus.NewDesc("gpumeter_hub_refused_total",
		"Samples, events, labels or requests that the hub refused, by reason.", []string{"reason"}, nil)}
}

// Add adds n and reports whether these are the first for that reason.
func (r *Refusals) Add(why Reason, n int) (first bool) {
	return n > 0 && r.counts[why].Add(uint64(n)) == uint64(n)
}

// Count returns the number of refusals for a reason.
func (r *Refusals) Count(why Reason) uint64 { return r.counts[why].Load() }

// Describe implements prometheus.Collector.
func (r *Refusals) Describe(ch chan<- *prometheus.Desc) { ch <- r.desc }

// Collect implements prometheus.Collector. Reasons with a zero count are included: an alert
// on a series that does not exist yet would miss its first increase.
func (r *Refusals) Collect(ch chan<- prometheus.Metric) {
	for why, label := range reasonLabels {
		ch <- prometheus.MustNewConstMetric(r.desc, prometheus.CounterValue, float64(r.counts[why].Load()), label)
	}
}

// failures is the registerer passed to the database. It intercepts the counter of failed
// writes to the out-of-order log, which the database exposes in no other way.
type failures struct {
	prometheus.Registerer

	wbl prometheus.Collector
}

const wblFailed = "prometheus_tsdb_out_of_order_wbl_writes_failed_total"

// Register implements prometheus.Registerer.
func (f *failures) Register(c prometheus.Collector) error {
	f.look(c)
	return f.Registerer.Register(c)
}

// MustRegister implements prometheus.Registerer.
func (f *failures) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		f.look(c)
	}
	f.Registerer.MustRegister(cs...)
}

func (f *failures) look(c prometheus.Collector) {
	ch := make(chan *prometheus.Desc, 64)
	go func() {
		c.Describe(ch)
		close(ch)
	}()
	for d := range ch {
		if strings.Contains(d.String(), `"`+wblFailed+`"`) {
			f.wbl = c
		}
	}
}

// count returns the number of failed writes.
func (f *failures) count() float64 {
	if f.wbl == nil {
		return 0
	}
	ch := make(chan prometheus.Metric, 1)
	f.wbl.Collect(ch)
	var m dto.Metric
	if err := (<-ch).Write(&m); err != nil {
		return 0
	}
	return m.GetCounter().GetValue()
}
