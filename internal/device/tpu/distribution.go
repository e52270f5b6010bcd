//go:build linux

package tpu

import (
	"errors"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumeter/gpumeter/internal/device"
)

// distribution is a Distribution message of the service, in the unit of its metric.
type distribution struct {
	count  int64
	mean   float64
	bounds []float64 // between the buckets, ascending; nil: unknown
	counts []int64   // starting below the first bound; trailing zeros may be omitted
}

func (d *distribution) parse(b []byte) error {
	return eachField(b, func(f field) error {
		switch f.id {
		case 1:
			d.count, _ = f.integer()
		case 2:
			d.mean, _ = f.double()
		case 6:
			m, _ := f.message()
			return d.parseBuckets(m)
		case 7: // packed or unpacked
			if v, ok := f.integer(); ok {
				return d.addCount(v)
			}
			for m, _ := f.message(); len(m) > 0; {
				v, n := protowire.ConsumeVarint(m)
				if n < 0 {
					return protowire.ParseError(n)
				}
				m = m[n:]
				if err := d.addCount(int64(v)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (d *distribution) addCount(v int64) error {
	if len(d.counts) > maxBuckets+1 {
		return errTooMany
	}
	d.counts = append(d.counts, v)
	return nil
}

// parseBuckets parses BucketOptions: regular, exponential, explicit or linear.
func (d *distribution) parseBuckets(b []byte) error {
	return eachField(b, func(f field) error {
		m, ok := f.message()
		if !ok {
			return nil
		}
		var err error
		switch f.id {
		case 1:
			d.bounds, err = regularBounds(m)
		case 2:
			var n int64
			var v [2]float64
			n, v, err = bucketNumbers(m)
			d.bounds = exponentialBounds(n, v[0], v[1])
		case 3:
			d.bounds, err = explicitBounds(m)
		case 4:
			var n int64
			var v [2]float64
			n, v, err = bucketNumbers(m)
			d.bounds = linearBounds(n, v[0], v[1])
		}
		return err
	})
}

// bucketNumbers parses the count and the two numbers that both Exponential (growth factor,
// scale) and Linear (width, offset) have.
func bucketNumbers(b []byte) (n int64, v [2]float64, err error) {
	err = eachField(b, func(f field) error {
		switch f.id {
		case 1:
			n, _ = f.integer()
		case 2:
			v[0], _ = f.double()
		case 3:
			v[1], _ = f.double()
		}
		return nil
	})
	return n, v, err
}

// exponentialBounds returns scale·growth^i. n finite buckets lie between n+1 bounds; values
// below the first and above the last bound have one bucket each.
func exponentialBounds(n int64, growth, scale float64) []float64 {
	if n < 0 || n >= maxBuckets {
		return nil
	}
	bounds := make([]float64, n+1)
	for i := range bounds {
		bounds[i] = scale * math.Pow(growth, float64(i))
	}
	return bounds
}

func linearBounds(n int64, width, offset float64) []float64 {
	if n < 0 || n >= maxBuckets {
		return nil
	}
	bounds := make([]float64, n+1)
	for i := range bounds {
		bounds[i] = offset + width*float64(i)
	}
	return bounds
}

func explicitBounds(b []byte) ([]float64, error) {
	bounds := []float64{}
	add := func(v float64) error {
		if len(bounds) == maxBuckets {
			return errTooMany
		}
		bounds = append(bounds, v)
		return nil
	}
	err := eachField(b, func(f field) error {
		if f.id != 1 {
			return nil
		}
		if v, ok := f.double(); ok {
			return add(v)
		}
		for m, _ := f.message(); len(m) > 0; {
			v, n := protowire.ConsumeFixed64(m)
			if n < 0 {
				return protowire.ParseError(n)
			}
			m = m[n:]
			if err := add(math.Float64frombits(v)); err != nil {
				return err
			}
		}
		return nil
	})
	return bounds, err
}

// regularBounds parses buckets that are given one by one as width and offset, or all at
// once if there is one such pair. Buckets with gaps between them have no common bounds.
func regularBounds(b []byte) ([]float64, error) {
	var n int64
	var pairs [][2]float64
	err := eachField(b, func(f field) error {
		if f.id == 1 {
			n, _ = f.integer()
		}
		m, ok := f.message()
		if f.id != 2 || !ok {
			return nil
		}
		if len(pairs) == maxBuckets {
			return errTooMany
		}
		var pair [2]float64
		err := eachField(m, func(f field) error {
			if f.id == 1 || f.id == 2 {
				pair[f.id-1], _ = f.double()
			}
			return nil
		})
		pairs = append(pairs, pair)
		return err
	})
	switch {
	case err != nil || len(pairs) == 0:
		return nil, err
	case len(pairs) == 1:
		return linearBounds(max(n, 1), pairs[0][0], pairs[0][1]), nil
	}
	bounds := []float64{pairs[0][1]}
	for _, p := range pairs {
		if math.Abs(p[1]-bounds[len(bounds)-1]) > 1e-9*math.Abs(p[1]) {
			return nil, nil
		}
		bounds = append(bounds, p[1]+p[0])
	}
	return bounds, nil
}

var errNonsense = errors.New("implausible values")

// latency returns d in seconds. unit is that of the metric in seconds. Buckets that
// contradict the count are dropped; an impossible count or mean is an error.
func (d *distribution) latency(operation, detail string, unit float64) (device.Latency, error) {
	l := device.Latency{Operation: operation, Detail: detail}
	if d.count < 0 || d.count > 0 && !(d.mean >= 0 && d.mean <= math.MaxInt64) {
		return l, errNonsense
	}
	l.Count = uint64(d.count)
	if d.count > 0 {
		l.Seconds = d.mean * float64(d.count) * unit
	}
	l.Bounds, l.Counts = d.buckets(unit)
	return l, nil
}

func (d *distribution) buckets(unit float64) (bounds []float64, counts []uint64) {
	if d.bounds == nil || len(d.counts) > len(d.bounds)+1 {
		return nil, nil
	}
	for i, b := range d.bounds {
		if math.IsNaN(b) || math.IsInf(b, 0) || i > 0 && b <= d.bounds[i-1] {
			return nil, nil
		}
		bounds = append(bounds, b*unit)
	}
	counts = make([]uint64, len(bounds)+1)
	var sum int64
	for i, n := range d.counts {
		if n < 0 || n > d.count-sum {
			return nil, nil
		}
		sum += n
		counts[i] = uint64(n)
	}
	if sum != d.count {
		return nil, nil
	}
	return bounds, counts
}

// merged adds l to the latencies of a chip. Two devices of one chip share one histogram; if
// their buckets differ, the buckets are dropped.
func merged(list []device.Latency, l device.Latency) []device.Latency {
	for i := range list {
		o := &list[i]
		if o.Operation != l.Operation || o.Detail != l.Detail {
			continue
		}
		o.Count += l.Count
		o.Seconds += l.Seconds
		if !slices.Equal(o.Bounds, l.Bounds) || len(o.Counts) != len(l.Counts) {
			o.Bounds, o.Counts = nil, nil
			return list
		}
		for k, n := range l.Counts {
			o.Counts[k] += n
		}
		return list
	}
	return append(list, l)
}
