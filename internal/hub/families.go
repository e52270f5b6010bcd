package hub

import "sync"

// Family is the metadata of a metric.
type Family struct {
	Type string `json:"type"` // Prometheus type: gauge, counter, histogram, summary
	Help string `json:"help"`
	Unit string `json:"unit"`
}

// maxFamilies bounds the number of metrics with metadata.
const maxFamilies = 10_000

// families holds metadata by metric name. It is not persisted: every request sends it again.
type families struct {
	mu  sync.RWMutex
	all map[string]Family
}

// Describe stores the metadata of a metric.
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

// Families returns metadata by metric name, only for name if name is not empty.
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
