//go:build linux

package cudareceiver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/profile"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/sampler"
)

// ErrNotTracing means that an agent cannot profile.
var ErrNotTracing = errors.New("this agent does not trace")

// ErrBusy means that enough profiles are being taken.
var ErrBusy = errors.New("two profiles are being taken already: try again when they have ended")

// maxProfiles are taken at a time: each probes each launch once more.
const maxProfiles = 2

// Profile profiles processes for a time, or until ctx ends.
func (s *Switch) Profile(ctx context.Context, choice *inspect.Choice, length time.Duration, rate int) (profile.Profile, error) {
	var r *cudaReceiver
	s.mu.Lock()
	for r = range s.receivers {
		break
	}
	s.mu.Unlock()
	if r == nil {
		return profile.Profile{}, fmt.Errorf("%w: %w", ErrNotTracing, errNone)
	}
	r.mu.Lock()
	source, owners := r.source, r.owners
	r.mu.Unlock()
	if source == nil {
		return profile.Profile{}, fmt.Errorf("%w: its log has the reason, or gpumeter trace --stop ended it", ErrNotTracing)
	}
	defer s.profiles.Add(-1)
	if s.profiles.Add(1) > maxProfiles {
		return profile.Profile{}, ErrBusy
	}
	return inspect.Profile(ctx, source, owners, choice, sampler.Options{Proc: r.cfg.Proc, For: length, Rate: rate})
}
