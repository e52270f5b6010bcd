package hub

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches a merge of two blocks of out-of-order samples that makes the next start skip the in-order
// samples of the same hours: half of what was acknowledged was gone after a restart.
func TestMergedOutOfOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	put := func(d time.Duration) {
		t.Helper()
		a := s.Appender(t.Context())
		a.Gauge(name("g"), ago(d), d.Seconds())
		commit(t, a)
	}
	var want []string
	for i := range 3 {
		d := time.Hour - time.Duration(i)*time.Minute
		put(d)
		put(d + time.Second) // out of order
		want = append(want, fmt.Sprint((d + time.Second).Seconds()), fmt.Sprint(d.Seconds()))
		if err := s.db.CompactOOOHead(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := s.db.Compact(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{})
	series, err := s.Raw(t.Context(), "g", now.Add(-2*time.Hour), now)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range series[0].Points {
		got = append(got, fmt.Sprint(p.Value))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples after a restart (-want +got):\n%s", diff)
	}
}
