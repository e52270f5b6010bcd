package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// compactor postpones merges after which the next start would lose acknowledged samples.
//
// At a start the database skips samples in the write-ahead log that are older than the newest block
// of in-order samples: they are in that block. A block of out-of-order samples does not count, because
// in-order samples of the same time may still be in the log only. But a block merged from out-of-order
// blocks no longer says what it was merged from, and counts. Such a merge has to wait until the in-order
// samples of its time are in a block, at most the length of a block and a half. The same happened to
// unmerged blocks once: github.com/grafana/mimir/issues/2238.
type compactor struct{ *tsdb.LeveledCompactor }

// newCompactor implements tsdb.NewCompactorFunc with the database's own compactor.
func newCompactor(ctx context.Context, r prometheus.Registerer, log *slog.Logger, ranges []int64, pool chunkenc.Pool, o *tsdb.Options) (tsdb.Compactor, error) {
	c, err := tsdb.NewLeveledCompactorWithOptions(ctx, r, log, ranges, pool, tsdb.LeveledCompactorOptions{
		MaxBlockChunkSegmentSize:    o.MaxBlockChunkSegmentSize,
		EnableOverlappingCompaction: o.EnableOverlappingCompaction,
	})
	return compactor{c}, err
}

// Plan implements tsdb.Compactor.
func (c compactor) Plan(dir string) ([]string, error) {
	plan, err := c.LeveledCompactor.Plan(dir)
	if err != nil || len(plan) == 0 {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
	if err != nil {
		return nil, err
	}
	inOrder, merged := int64(math.MinInt64), int64(math.MinInt64) // ends of the newest block in order and of the merged one
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var meta tsdb.BlockMeta
		if err := json.Unmarshal(b, &meta); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", file, err)
		}
		if !meta.Compaction.FromOutOfOrder() && !meta.Compaction.FromStaleSeries() {
			inOrder = max(inOrder, meta.MaxTime)
		}
		if slices.Contains(plan, filepath.Dir(file)) {
			merged = max(merged, meta.MaxTime)
		}
	}
	if merged > inOrder {
		return nil, nil
	}
	return plan, nil
}
