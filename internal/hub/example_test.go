package hub_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// A counter that started 10 s before its first sample: the store adds the zero, so increase()
// includes what was counted before the series was first seen.
func ExampleStore() {
	dir, err := os.MkdirTemp("", "hub")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	store, err := hub.Open(dir, hub.Options{Now: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	ctx := context.Background()
	app := store.Appender(ctx)
	series := labels.FromStrings("__name__", "gpu_xid_errors_total", "gpu_xid_code", "79")
	app.Counter(series, now.Add(-10*time.Second).UnixMilli(), now.UnixMilli(), 3)
	result, err := app.Commit() // on disk when it returns nil
	if err != nil {
		fmt.Println(err)
		return
	}
	samples, err := store.Instant(ctx, "gpu_xid_errors_total - gpu_xid_errors_total offset 10s", now)
	if err != nil || len(samples) != 1 {
		fmt.Println(samples, err)
		return
	}
	fmt.Println(result.Accepted, "sample accepted, increase", samples[0].Value)
	// Output:
	// 1 sample accepted, increase 3
}
