package discover

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// apart reports whether two sockets of a process are known to show engines of their own.
func (x *socket) apart(other *socket) bool { return x.unlike[other.key] }

// alike returns the found sockets whose process shows the same families on each, in order of ports.
func (s *scanner) alike() [][]*socket {
	type page struct {
		pid         uint32
		format      inference.Format
		fingerprint uint64
	}
	groups := map[page][]*socket{}
	for _, x := range s.sockets {
		if x.verdict == found && s.lives(x.key) {
			p := page{x.pid, x.format, x.fingerprint}
			groups[p] = append(groups[p], x)
		}
	}
	out := make([][]*socket, 0, len(groups))
	for _, group := range groups {
		slices.SortFunc(group, byPort)
		out = append(out, group)
	}
	return out
}

// distinct returns those of a group that are engines of their own: the first, and those that are apart from
// all others.
func distinct(group []*socket) []*socket {
	var out []*socket
	for _, x := range group {
		if !slices.ContainsFunc(out, func(other *socket) bool { return !x.apart(other) }) {
			out = append(out, x)
		}
	}
	return out
}

// telling bounds the comparison of pages in a scan: what hangs must not keep engines from being found.
const telling = 10 * time.Second

// tellApart compares what sockets of one process have counted: most show one page on several ports, but each
// may have a data-parallel rank of its own. One page has all that it had at the scan before, on whatever port,
// even if it is some seconds old.
func (s *scanner) tellApart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, telling)
	defer cancel()
	for _, group := range s.alike() {
		group = group[:min(len(group), maxPages)]
		if len(distinct(group)) == len(group) || group[0].format == inference.Ollama {
			continue
		}
		now := make([]map[string]float64, len(group))
		for i, x := range group {
			now[i] = s.counted(ctx, x)
		}
		if ctx.Err() != nil {
			return // the next scan goes on with what the last one knew
		}
		for i, x := range group {
			for j, other := range group[:i] {
				if !ahead(x.counts, now[i], now[j]) && !ahead(other.counts, now[j], now[i]) {
					continue
				}
				if x.unlike == nil {
					x.unlike = map[key]bool{}
				}
				x.unlike[other.key] = true
			}
		}
		for i, x := range group {
			x.counts = now[i]
		}
	}
}

// ahead reports whether a page had counted more of something before than another has now, and still has: a
// worker that ends or begins anew is gone from both.
func ahead(before, now, other map[string]float64) bool {
	for name, v := range before {
		if less, ok := other[name]; ok && less < v && v <= now[name] {
			return true
		}
	}
	return false
}

// counted returns what the page of a socket counts, none if it cannot be read.
func (s *scanner) counted(ctx context.Context, x *socket) (out map[string]float64) {
	u := x.endpoint.url(x.scheme)
	u.Path = x.path
	b, err := (&inference.Target{URL: u, Client: x.client}).Page(ctx)
	if err != nil {
		return nil
	}
	if s.slots.Use(ctx, func() { out = counters(b) }) != nil {
		return nil // the context has ended
	}
	return out
}

// maxCounters bounds what is remembered of a page to compare it with others.
const maxCounters, maxCounter = 2000, 1024 // counters, and bytes of the name and the labels of each

// counters returns the counters of a page, and those in its histograms, by name and labels: the first of them, which
// are the same on each page of an engine.
func counters(page []byte) (out map[string]float64) {
	defer func() {
		if recover() != nil { // who reads the page next will say so
			out = nil
		}
	}()
	out = map[string]float64{}
	for _, s := range promtext.Scan(page).Samples {
		if !slices.ContainsFunc([]string{"_total", "_count", "_bucket"}, func(suffix string) bool { return strings.HasSuffix(s.Name, suffix) }) {
			continue
		}
		var b strings.Builder
		b.WriteString(s.Name)
		for _, l := range s.Labels {
			b.WriteString("\xff" + l.Name + "\xff" + l.Value)
		}
		if b.Len() > maxCounter {
			continue
		}
		if out[b.String()] = s.Value; len(out) == maxCounters {
			break
		}
	}
	return out
}
