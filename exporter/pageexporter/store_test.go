package pageexporter

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at is a moment on the clock of these tests.
func at(seconds float64) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func keys(s *store, now time.Time) []string {
	var out []string
	batches, _ := s.batches(now)
	for _, b := range batches {
		out = append(out, b.key)
	}
	slices.Sort(out)
	return out
}

// A batch kept too long shows a dead device as alive; one dropped too soon leaves gaps in every
// graph.
func TestExpiry(t *testing.T) {
	f := func(lastShown float64, arrivals ...float64) {
		t.Helper()
		s := newStore(&dropped{}, "")
		for _, a := range arrivals {
			s.put([]*batch{{key: "k"}}, at(a))
		}
		if diff := cmp.Diff([]string{"k"}, keys(s, at(lastShown-0.001))); diff != "" {
			t.Errorf("just before (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string(nil), keys(s, at(lastShown))); diff != "" {
			t.Errorf("expired (-want +got):\n%s", diff)
		}
	}
	f(900, 0)                // one batch: three times the longest interval
	f(40, 0, 10)             // its interval is known
	f(50, 0, 10, 20)         // and keeps its length
	f(3.1, 0, 0.1)           // at least 1 s
	f(89.7, 0, 10, 29.9, 30) // a late batch and a punctual one: still 19.9 s
	f(80, 0, 10, 29.9, 30, 40, 50)
	f(1100, 0, 10, 200) // it had expired and starts anew
}

// Each batch expires by its own interval: a slow one must not vanish because others are fast,
// and a dead one must not stay because others live.
func TestExpiryIsPerBatch(t *testing.T) {
	s := newStore(&dropped{}, "")
	s.put([]*batch{{key: "slow"}}, at(0))
	for i := range 30 {
		s.put([]*batch{{key: "quick"}}, at(float64(i)))
	}
	s.put([]*batch{{key: "slow"}}, at(30))
	f := func(now float64, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, keys(s, at(now))); diff != "" {
			t.Errorf("at %v (-want +got):\n%s", now, diff)
		}
	}
	f(31, "quick", "slow")
	f(32, "slow")
	f(119, "slow")
	f(120)
}

// Without a bound, a sender that restarts under a new name every minute exhausts memory; live
// ones must stay.
func TestBatchLimit(t *testing.T) {
	d := &dropped{}
	s := newStore(d, "")
	var batches []*batch
	for i := range maxBatches {
		batches = append(batches, &batch{key: fmt.Sprintf("%05d", i)})
	}
	s.put(batches, at(0))
	s.put([]*batch{{key: "00000"}}, at(1))
	s.put([]*batch{{key: "new"}}, at(2))

	got := keys(s, at(3))
	want := []string{"00000", "00002"} // 00001 was the oldest
	if diff := cmp.Diff(want, got[:2]); diff != "" || len(got) != maxBatches {
		t.Errorf("%d batches, the first (-want +got):\n%s", len(got), diff)
	}
	if n := d.counts[batchLimit].Load(); n != 1 {
		t.Errorf("counted %d, want 1", n)
	}
}

// The line of /readyz is all that an operator sees when a probe fails.
func TestMissing(t *testing.T) {
	s := newStore(&dropped{}, "")
	f := func(now float64, want string) {
		t.Helper()
		if diff := cmp.Diff(want, s.missing(at(now))); diff != "" {
			t.Errorf("missing (-want +got):\n%s", diff)
		}
	}
	f(0, "no data yet")
	s.put([]*batch{{key: "k"}}, at(1))
	s.put([]*batch{{key: "k"}}, at(11))
	f(40, "")
	f(42, "no batch for 31s, expected every 10s")
	// Cluster metrics, collected every minute, do not make up for silent devices.
	s = newStore(&dropped{}, "gpus")
	s.put([]*batch{{key: "cluster", scope: "cluster"}}, at(1))
	f(2, "no data yet")
	s.put([]*batch{{key: "gpus", scope: "gpus"}}, at(3))
	s.put([]*batch{{key: "gpus", scope: "gpus"}}, at(13))
	f(14, "")
	s.put([]*batch{{key: "cluster", scope: "cluster"}}, at(61))
	f(62, "no batch for 49s, expected every 10s")
}
