// Package query reads time series with PromQL from the hub's own store or from any store
// with Prometheus' HTTP API: Prometheus, Mimir, Thanos, VictoriaMetrics.
//
// Store is the interface; Client implements it over HTTP. Results are plain values, so code
// that computes with them, such as internal/cost, does not depend on where they come from.
// The package only reads: it neither writes samples nor parses PromQL.
package query

import (
	"context"
	"slices"
	"time"
)

// Store evaluates PromQL.
type Store interface {
	// Instant evaluates expr at one time. The order of the result is unspecified.
	Instant(ctx context.Context, expr string, at time.Time) ([]Sample, error)
	// Range evaluates expr at start, start+step, ... up to end.
	Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]Series, error)
	// Raw returns the samples of a plain selector as they were written, in (from, to].
	Raw(ctx context.Context, selector string, from, to time.Time) ([]Series, error)
}

// Labels is the label set of one series, including __name__. Samples may share a set, so it
// must not be modified.
type Labels map[string]string

// Sample is the value of one series at one time.
type Sample struct {
	Labels Labels
	Time   time.Time // evaluation time
	Value  float64
}

// Series is one series with its points in order of time.
type Series struct {
	Labels Labels
	Points []Point
}

// Point is one value at a time.
type Point struct {
	Time  time.Time
	Value float64
}

// Key returns the sorted labels as one string that is unique per label set of valid UTF-8.
func (l Labels) Key() string {
	names, size := make([]string, 0, 24), 0
	for name, value := range l {
		names = append(names, name)
		size += len(name) + len(value) + 2
	}
	slices.Sort(names)
	key := make([]byte, 0, size)
	for _, name := range names {
		key = append(key, name...)
		key = append(key, 0xff) // never part of UTF-8
		key = append(key, l[name]...)
		key = append(key, 0xff)
	}
	return string(key)
}
