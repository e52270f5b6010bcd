//go:build linux

package tpu

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Timing of requests to a server, which may be slow, dead or lying. No read waits for it
// longer than patience, and not at all for a server that was slower than that the last
// time.
const (
	patience  = 50 * time.Millisecond
	pollEvery = 10 * time.Second       // when there are no reads
	pollGap   = 500 * time.Millisecond // shortest time between two requests
	retryGap  = 5 * time.Second        // after a failed request
	pollLimit = 3 * time.Second        // deadline of one request
	maxAge    = 30 * time.Second       // maximum age of an answer that is still used
)

// source is what a poller queries.
type source[T any] interface {
	fetch(context.Context) (T, error)
	close()
}

// poller queries one source repeatedly, in its own goroutine, and keeps the last good
// answer.
type poller[T any] struct {
	src   source[T]
	now   func() time.Time
	limit time.Duration // deadline of one request
	stop  context.CancelFunc
	done  chan struct{}
	want  chan struct{}

	mu    sync.Mutex
	good  T
	at    time.Time // time of good; zero: none
	err   error     // error of the last request
	fails bool      // the last request had no answer at all
	ended time.Time // when the last request ended
	quick bool      // the last request was answered within patience
	since time.Time // start of the request in progress; zero: none
	round chan struct{}
}

func newPoller[T any](now func() time.Time, limit time.Duration, src source[T]) *poller[T] {
	ctx, stop := context.WithCancel(context.Background())
	p := &poller[T]{
		src: src, now: now, limit: limit, stop: stop, done: make(chan struct{}),
		want: make(chan struct{}, 1), quick: true, round: make(chan struct{}),
	}
	go p.run(ctx)
	return p
}

func (p *poller[T]) run(ctx context.Context) {
	defer close(p.done)
	defer p.src.close()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.want:
		}
		p.mu.Lock()
		late := !p.ended.IsZero() && time.Since(p.ended) < pollGap
		if !late {
			p.since = time.Now()
		}
		p.mu.Unlock()
		if late { // two concurrent requests share the answer
			continue
		}
		limited, cancel := context.WithTimeout(ctx, p.limit)
		good, err := p.ask(limited)
		cancel()
		p.mu.Lock()
		p.err, p.fails = err, isEmpty(err)
		p.quick = !p.fails && time.Since(p.since) <= patience
		p.since, p.ended = time.Time{}, time.Now()
		if !p.fails {
			p.good, p.at = good, p.now()
		}
		close(p.round)
		p.round = make(chan struct{})
		p.mu.Unlock()
	}
}

// ask sends one request. A panic costs only the answer: nothing above this goroutine would
// recover it.
func (p *poller[T]) ask(ctx context.Context) (answer T, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = empty{fmt.Errorf("the reader panicked: %v", v)}
		}
	}()
	return p.src.fetch(ctx)
}

// get returns the last good answer, unless it is too old, and the current error of the
// source. It requests a new answer and waits for it briefly.
func (p *poller[T]) get(ctx context.Context) (answer T, ok bool, err error) {
	p.mu.Lock()
	gap := pollGap
	if p.fails {
		gap = retryGap
	}
	due := p.ended.IsZero() || time.Since(p.ended) >= gap
	wait := due && p.quick && (p.since.IsZero() || time.Since(p.since) < patience)
	round := p.round
	p.mu.Unlock()
	if due {
		select {
		case p.want <- struct{}{}:
		default: // already requested
		}
	}
	if wait {
		limit := time.NewTimer(patience)
		select {
		case <-round:
		case <-limit.C:
		case <-ctx.Done():
		}
		limit.Stop()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if age := p.now().Sub(p.at); p.at.IsZero() || age > maxAge || age < -maxAge {
		return answer, false, p.err
	}
	return p.good, true, p.err
}
