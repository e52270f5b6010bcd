// Package query asks a store of time series in PromQL: the hub's own, or any that speaks
// Prometheus' HTTP API. Its values are plain, so that what is computed of them does not
// know where they come from.
package query

import (
	"context"
	"slices"
	"time"
)

// Store answers questions in PromQL.
type Store interface {
	// Instant evaluates expr at a moment. The result is in no order.
	Instant(ctx context.Context, expr string, at time.Time) ([]Sample, error)
	// Range evaluates expr at start, start+step, ... up to end.
	Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]Series, error)
	// Raw returns the samples of a plain selector as they were written, in (from, to].
	Raw(ctx context.Context, selector string, from, to time.Time) ([]Series, error)
}

// Labels are those of one series, __name__ among them. Samples may share them: nobody
// changes those of an answer.
type Labels map[string]string

// Sample is one series at one moment.
type Sample struct {
	Labels Labels
	Time   time.Time // of the evaluation
	Value  float64
}

// Series are the points of one series, in order of time.
type Series struct {
	Labels Labels
	Points []Point
}

// Point is one value.
type Point struct {
	Time  time.Time
	Value float64
}

// Key is the labels in order, as one string that tells any two sets of valid text apart.
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
		key = append(key, 0xff) // in no UTF-8
		key = append(key, l[name]...)
		key = append(key, 0xff)
	}
	return string(key)
}
