package inference

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// page has the families of a page by canonical name. See canonical.
type page struct {
	families map[string]*family
	declared map[string]bool // names in # TYPE lines, of families without a sample, too
	rejected int             // samples of histograms that do not make sense
}

// family has the samples of one metric.
type family struct {
	name    string
	samples []*promtext.Sample

	buckets, sums, counts []*promtext.Sample // of a histogram
	whole                 []series           // those with buckets, once they were asked for
	read                  bool               // they were
	mapped                bool               // a rule has used it
}

// series is one series of a family.
type series struct {
	family    string
	labels    []promtext.Label
	value     float64
	histogram *Buckets
	id        string // see key
}

// Buckets are the values of a histogram.
type Buckets struct {
	Bounds []float64 // finite upper bounds, ascending
	Counts []uint64  // one more than Bounds; not cumulative
	Count  uint64
	Sum    float64 // NaN if it is unknown
}

// canonical returns the name under which the table knows a family. The same family of vLLM is vllm:x where
// it is scraped directly, vllm_x behind Prometheus 3 or a proxy, and ray_vllm:x or ray_vllm_x in Ray.
func canonical(name string) string {
	if i := strings.IndexByte(name, ':'); i >= 0 {
		name = name[:i] + "_" + name[i+1:]
	}
	for _, prefix := range []string{"ray_vllm_", "ray_sglang_", "kserve_vllm_"} {
		if strings.HasPrefix(name, prefix) {
			_, name, _ = strings.Cut(name, "_")
		}
	}
	return name
}

// newPage groups samples by family. Which sample belongs to a histogram follows from the buckets, not
// from # TYPE lines: those lie, or are absent.
func newPage(text *promtext.Text) *page {
	p := &page{families: map[string]*family{}, declared: make(map[string]bool, len(text.Types))}
	for name := range text.Types {
		p.declared[canonical(name)] = true
	}
	names, known := make([]string, len(text.Samples)), map[string]bool{}
	var last string // of the samples before, which are of one family as a rule
	var f *family
	for i := range text.Samples {
		s := &text.Samples[i]
		if i == 0 || s.Name != text.Samples[i-1].Name {
			last, f = canonical(s.Name), nil
			known[last] = true
		}
		names[i] = last
		if base, ok := strings.CutSuffix(last, "_bucket"); ok && s.Get("le") != "" {
			if f == nil {
				f = p.family(base)
			}
			f.buckets = append(f.buckets, s)
			names[i] = ""
		}
	}
	for i, name := range names {
		if name == "" {
			continue
		}
		s := &text.Samples[i]
		if base, ok := strings.CutSuffix(name, "_created"); ok && (known[base] || known[base+"_total"] || known[base+"_count"]) {
			continue // when the series began
		}
		if base, ok := strings.CutSuffix(name, "_sum"); ok && p.isHistogram(base) {
			p.families[base].sums = append(p.families[base].sums, s)
			continue
		}
		if base, ok := strings.CutSuffix(name, "_count"); ok && p.isHistogram(base) {
			p.families[base].counts = append(p.families[base].counts, s)
			continue
		}
		f := p.family(name)
		f.samples = append(f.samples, s)
	}
	return p
}

func (p *page) family(name string) *family {
	f := p.families[name]
	if f == nil {
		f = &family{name: name}
		p.families[name] = f
	}
	return f
}

func (p *page) isHistogram(name string) bool {
	f := p.families[name]
	return f != nil && len(f.buckets) > 0
}

// find returns the first of several families that the page has. Counters have _total at the end of their
// names, or not.
func (p *page) find(names ...string) *family {
	for _, name := range names {
		for _, suffix := range []string{"", "_total"} {
			if f := p.families[name+suffix]; f != nil {
				return f
			}
		}
	}
	return nil
}

// values returns the series of a family with one value each.
func (f *family) values() []series {
	out := make([]series, len(f.samples))
	for i, s := range f.samples {
		out[i] = series{family: f.name, labels: s.Labels, value: s.Value}
	}
	return out
}

// histograms returns the series of a family with buckets. Several rules may ask for them.
func (p *page) histograms(f *family) []series {
	if !f.read {
		f.read = true
		var rejected int
		f.whole, rejected = f.histograms()
		p.rejected += rejected
	}
	return f.whole
}

// histograms returns the series of a family with buckets. One that is not whole is rejected, alone.
func (f *family) histograms() (out []series, rejected int) {
	groups := map[string]*parts{}
	var order []string
	group := func(s *promtext.Sample) *parts {
		key := keyWithout(s.Labels, "le")
		g := groups[key]
		if g == nil {
			g = &parts{labels: s.Labels, sum: math.NaN()}
			groups[key] = g
			order = append(order, key)
		}
		g.samples++
		return g
	}
	var g *parts
	for i, s := range f.buckets {
		if i == 0 || !sameBut(s.Labels, f.buckets[i-1].Labels, "le") {
			g = group(s)
		} else {
			g.samples++
		}
		bound, err := strconv.ParseFloat(s.Get("le"), 64)
		if err != nil || math.IsNaN(bound) || math.IsInf(bound, -1) {
			g.bad = true
		}
		g.buckets = append(g.buckets, bucket{bound, s.Value})
	}
	for _, s := range f.sums {
		group(s).sum = s.Value
	}
	rejected += len(f.samples) // a bucket has another name
	for _, s := range f.counts {
		g := group(s)
		g.count, g.counted = s.Value, true
	}
	for _, key := range order {
		g := groups[key]
		h, err := g.histogram()
		if err != nil {
			rejected += g.samples
			continue
		}
		out = append(out, series{family: f.name, labels: g.labels, histogram: h})
	}
	return out, rejected
}

