package ledger

import "github.com/gpumeter/gpumeter/internal/tracer"

// Distribution is the sum of histograms of processes, which come and go. Its buckets are those of
// tracer.Histogram: counts[i] belongs to index low+i.
type Distribution struct {
	Count  uint64
	Sum    float64
	Low    int
	Counts []uint64
}

// add adds the growth from before to now. A count that fell was reset.
func (d *Distribution) add(now, before tracer.Histogram) {
	if now.Count < before.Count {
		before = tracer.Histogram{}
	}
	if delta := now.Sum - before.Sum; delta > 0 {
		d.Sum += delta
	}
	if len(now.Buckets) == 0 {
		d.Count += now.Count - before.Count
		return
	}
	// The kernel counts while we read: the buckets are authoritative, and the count must be
	// their sum.
	for i, n := range now.Buckets {
		index := now.Offset + i
		if j := index - before.Offset; j >= 0 && j < len(before.Buckets) {
			n -= min(n, before.Buckets[j])
		}
		if n > 0 {
			*d.at(index) += n
			d.Count += n
		}
	}
}

// Merge adds o.
func (d *Distribution) Merge(o *Distribution) {
	d.Count += o.Count
	d.Sum += o.Sum
	for i, n := range o.Counts {
		if n > 0 {
			*d.at(o.Low + i) += n
		}
	}
}

// at returns the count of an index.
func (d *Distribution) at(index int) *uint64 {
	switch {
	case len(d.Counts) == 0:
		d.Low, d.Counts = index, make([]uint64, 1)
	case index < d.Low:
		d.Counts = append(make([]uint64, d.Low-index), d.Counts...)
		d.Low = index
	case index >= d.Low+len(d.Counts):
		d.Counts = append(d.Counts, make([]uint64, index-d.Low-len(d.Counts)+1)...)
	}
	return &d.Counts[index-d.Low]
}
