package hub

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// Catches strings in the memory of a block that is gone when they are used: the process dies of SIGSEGV, as
// a hub did that merged blocks while a bill was computed.
func TestLabelsOutliveBlocks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := tsdb.NewBlockWriter(promslog.NewNopLogger(), filepath.Join(dir, "tsdb"), (2 * time.Hour).Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	a := w.Appender(t.Context())
	for i := range 5000 { // more than a page of memory
		uuid := fmt.Sprintf("GPU-%04d", i)
		want = append(want, uuid)
		if _, err := a.Append(0, name(fleet.SeriesAllocatedTime, fleet.LabelUUID, uuid), ago(3*time.Hour), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir, Options{})
	from := now.Add(-5 * time.Hour)
	devices, err := s.Devices(t.Context(), from, now)
	if err != nil {
		t.Fatal(err)
	}
	values, _, err := s.LabelValues(t.Context(), fleet.LabelUUID, nil, from, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	names, _, err := s.LabelNames(t.Context(), nil, from, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := s.Listed(t.Context(), fleet.SeriesAllocatedTime, from, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // as if the block were deleted
		t.Fatal(err)
	}
	if !slices.Equal(devices, want) || !slices.Equal(values, want) || strings.Join(names, " ") != "__name__ gpu_uuid" || len(listed) != len(want) || listed[7][fleet.LabelUUID] != want[7] {
		t.Errorf("%d devices, %d values, %d series, names %v", len(devices), len(values), len(listed), names)
	}
}
