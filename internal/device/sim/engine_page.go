package sim

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"
)

// label is a label of a series.
type label struct{ name, value string }

// pageWriter writes a page like the Prometheus client for Python: labels by name, and numbers in its form.
type pageWriter struct {
	b       []byte
	labels  []label // of all series from here on
	created float64 // when the series began, in seconds since 1970; 0: the page does not say
	// sumFirst: the sum of a histogram is before its buckets, as where several processes share a page.
	sumFirst bool
	family   family
	made     []series // of the family
}

type family struct{ name, kind, help string }

// series is a series of which the page says when it began.
type series struct{ labels []label }

// begin begins a family. Counters have _total at the end of their names on the page.
func (w *pageWriter) begin(kind, name, help string) {
	w.end()
	w.family = family{name, kind, help}
	if kind == "counter" {
		name += "_total"
	}
	w.head(name, kind, help)
}

func (w *pageWriter) head(name, kind, help string) {
	w.b = append(w.b, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

// end ends a family with when its series began, which is a family of gauges on the page.
func (w *pageWriter) end() {
	if w.created > 0 && len(w.made) > 0 {
		name := w.family.name + "_created"
		w.head(name, "gauge", w.family.help)
		for _, s := range w.made {
			w.sample(name, s.labels, w.created)
		}
	}
	w.made = w.made[:0]
}

// with returns the labels of a series: those of all series, and more.
func (w *pageWriter) with(more ...string) []label {
	list := slices.Clone(w.labels)
	for i := 0; i+1 < len(more); i += 2 {
		list = append(list, label{more[i], more[i+1]})
	}
	slices.SortFunc(list, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return list
}

// put writes a value of the family, with more labels in pairs.
func (w *pageWriter) put(v float64, more ...string) {
	name, labels := w.family.name, w.with(more...)
	if w.family.kind == "counter" {
		name += "_total"
		w.made = append(w.made, series{labels})
	}
	w.sample(name, labels, v)
}

// gauge and counter write families with one series.
func (w *pageWriter) gauge(name, help string, v float64, more ...string) {
	w.begin("gauge", name, help)
	w.put(v, more...)
}

func (w *pageWriter) counter(name, help string, v float64, more ...string) {
	w.begin("counter", name, help)
	w.put(v, more...)
}

// histogram writes a family with one histogram, of as many observations as c has.
func (w *pageWriter) histogram(name, help string, h *histogram, c *counts, more ...string) {
	w.begin("histogram", name, help)
	labels := w.with(more...)
	w.made = append(w.made, series{labels})
	sum := func() { w.sample(name+"_sum", labels, h.sum(c)) }
	if w.sumFirst {
		sum()
	}
	at, _ := slices.BinarySearchFunc(labels, "le", func(l label, name string) int { return strings.Compare(l.name, name) })
	bucket := slices.Insert(slices.Clone(labels), at, label{"le", ""})
	for i, bound := range h.bounds {
		bucket[at].value = string(appendNumber(nil, bound))
		w.sample(name+"_bucket", bucket, float64(h.within(i, c)))
	}
	bucket[at].value = "+Inf"
	n := float64(c.total())
	w.sample(name+"_bucket", bucket, n)
	w.sample(name+"_count", labels, n)
	if !w.sumFirst {
		sum()
	}
}

func (w *pageWriter) sample(name string, labels []label, v float64) {
	w.b = append(w.b, name...)
	separator := byte('{')
	for _, l := range labels { // no value has characters to escape
		w.b = append(append(w.b, separator), l.name...)
		separator = ','
		w.b = append(w.b, `="`...)
		w.b = append(w.b, l.value...)
		w.b = append(w.b, '"')
	}
	if len(labels) > 0 {
		w.b = append(w.b, '}')
	}
	w.b = append(w.b, ' ')
	w.b = append(appendNumber(w.b, v), '\n')
}

// appendNumber writes a number that is not negative like the Prometheus client for Python: in the shortest
// form that has a point or an exponent, and with an exponent from a million on.
func appendNumber(b []byte, v float64) []byte {
	if v != 0 && (v < 1e-4 || v >= 1e16) {
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	}
	text := strconv.AppendFloat(make([]byte, 0, 32), v, 'f', -1, 64)
	dot := bytes.IndexByte(text, '.')
	if dot < 0 {
		dot = len(text)
		text = append(text, '.', '0')
	}
	if dot <= 6 {
		return append(b, text...)
	}
	digits := slices.Concat(text[:dot], text[dot+1:])
	digits = slices.Insert(digits, 1, '.')
	b = append(b, bytes.TrimRight(digits, "0.")...)
	return strconv.AppendInt(append(b, "e+0"...), int64(dot-1), 10)
}

// python writes the families of a process that runs Python.
func (w *pageWriter) python(up, cpu, memory float64, start time.Time) {
	labels, created := w.labels, w.created
	w.labels, w.created = nil, 0
	w.begin("counter", "python_gc_objects_collected", "Objects that the garbage collector freed")
	for i, n := range []float64{9120, 1745, 3811} {
		w.put(n+float64(int(up/40)), "generation", strconv.Itoa(i))
	}
	w.gauge("python_info", "Version of Python", 1, "implementation", "CPython", "major", "3", "minor", "12", "patchlevel", "11", "version", "3.12.11")
	w.gauge("process_virtual_memory_bytes", "Virtual memory in bytes", 6*memory)
	w.gauge("process_resident_memory_bytes", "Resident memory in bytes", memory)
	w.gauge("process_start_time_seconds", "Start of the process, in seconds since 1970", unix(start))
	w.counter("process_cpu_seconds", "Processor time in seconds", float64(int(cpu*100))/100)
	w.gauge("process_open_fds", "Open file descriptors", 74)
	w.gauge("process_max_fds", "Most open file descriptors", 1048576)
	w.end()
	w.labels, w.created = labels, created
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

// oneTwoFive returns the bounds 1, 2, 5, 10 and so on up to a limit.
func oneTwoFive(limit int) (bounds []float64) {
	for decade := 1; ; decade *= 10 {
		for _, digit := range []int{1, 2, 5} {
			if digit*decade > limit {
				return bounds
			}
			bounds = append(bounds, float64(digit*decade))
		}
	}
}
