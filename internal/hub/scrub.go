package hub

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

// scrubEvery is the time between two verifications of all blocks.
const scrubEvery = 24 * time.Hour

// scrub verifies the checksums of all blocks, at once and then every day, until ctx is canceled. At a
// start only the parts of a block that the database reads then are verified; damage elsewhere makes
// every query and every merge that reads it fail. It takes a quarter of one core at most.
func (s *Store) scrub(ctx context.Context) {
	for {
		for _, b := range s.db.Blocks() {
			began := time.Now()
			span, err := disk.VerifyBlock(ctx, b.Dir())
			if err != nil {
				s.setAside(b.Dir(), span, err)
			}
			if !pause(ctx, 3*time.Since(began)) {
				return
			}
		}
		if !pause(ctx, scrubEvery) {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// setAside moves a damaged block away. The database notices within a minute.
func (s *Store) setAside(dir string, span disk.Range, why error) {
	rel, err := filepath.Rel(s.dir, dir)
	if err != nil {
		return
	}
	d, err := disk.SetAside(s.dir, disk.Damage{Path: rel, What: "block", Reason: why.Error(), Range: span, Time: s.opt.Now()})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return // was deleted or merged meanwhile
	case err != nil:
		s.opt.Log.Error("A damaged block cannot be set aside; queries that read it fail", "path", rel, "reason", why, "error", err)
		return
	}
	s.logDamage(d)
	s.damagedMu.Lock()
	defer s.damagedMu.Unlock()
	s.damaged = append(s.damaged, d)
}

func (s *Store) logDamage(d disk.Damage) {
	if d.Aside == "" {
		s.opt.Log.Warn("A part of the store is missing; the hub continues without it", "part", d.What, "path", d.Path)
		return
	}
	s.opt.Log.Warn("A damaged part of the store was set aside; the hub continues without it",
		"part", d.What, "path", d.Path, "reason", d.Reason, "samples", d.Range.String(), "bytes", d.Bytes, "now_in", d.Aside)
}
