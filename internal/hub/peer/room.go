package peer

import (
	"errors"
	"sync"
)

// Errors of a Room. Both are temporary.
var (
	// ErrFull means that all peers together hold too much.
	ErrFull = errors.New("the hub holds too many requests and answers of slow clients")
	// ErrShare means that this peer holds too much.
	ErrShare = errors.New("the hub holds too many unfinished requests and unread answers of this client")
)

// Room limits the bytes that the hub keeps for clients, in total and per peer. It is safe for
// concurrent use.
type Room struct {
	total, each int64

	mu   sync.Mutex
	used int64
	by   map[string]int64
}

// NewRoom returns room for total bytes, of which one peer may use each.
func NewRoom(total, each int64) *Room {
	return &Room{total: total, each: min(total, each), by: map[string]int64{}}
}

// Take reserves n bytes for a peer.
func (r *Room) Take(peer string, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by[peer]+n > r.each {
		return ErrShare
	}
	if r.used+n > r.total {
		return ErrFull
	}
	r.used += n
	r.by[peer] += n
	return nil
}

// Give returns n bytes of a peer.
func (r *Room) Give(peer string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	if r.by[peer] -= n; r.by[peer] == 0 {
		delete(r.by, peer)
	}
}

// Used returns the bytes in use by all peers.
func (r *Room) Used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}
