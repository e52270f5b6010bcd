package billing

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/hub"
)

// Catches a report that looks complete although a scheduler did not answer, and a note about one of which that is not known.
func TestQueueNotes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return at }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	a := s.Appender(t.Context())
	put := func(name string, v float64, cluster, scheduler string) {
		a.Gauge(labels.FromStrings(fleet.LabelName, name, queue.LabelCluster, cluster, queue.LabelScheduler, scheduler), at.UnixMilli(), v)
	}
	put(queue.SeriesUp, 0, "east", "slurm")
	put(queue.SeriesUp, 0, "", "kueue")
	put(queue.SeriesUp, 1, "east", "kubernetes")
	put(queue.SeriesPendingJobs, 1, "west", "kubernetes")
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	d := &Queued{From: at.Add(-time.Hour), To: at}
	if err := ReadQueue(t.Context(), s, nil, d); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"The metrics page of kueue did not answer everything at the end: some numbers are missing.",
		"The Slurm controller of east did not answer everything at the end: some numbers are missing.",
	}
	if diff := cmp.Diff(want, d.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}
