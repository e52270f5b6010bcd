package cudareceiver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/training"
)

// heir is a source that may continue what an earlier one has begun, and leave it to a later one.
type heir interface {
	// Inherited returns until when the earlier one was at work; zero if there was none.
	Inherited() time.Time
	// Leave makes the source leave its probes and counts when it ends, if it keeps them.
	Leave()
	Keeps() bool
}

// reading is what the last reading found. The kernel's counts go on while nobody reads them, so the sums of
// the next agent start with what has been added since.
type reading struct {
	Time      time.Time        `json:"time"`
	Processes []tracer.Process `json:"processes"`
	Training  training.State   `json:"training,omitzero"`
}

// maxReading bounds the file of a reading, in bytes: some 1,000 processes.
const maxReading = 64 << 20

// resume makes the sums of a new source start where those of its predecessor ended.
func (r *cudaReceiver) resume() {
	h, ok := r.source.(heir)
	if !ok {
		return
	}
	until := h.Inherited()
	if until.IsZero() {
		return
	}
	last, err := readReading(r.cfg.StateFile)
	if err == nil && until.Sub(last.Time) > 2*r.cfg.Interval { // what it read after that is in its sums
		err = fmt.Errorf("%s is older than the last reading", r.cfg.StateFile)
	}
	if err != nil {
		r.set.Logger.Info("Tracing continues, but what was called during the restart is not counted", zap.String("reason", err.Error()))
		r.skip = true
		return
	}
	r.set.Logger.Info("Tracing continues", zap.Time("last_reading", last.Time))
	r.ledger.Resume(last.Processes, last.Time)
	r.trainer.observer.Resume(&last.Training, last.Processes, last.Time)
}

// recall makes the sums start with the first reading, if what was counted until then has been counted before.
func (r *cudaReceiver) recall(s *tracer.Snapshot) {
	if r.skip {
		r.skip = false
		r.ledger.Resume(s.Processes, s.Time)
		r.trainer.observer.Resume(nil, s.Processes, s.Time)
	}
}

// remember keeps a reading for the next agent. Without it, or with an old one, that would count twice what this
// one has counted.
func (r *cudaReceiver) remember(s *tracer.Snapshot) {
	if h, ok := r.source.(heir); !ok || !h.Keeps() || r.cfg.StateFile == "" {
		return
	}
	why := ""
	if err := writeReading(r.cfg.StateFile, reading{s.Time, s.Processes, r.trainer.observer.State()}); err != nil {
		_ = os.Remove(r.cfg.StateFile) // also possible on a full disk
		why = err.Error()
	}
	if why != r.unsaved && why != "" {
		r.set.Logger.Warn("Traced counts are not kept for a restart", zap.String("reason", why))
	}
	r.unsaved = why
}

func readReading(path string) (last reading, err error) {
	if path == "" {
		return last, errors.New("no state_file is set")
	}
	st, err := os.Stat(path)
	if err != nil {
		return last, err
	}
	if st.Size() > maxReading {
		return last, fmt.Errorf("%s has %d bytes", path, st.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return last, err
	}
	if err := json.Unmarshal(data, &last); err != nil {
		return last, fmt.Errorf("cannot parse %s: %w", path, err)
	}
	return last, nil
}

// writeReading replaces the file atomically. It is of no use after a power failure, so it is not synced.
func writeReading(path string, last reading) error {
	data, err := json.Marshal(last)
	if err != nil {
		return err
	}
	if len(data) > maxReading {
		return fmt.Errorf("a reading of %d processes has %d bytes", len(last.Processes), len(data))
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
