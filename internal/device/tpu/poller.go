//go:build linux

package tpu

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// How a server on the network is asked. It may be slow, dead or lie; no reading waits for
// it longer than patience, and not even that for one that was slower the last time.
const (
	patience  = 50 * time.Millisecond
	pollEvery = 10 * time.Second       // when nobody reads
	pollGap   = 500 * time.Millisecond // between two questions, at least
	retryGap  = 5 * time.Second        // after one that failed
	pollLimit = 3 * time.Second        // for one question
	maxAge    = 30 * time.Second       // of an answer that is still used
)

// source is who a poller asks.
type source[T any] interface {
	fetch(context.Context) (T, error)
	close()
}

// poller asks one source again and again, in a goroutine of its own, and keeps its last
// good answer.
type poller[T any] struct {
	src   source[T]
	now   func() time.Time
	limit time.Duration // for one question
	stop  context.CancelFunc
	done  chan struct{}
	want  chan struct{}

	mu    sync.Mutex
	good  T
	at    time.Time // of good; zero: there is none
	err   error     // of the last question
	fails bool      // there was no answer at all
	ended time.Time // when it was answered, or failed
	quick bool      // it was answered within patience
	since time.Time // of the question in progress; zero: none is
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
		if late { // two asked at once: both have the answer
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

// ask asks once. A panic costs the answer: nobody above this goroutine would catch it.
func (p *poller[T]) ask(ctx context.Context) (answer T, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = empty{fmt.Errorf("the reader panicked: %v", v)}
		}
	}()
	return p.src.fetch(ctx)
}

// get returns the last good answer, unless it is too old, and what is wrong with the
// source now. It asks for a new one, and waits for it a little.
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
		default: // it is asked already
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