// parts are the samples of one histogram.
type parts struct {
	labels  []promtext.Label
	buckets []bucket
	sum     float64
	count   float64
	counted bool
	bad     bool
	samples int
}

type bucket struct{ bound, count float64 }

var errHistogram = errors.New("the histogram is not whole")

func (g *parts) histogram() (*Buckets, error) {
	slices.SortStableFunc(g.buckets, func(a, b bucket) int { return cmp.Compare(a.bound, b.bound) })
	n := len(g.buckets) - 1
	if g.bad || n < 0 || g.buckets[n].bound < maxBound { // without +Inf it was cut off
		return nil, errHistogram
	}
	if g.counted && g.count != g.buckets[n].count {
		return nil, errHistogram
	}
	h := &Buckets{Bounds: make([]float64, 0, n), Counts: make([]uint64, 0, n+1), Sum: g.sum}
	if math.IsInf(g.sum, 0) { // one value without bounds, or without a number, spoils the sum, and the buckets stay right
		h.Sum = math.NaN()
	}
	before := 0.0
	for i, b := range g.buckets {
		if !(b.count >= before && b.count < 1<<63) || i > 0 && b.bound == g.buckets[i-1].bound {
			return nil, errHistogram
		}
		if i < n {
			h.Bounds = append(h.Bounds, b.bound)
		}
		h.Counts = append(h.Counts, uint64(b.count)-uint64(before))
		before = b.count
	}
	h.Count = uint64(before)
	return h.thin(), nil
}

// maxBounds is above all bounds that people chose: TGI has a bucket for each batch size up to 1024.
const maxBounds = 128

// minBounds is how many tell quantiles apart.
const minBounds = 8

// thin returns a histogram with fewer buckets: of too many bounds only powers of two stay, or every second, third or so
// where those would be too few or too many.
func (b *Buckets) thin() *Buckets {
	if len(b.Bounds) <= maxBounds {
		return b
	}
	last := len(b.Bounds) - 1
	stays := func(i int) bool {
		fraction, _ := math.Frexp(b.Bounds[i])
		return fraction == 0.5
	}
	powers := 0
	for i := range b.Bounds {
		if stays(i) {
			powers++
		}
	}
	if powers < minBounds || powers > maxBounds {
		step := last/maxBounds + 1
		stays = func(i int) bool { return (last-i)%step == 0 }
	}
	out := &Buckets{Count: b.Count, Sum: b.Sum}
	var n uint64
	for i, bound := range b.Bounds {
		n += b.Counts[i]
		if stays(i) {
			out.Bounds, out.Counts, n = append(out.Bounds, bound), append(out.Counts, n), 0
		}
	}
	out.Counts = append(out.Counts, n+b.Counts[last+1])
	return out
}

// over returns a histogram in a unit that is so many times as large. Bounds may be shared, nobody changes them.
func (b *Buckets) over(parts float64) *Buckets {
	out := &Buckets{Bounds: b.Bounds, Counts: slices.Clone(b.Counts), Count: b.Count, Sum: b.Sum / parts}
	if parts == 1 {
		return out
	}
	out.Bounds = slices.Clone(b.Bounds)
	for i := range out.Bounds {
		out.Bounds[i] /= parts
	}
	return out
}

// plus adds a histogram with the same bounds, and returns false if its bounds differ.
func (b *Buckets) plus(other *Buckets) bool {
	if !slices.Equal(b.Bounds, other.Bounds) {
		return false
	}
	for i, n := range other.Counts {
		b.Counts[i] += n
	}
	b.Count += other.Count
	b.Sum += other.Sum
	return true
}

// keyWithout returns a text that differs for different labels, in any order, without some of them.
func keyWithout(labels []promtext.Label, without ...string) string {
	list := make([]string, 0, len(labels))
	for _, l := range labels {
		if !slices.Contains(without, l.Name) {
			list = append(list, l.Name+"\xff"+l.Value)
		}
	}
	slices.Sort(list)
	return strings.Join(list, "\xfe")
}

// sameBut reports whether two samples have the same labels in the same order, but for the value of one of them.
func sameBut(a, b []promtext.Label, but string) bool {
	return slices.EqualFunc(a, b, func(a, b promtext.Label) bool { return a.Name == b.Name && (a.Name == but || a.Value == b.Value) })
}

func label(labels []promtext.Label, name string) (string, bool) {
	for i := range labels {
		if labels[i].Name == name {
			return labels[i].Value, true
		}
	}
	return "", false
}
