package disk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/prometheus/prometheus/tsdb/tombstones"
	"golang.org/x/sys/unix"
)

const (
	metaFile      = "meta.json"
	indexFile     = "index"
	chunkFolder   = "chunks"
	tombstoneFile = tombstones.TombstonesFilename
)

// blockName matches a ULID.
var blockName = regexp.MustCompile(`^[0-7][0-9A-HJKMNP-TV-Z]{25}$`)

// block is a folder of the database with the samples of a range of time.
type block struct {
	dir  string
	meta tsdb.BlockMeta // zero if it cannot be read
	// damage says why the block cannot be used; tombstones says why its list of deleted
	// samples cannot be used, while the samples can.
	damage, tombstones error
	// The rest is set by verify only.
	series, chunks, samples uint64
	times                   times
}

// readBlocks examines the blocks of the database in dir as far as the database does when it opens
// them: metadata, tables of contents, symbols, headers of segments, deleted samples. A block that
// was merged into another is not returned: the database deletes it.
func readBlocks(dir string) ([]block, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []block
	merged := map[string]bool{}
	for _, e := range entries {
		if !e.IsDir() || !blockName.MatchString(e.Name()) {
			continue
		}
		b := block{dir: filepath.Join(dir, e.Name())}
		b.open()
		if unusable(b.damage) || unusable(b.tombstones) {
			return nil, fmt.Errorf("%s: %w", e.Name(), errors.Join(b.damage, b.tombstones))
		}
		if b.damage == nil {
			for _, p := range b.meta.Compaction.Parents {
				merged[p.ULID.String()] = true
			}
		}
		out = append(out, b)
	}
	out = slices.DeleteFunc(out, func(b block) bool { return merged[filepath.Base(b.dir)] })
	slices.SortStableFunc(out, func(a, b block) int { return cmp.Compare(a.meta.MinTime, b.meta.MinTime) })
	return out, nil
}

// unusable reports whether an error says nothing about the file.
func unusable(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrPermission, unix.EMFILE, unix.ENFILE, unix.ENOMEM}, func(target error) bool { return errors.Is(err, target) })
}

// open sets meta, damage and tombstones.
func (b *block) open() {
	defer b.survive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a bad sector of a mapped file
	text, err := os.ReadFile(filepath.Join(b.dir, metaFile))
	if err == nil {
		err = json.Unmarshal(text, &b.meta)
	}
	switch {
	case err != nil:
		b.damage, b.meta = fmt.Errorf("cannot read %s: %w", metaFile, err), tsdb.BlockMeta{}
	case b.meta.Version != 1 || b.meta.ULID.String() != filepath.Base(b.dir) || b.meta.MinTime > b.meta.MaxTime:
		b.damage, b.meta = fmt.Errorf("%s is not valid", metaFile), tsdb.BlockMeta{}
	}
	if b.damage != nil {
		return
	}
	if _, _, err := tombstones.ReadTombstones(b.dir); err != nil {
		b.tombstones = fmt.Errorf("cannot read the list of deleted samples: %w", err)
	}
	c, err := chunks.NewDirReader(filepath.Join(b.dir, chunkFolder), nil)
	if err != nil {
		b.damage = fmt.Errorf("cannot read the samples: %w", err)
		return
	}
	i, err := index.NewFileReader(filepath.Join(b.dir, indexFile), index.DecodePostingsRaw)
	if err != nil {
		b.damage = errors.Join(fmt.Errorf("cannot read the index: %w", err), c.Close())
		return
	}
	b.damage = errors.Join(i.Close(), c.Close())
}

// survive turns the panic of a decoder that was given random bytes into damage.
func (b *block) survive() {
	if r := recover(); r != nil {
		b.damage = fmt.Errorf("cannot decode the block: %v", r)
	}
}

// verify reads the whole block and checks every checksum.
func (b *block) verify(ctx context.Context) {
	if b.damage != nil {
		return
	}
	defer b.survive()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a bad sector of a mapped file
	b.damage = b.readAll(ctx)
}

func (b *block) readAll(ctx context.Context) (err error) {
	c, err := chunks.NewDirReader(filepath.Join(b.dir, chunkFolder), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	i, err := index.NewFileReader(filepath.Join(b.dir, indexFile), index.DecodePostingsRaw)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.Close()) }()
	all, err := i.Postings(ctx, "", "")
	if err != nil {
		return fmt.Errorf("cannot read the index: %w", err)
	}
	var builder labels.ScratchBuilder
	var metas []chunks.Meta
	for all.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		metas = metas[:0]
		if err := i.Series(all.At(), &builder, &metas); err != nil {
			return fmt.Errorf("cannot read a series in the index: %w", err)
		}
		b.series++
		for _, m := range metas {
			chunk, _, err := c.ChunkOrIterable(m)
			if err != nil {
				return fmt.Errorf("cannot read the samples of a series: %w", err)
			}
			b.chunks++
			b.samples += uint64(chunk.NumSamples()) //nolint:gosec // at most 65535
			b.times.add(m.MinTime)
			b.times.add(m.MaxTime)
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("cannot read the index: %w", err)
	}
	if err := verifyPostings(ctx, i); err != nil {
		return fmt.Errorf("cannot read a label in the index: %w", err)
	}
	if s := b.meta.Stats; s.NumSeries > 0 && (s.NumSeries != b.series || s.NumChunks != b.chunks) {
		return fmt.Errorf("the index has %d series and %d chunks, %s says %d and %d", b.series, b.chunks, metaFile, s.NumSeries, s.NumChunks)
	}
	return nil
}

// verifyPostings reads the list of series of every label value.
func verifyPostings(ctx context.Context, i *index.Reader) error {
	names, err := i.LabelNames(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		values, err := i.LabelValues(ctx, name, nil)
		if err != nil {
			return err
		}
		for _, v := range values {
			if err := ctx.Err(); err != nil {
				return err
			}
			p, err := i.Postings(ctx, name, v)
			if err != nil {
				return err
			}
			for p.Next() {
			}
			if err := p.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// span returns the time range of a block, from its index if the metadata cannot be read.
func (b *block) span() Range {
	if b.meta.MaxTime > 0 {
		t := times{}
		t.add(b.meta.MinTime)
		t.add(b.meta.MaxTime)
		return t.asRange()
	}
	probe := block{dir: b.dir}
	probe.verify(context.Background())
	return probe.times.asRange()
}

// VerifyBlock reads the whole block in dir and returns what is wrong with it, and its time range.
func VerifyBlock(ctx context.Context, dir string) (Range, error) {
	b := block{dir: dir}
	b.open()
	b.verify(ctx)
	if err := ctx.Err(); err != nil {
		return Range{}, nil //nolint:nilerr // nothing is known
	}
	return b.span(), b.damage
}

// Size returns the bytes of the files below path.
func Size(path string) int64 {
	total := int64(0)
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if i, err := d.Info(); err == nil {
				total += i.Size()
			}
		}
		return nil // a file that was deleted meanwhile has no size
	})
	return total
}
