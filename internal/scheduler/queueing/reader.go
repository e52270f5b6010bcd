package queueing

import (
	"cmp"
	"crypto/sha256"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// reader reads the pages of one system.
type reader struct {
	Reading
	vendors device.Vendors
	samples map[string][]sample // by metric
}

// sample is one value of a page.
type sample struct {
	*promtext.Sample
	page *source
	id   string // of the series on any page
}

// source is a page.
type source struct {
	instance string
	number   int
}

// index sorts the samples of pages by metric. A series that a page has twice counts once.
func (r *reader) index(pages []Page) {
	r.samples = map[string][]sample{}
	for n, page := range pages {
		src := &source{instance: page.Instance, number: n}
		r.processes[src.instance] += 0
		seen := map[string]bool{}
		for i := range page.Text.Samples {
			s := &page.Text.Samples[i]
			if s.Name == began && s.Value > 0 && s.Value < most {
				r.processes[src.instance] = s.Value
			}
			if !families[s.Name] || s.Get(roleLabel) == follower {
				continue
			}
			id := identity(s)
			if seen[id] {
				continue
			}
			seen[id] = true
			r.samples[s.Name] = append(r.samples[s.Name], sample{s, src, id})
		}
	}
}

// identity returns what tells a series from others. Labels that its page leaves out in some versions do not.
func identity(s *promtext.Sample, without ...string) string {
	labels := make([]string, 0, len(s.Labels))
	for _, l := range s.Labels {
		if l.Value != "" && l.Name != roleLabel && !slices.Contains(without, l.Name) {
			labels = append(labels, l.Name+"\xff"+l.Value)
		}
	}
	slices.Sort(labels)
	id := s.Name + "\xfe" + strings.Join(labels, "\xfe")
	if len(id) > maxID { // it is remembered
		sum := sha256.Sum256([]byte(id))
		id = string(sum[:])
	}
	return id
}

// maxID bounds the identity of a series in bytes. Real ones have 100 to 200.
const maxID = 256

// gauges returns the series of a metric, those of several pages with the same labels once.
func (r *reader) gauges(names ...string) []sample {
	for _, name := range names {
		list := r.samples[name]
		if len(list) == 0 {
			continue
		}
		seen := make(map[string]int, len(list))
		return slices.DeleteFunc(slices.Clone(list), func(s sample) bool {
			first, ok := seen[s.id]
			if !ok {
				seen[s.id] = s.page.number
			}
			return ok && first != s.page.number
		})
	}
	return nil
}

// apply takes what a rule is about, and reports whether a page has it.
func (r *reader) apply(u *rule) bool {
	switch u.name {
	case Evicted, Attempts:
		return r.counters(u)
	case Wait, Attempt:
		return r.histograms(u)
	}
	list := r.gauges(u.from...)
	for _, s := range list {
		if !u.wants(r, s.Sample) {
			continue
		}
		p, ok := u.point(s.Sample)
		switch {
		case !ok, u.positive && s.Value == 0:
		case sensible(s.Value):
			r.Gauges[p] += s.Value / cmp.Or(u.per, 1)
		case u.name == Used || u.name == Pending || u.name == Jobs: // nobody says "no limit" there
			r.Refused++
		}
	}
	return len(list) > 0
}

func (r *reader) counters(u *rule) bool {
	for _, name := range u.from {
		list := r.samples[name]
		if len(list) == 0 {
			continue
		}
		for _, s := range list {
			p, ok := u.point(s.Sample)
			switch {
			case !ok || !u.wants(r, s.Sample):
			case sensible(s.Value):
				r.Counters = append(r.Counters, Counter{p, s.page.instance, s.id, s.Value})
			default:
				r.Refused++
			}
		}
		return true
	}
	return false
}

// maxBuckets bounds the buckets of a histogram. Those of schedulers have up to 30.
const maxBuckets = 64

func (r *reader) histograms(u *rule) bool {
	for _, name := range u.from {
		if len(r.samples[name+"_bucket"]) == 0 {
			continue
		}
		type part struct {
			page    *source
			labels  *promtext.Sample
			buckets map[float64]float64
			sum     float64
		}
		parts, order := map[string]*part{}, []string{}
		key := func(s sample) string {
			of := *s.Sample
			of.Name = name
			return strconv.Itoa(s.page.number) + "\xfe" + identity(&of, "le")
		}
		for _, s := range r.samples[name+"_bucket"] {
			k := key(s)
			if parts[k] == nil {
				parts[k] = &part{page: s.page, labels: s.Sample, buckets: map[float64]float64{}, sum: math.NaN()}
				order = append(order, k)
			}
			if le, err := strconv.ParseFloat(s.Get("le"), 64); err == nil && len(parts[k].buckets) <= maxBuckets {
				parts[k].buckets[le] = s.Value
			}
		}
		for _, s := range r.samples[name+"_sum"] {
			if h := parts[key(s)]; h != nil {
				h.sum = s.Value
			}
		}
		for _, k := range order {
			h := parts[k]
			p, ok := u.point(h.labels)
			if !ok {
				continue
			}
			b, ok := buckets(h.buckets, h.sum, cmp.Or(u.per, 1))
			if !ok {
				r.Refused++
				continue
			}
			_, id, _ := strings.Cut(k, "\xfe")
			r.Histograms = append(r.Histograms, Histogram{p, h.page.instance, id, b})
		}
		return true
	}
	return false
}

// buckets returns a histogram from its cumulative buckets. ok is false if some are missing or make no sense.
func buckets(cumulative map[float64]float64, sum, per float64) (b Buckets, ok bool) {
	if len(cumulative) > maxBuckets || !sensible(sum) {
		return b, false
	}
	bounds := make([]float64, 0, len(cumulative))
	for le := range cumulative {
		bounds = append(bounds, le)
	}
	slices.Sort(bounds)
	if n := len(bounds); n == 0 || !math.IsInf(bounds[n-1], 1) || math.IsNaN(bounds[0]) || math.IsInf(bounds[0], -1) {
		return b, false
	}
	last := 0.0
	for _, le := range bounds {
		v := cumulative[le]
		if !sensible(v) || v < last {
			return b, false
		}
		b.Counts = append(b.Counts, uint64(v)-uint64(last))
		if !math.IsInf(le, 1) {
			b.Bounds = append(b.Bounds, le/per)
		}
		last = v
	}
	b.Count, b.Sum = uint64(last), sum/per
	return b, true
}

// wants reports whether a rule is about a series.
func (u *rule) wants(r *reader, s *promtext.Sample) bool {
	for _, l := range u.only {
		if s.Get(l.Name) != l.Value {
			return false
		}
	}
	return (u.filled == "" || s.Get(u.filled) != "") && (u.resource == "" || r.vendors.CountsDevices(s.Get(u.resource)))
}

// point returns what a series is about. ok is false if that is nothing that the rule wants.
func (u *rule) point(s *promtext.Sample) (p Point, ok bool) {
	p = Point{Name: u.name, Word: u.set}
	if u.queue != "" {
		p.Queue = clean(s.Get(u.queue))
	}
	if u.model != "" {
		p.Model = clean(s.Get(u.model))
	}
	if u.word == "" {
		return p, true
	}
	word := s.Get(u.word)
	if u.words == nil {
		p.Word = snake(word)
		return p, p.Word != ""
	}
	p.Word = u.words[strings.ToLower(word)]
	return p, p.Word != ""
}

// maxText bounds a name or a word in bytes. Names of Kubernetes objects have up to 253, usual ones 20.
const maxText = 100

func clean(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "")
}

// snake returns a word of a system in lower case: PodsReadyTimeout becomes pods_ready_timeout.
func snake(text string) string {
	var b strings.Builder
	text = clean(text)
	lower := false // the letter before is a small one
	for _, c := range text {
		switch {
		case 'A' <= c && c <= 'Z':
			if lower {
				b.WriteByte('_')
			}
			b.WriteRune(c - 'A' + 'a')
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			b.WriteRune(c)
		default:
			b.WriteByte('_')
		}
		lower = 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
	}
	return strings.Trim(b.String(), "_")
}
