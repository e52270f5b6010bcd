//go:build linux

package tpu

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// script is a source that takes a while and counts its calls.
type script struct {
	takes time.Duration
	err   error
	calls int
	ended bool
}

func (s *script) fetch(ctx context.Context) (report, error) {
	s.calls++
	select {
	case <-time.After(s.takes):
		return report{asked: s.calls}, s.err
	case <-ctx.Done():
		return report{}, empty{errors.New("too late")}
	}
}

func (s *script) close() { s.ended = true }

// polling runs f with a poller, in a synctest bubble.
func polling(t *testing.T, s *script, f func(ask func() (asked int, took time.Duration, err error))) {
	synctest.Test(t, func(t *testing.T) {
		p := newPoller(time.Now, pollLimit, source[report](s))
		f(func() (int, time.Duration, error) {
			begin := time.Now()
			rep, _, err := p.get(t.Context())
			return rep.asked, time.Since(begin), err
		})
		p.stop()
		<-p.done
		if !s.ended {
			t.Error("the source was not closed")
		}
	})
}

// A quick server is waited for, so that its values are current. Two concurrent reads share
// one request, and so do reads in quick succession.
func TestQuickSource(t *testing.T) {
	s := &script{takes: 10 * time.Millisecond}
	polling(t, s, func(ask func() (int, time.Duration, error)) {
		done := make(chan int)
		for range 2 {
			go func() {
				asked, _, _ := ask()
				done <- asked
			}()
		}
		if a, b := <-done, <-done; a != 1 || b != 1 {
			t.Errorf("answers %d and %d", a, b)
		}
		time.Sleep(pollGap / 2)
		if asked, took, _ := ask(); asked != 1 || took != 0 || s.calls != 1 {
			t.Errorf("too early: answer %d after %s, %d questions", asked, took, s.calls)
		}
		time.Sleep(pollGap)
		if asked, took, _ := ask(); asked != 2 || took != 10*time.Millisecond {
			t.Errorf("answer %d after %s", asked, took)
		}
	})
}

// A slow source costs its patience once, and nothing afterwards.
func TestSlowSource(t *testing.T) {
	s := &script{takes: time.Second}
	polling(t, s, func(ask func() (int, time.Duration, error)) {
		if asked, took, err := ask(); asked != 0 || took != patience || err != nil {
			t.Errorf("answer %d after %s, %v", asked, took, err)
		}
		for range 10 { // the request is still in progress
			if asked, took, _ := ask(); asked != 0 || took != 0 {
				t.Errorf("answer %d after %s", asked, took)
			}
		}
		for i := range 5 {
			time.Sleep(2 * time.Second)
			if asked, took, err := ask(); asked != i+1 || took != 0 || err != nil {
				t.Errorf("answer %d after %s, %v", asked, took, err)
			}
		}
	})
}

// A source that hangs is given up on, and a source that fails is left alone for a while.
func TestFailingSource(t *testing.T) {
	s := &script{takes: time.Hour}
	polling(t, s, func(ask func() (int, time.Duration, error)) {
		_, _, _ = ask()
		time.Sleep(pollLimit)
		synctest.Wait()
		if _, took, err := ask(); err == nil || took != 0 || s.calls != 1 {
			t.Errorf("after %s, %v, %d questions", took, err, s.calls)
		}
		s.takes = 0
		time.Sleep(retryGap / 2)
		if _, took, err := ask(); err == nil || took != 0 || s.calls != 1 {
			t.Errorf("after %s, %v, %d questions", took, err, s.calls)
		}
		time.Sleep(retryGap / 2)
		_, _, _ = ask()
		synctest.Wait()
		if asked, _, err := ask(); err != nil || asked != 2 {
			t.Errorf("answer %d, %v", asked, err)
		}
	})
}

// A partial answer is an answer: the error next to it changes nothing.
func TestPartialAnswer(t *testing.T) {
	s := &script{takes: time.Millisecond, err: errors.New("one metric")}
	polling(t, s, func(ask func() (int, time.Duration, error)) {
		for i := range 3 {
			if asked, took, err := ask(); asked != i+1 || took != time.Millisecond || err == nil {
				t.Errorf("answer %d after %s, %v", asked, took, err)
			}
			time.Sleep(pollGap)
		}
	})
}

// With a long read interval, values must not be as old as the last read.
func TestNobodyReads(t *testing.T) {
	s := &script{takes: time.Second}
	polling(t, s, func(ask func() (int, time.Duration, error)) {
		time.Sleep(5*time.Minute + 5*time.Second)
		if asked, took, _ := ask(); asked != 30 || took != 0 {
			t.Errorf("answer %d after %s", asked, took)
		}
	})
}
