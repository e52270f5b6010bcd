package cost

import (
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// books has the book of a price file. A nil *books has a new one for every bill.
type books struct {
	mu      sync.Mutex
	current *book
}

// take returns the book. Workloads end, and a book never loses rows: it is replaced when it is stale.
func (b *books) take() *book {
	if b == nil {
		return newBook()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current == nil || b.current.stale() {
		b.current = newBook()
	}
	return b.current
}

// book remembers the rows of bills: their order, and which of them have the same prices. A further bill
// of the same rows need not sort them or look at labels, which takes longer than to add them up. It is
// safe for concurrent use.
type book struct {
	mu       sync.Mutex
	places   map[fleet.RowKey]int // in rows
	numbered []int                // places by number; see fleet.DayRow
	rows     []listed
	order    []int // places, in order of keys; replaced, never changed
	profiles map[string]int
	most     int // rows of the largest bill
}

// listed is a row of a book.
type listed struct {
	key     fleet.RowKey
	labels  query.Labels
	profile int // rows of the same profile have the same prices at any time
	facts
}

func newBook() *book {
	return &book{places: map[fleet.RowKey]int{}, profiles: map[string]int{}}
}

// stale reports whether the book has many rows and even the largest bill had less than half of them.
func (b *book) stale() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.rows) > 10_000+2*b.most
}

func (b *book) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.rows)
}

// find returns the place of a row and its profile, and adds the row if the book lacks it.
func (b *book) find(r *fleet.DayRow, p *Prices) (place, profile int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := int(r.Number); n > 0 {
		b.numbered = extend(b.numbered, n)
		if place := b.numbered[n]; place < len(b.rows) && b.rows[place].key == r.Key {
			return place, b.rows[place].profile
		}
	}
	place, ok := b.places[r.Key]
	if !ok {
		place = len(b.rows)
		f := factsOf(r.Labels)
		b.rows = append(b.rows, listed{r.Key, r.Labels, b.profile(f.kind, r.Labels, p), f})
		b.places[r.Key] = place
	}
	if r.Number > 0 {
		b.numbered[r.Number] = place
	}
	return place, b.rows[place].profile
}

// profile returns the number of the profile of a row: all that its prices depend on.
func (b *book) profile(kind string, labels query.Labels, p *Prices) int {
	var text strings.Builder
	if kind == fleet.KindUnallocated {
		text.WriteByte('-')
	}
	for _, name := range p.matched {
		text.WriteByte(0xff) // never part of UTF-8
		text.WriteString(labels[name])
	}
	n, ok := b.profiles[text.String()]
	if !ok {
		n = len(b.profiles)
		b.profiles[text.String()] = n
	}
	return n
}

// sorted returns all rows, and their places in order of keys. billed is the number of rows of a bill.
func (b *book) sorted(billed int) (rows []listed, order []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = max(b.most, billed)
	if len(b.order) == len(b.rows) {
		return b.rows, b.order
	}
	added := make([]ranked, 0, len(b.rows)-len(b.order))
	for place := len(b.order); place < len(b.rows); place++ {
		added = append(added, ranked{key: b.rows[place].key.Value(), place: place})
	}
	sortFrom(added, 0)
	old := b.order
	b.order = make([]int, 0, len(b.rows))
	for _, x := range added {
		n := sort.Search(len(old), func(i int) bool { return b.rows[old[i]].key.Value() > x.key })
		b.order = append(append(b.order, old[:n]...), x.place)
		old = old[n:]
	}
	b.order = append(b.order, old...)
	return b.rows, b.order
}

// matchedLabels returns the labels that rules look at.
func matchedLabels(lists ...[]rule) []string {
	var out []string
	for _, list := range lists {
		for _, r := range list {
			for _, m := range r.match {
				out = append(out, m.label)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
