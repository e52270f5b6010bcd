package training

import "time"

// Writes is what a process has written to files so far, as bursts. A burst of at least leastCheckpoint bytes
// is taken for a checkpoint: a training that trains writes little else at once.
type Writes struct {
	Checkpoints uint64        // complete ones
	Bytes       uint64        // of these
	Time        time.Duration // in bursts, complete or not
	Last        time.Time     // when the last complete one ended
}

// What makes a burst.
const (
	writing         = 4 << 20  // bytes per sample
	leastCheckpoint = 16 << 20 // bytes
	quietFor        = 2 * time.Second
	longest         = 30 * time.Minute // what writes for longer is no checkpoint
)

// Sampler turns samples of the bytes that a process has written into bursts. Samples should be a second
// apart.
type Sampler struct {
	Writes

	known     bool
	bytes     uint64
	at        time.Time
	burst     uint64 // bytes of the current burst
	began     time.Time
	lastWrite time.Time
	spent     time.Duration // in the current burst, already part of Time
}

// Sample adds a sample.
func (s *Sampler) Sample(at time.Time, bytes uint64) {
	defer func() { s.known, s.bytes, s.at = true, bytes, at }()
	if !s.known || bytes < s.bytes || !at.After(s.at) {
		return
	}
	wrote := bytes - s.bytes
	if wrote >= writing {
		if s.burst == 0 {
			s.began = s.at
		}
		s.burst += wrote
		s.Time += at.Sub(s.at)
		s.spent += at.Sub(s.at)
		s.lastWrite = at
		return
	}
	if s.burst == 0 {
		return
	}
	s.burst += wrote
	if at.Sub(s.lastWrite) >= quietFor {
		s.End()
	}
}

// End ends a burst in progress, as the end of its process does.
func (s *Sampler) End() {
	if s.burst >= leastCheckpoint && s.lastWrite.Sub(s.began) <= longest {
		s.Checkpoints++
		s.Bytes += s.burst
		s.Last = s.lastWrite
	} else {
		s.Time -= s.spent
	}
	s.burst, s.spent = 0, 0
}

// Known reports whether there was a sample.
func (s *Sampler) Known() bool { return s.known }
