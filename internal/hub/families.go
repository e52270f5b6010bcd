package hub

import "sync"

// Family is what a metric is, apart from its samples.
type Family struct {
	Type string `json:"type"` // as Prometheus calls it: gauge, counter, histogram, summary
	Help string `json:"help"`
	Unit string `json:"unit"`
}

// maxFamilies bounds how many names are described.
const maxFamilies = 10_000

// families are the descriptions of metrics, by name. They are not on disk: each request
// brings them again.
type families struct {
	mu  sync.RWMutex
	all map[string]Family
}

// Describe keeps what the metric of a name is.
func (s *Store) Describe(name string, f Family) {
	m := &s.families
	m.mu.RLock()
	old, ok := m.all[name]
	m.mu.RUnlock()
	if ok && old == f {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]Family{}
	}
	if ok || len(m.all) < maxFamilies {
		m.all[name] = f
	}
}

// Families returns what the metrics are, by name: of one if name is not empty.
func (s *Store) Families(name string) map[string]Family {
	m := &s.families
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := map[string]Family{}
	for n, f := range m.all {
		if name == "" || n == name {
			out[n] = f
		}
	}
	return out
}
