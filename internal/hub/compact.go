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

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

// compactor postpones merges after which the next start would lose acknowledged samples.
//
// At a start the database skips samples in the write-ahead log that are older than the newest block
// of in-order samples: they are in that block. A block of out-of-order samples does not count, because
// in-order samples of the same time may still be in the log only. But a block merged from out-of-order
// blocks no longer says what it was merged from, and counts. Such a merge has to wait until the in-order
// samples of its time are in a block, at most the length of a block and a half. The same happened to
// unmerged blocks once: github.com/grafana/mimir/issues/2238.
//
// It also writes no block without room on the disk: the database could then not write the chunks of
// newer samples either, and panics.
type compactor struct {
	*tsdb.LeveledCompactor
	segment int64 // bytes allocated for a file of a block
}

// newCompactor implements tsdb.NewCompactorFunc with the database's own compactor.
func newCompactor(ctx context.Context, r prometheus.Registerer, log *slog.Logger, ranges []int64, pool chunkenc.Pool, o *tsdb.Options) (tsdb.Compactor, error) {
	c, err := tsdb.NewLeveledCompactorWithOptions(ctx, r, log, ranges, pool, tsdb.LeveledCompactorOptions{
		MaxBlockChunkSegmentSize:    o.MaxBlockChunkSegmentSize,
		EnableOverlappingCompaction: o.EnableOverlappingCompaction,
	})
	return compactor{c, o.MaxBlockChunkSegmentSize}, err
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
	need := disk.Reserve + c.segment
	for _, block := range plan {
		need += disk.Size(block)
	}
	if err := disk.CheckRoom(dir, need); err != nil {
		return nil, fmt.Errorf("cannot merge blocks: %w", err)
	}
	return plan, nil
}

// Write implements tsdb.Compactor.
func (c compactor) Write(dest string, b tsdb.BlockReader, mint, maxt int64, base *tsdb.BlockMeta) ([]ulid.ULID, error) {
	// The block has chunks that are in the head's folder, or are about to be.
	if err := disk.CheckRoom(dest, disk.Reserve+c.segment+disk.Size(filepath.Join(dest, "chunks_head"))); err != nil {
		return nil, fmt.Errorf("cannot write a block: %w", err)
	}
	return c.LeveledCompactor.Write(dest, b, mint, maxt, base)
}
