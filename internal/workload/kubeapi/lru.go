package kubeapi

import "container/list"

// lru is a bounded cache that evicts the least recently used entry. Evicted entries are
// requested again.
type lru[K comparable, V any] struct {
	most  int
	order *list.List // of entry, most recently used first
	at    map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func newLRU[K comparable, V any](most int) lru[K, V] {
	return lru[K, V]{most: most, order: list.New(), at: map[K]*list.Element{}}
}

func (l *lru[K, V]) get(k K) (v V, ok bool) {
	e, ok := l.at[k]
	if !ok {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(entry[K, V]).value, true
}

func (l *lru[K, V]) put(k K, v V) {
	if e, ok := l.at[k]; ok {
		e.Value = entry[K, V]{k, v}
		l.order.MoveToFront(e)
		return
	}
	l.at[k] = l.order.PushFront(entry[K, V]{k, v})
	if l.order.Len() > l.most {
		last := l.order.Back()
		l.order.Remove(last)
		delete(l.at, last.Value.(entry[K, V]).key)
	}
}
