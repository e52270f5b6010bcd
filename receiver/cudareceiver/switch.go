package cudareceiver

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Switch ends the tracing of receivers, and starts it again, while they run. It outlives them: a
// receiver that starts while the switch is off does not trace. The zero Switch is on.
type Switch struct {
	mu        sync.Mutex
	off       bool
	receivers map[*cudaReceiver]bool
	grace     time.Duration // for a receiver to follow another one; 0: the default
	profiles  atomic.Int32  // being taken
}

// defaultGrace is how long a reload of the configuration may take.
const defaultGrace = 30 * time.Second

// errNone is returned by a switch without receivers.
var errNone = errors.New("this agent does not trace: it was started without --trace, or its configuration has no cuda receiver")

// Stop ends tracing. No probe is left when it returns.
func (s *Switch) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.receivers) == 0 {
		return errNone
	}
	s.off = true
	for r := range s.receivers {
		if r.end(false) {
			r.set.Logger.Info("Tracing of CUDA and NCCL was ended by gpumeter trace --stop")
		}
	}
	return nil
}

// Start starts tracing again.
func (s *Switch) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.receivers) == 0 {
		return errNone
	}
	s.off = false
	var errs []error
	for r := range s.receivers {
		errs = append(errs, r.begin())
	}
	return errors.Join(errs...)
}

// join adds a receiver that starts. It traces if the switch is on and the kernel lets it: the log has the
// reason if not, and the agent runs without it.
func (s *Switch) join(r *cudaReceiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receivers == nil {
		s.receivers = map[*cudaReceiver]bool{}
	}
	s.receivers[r] = true
	if s.off {
		r.set.Logger.Info("CUDA and NCCL are not traced: gpumeter trace --stop ended it, --start starts it again")
		return
	}
	_ = r.begin() // logged
}

// left handles that a receiver has left its probes to the next one. If this process goes on and none comes,
// because its configuration has none any more, they are removed.
func (s *Switch) left(r *cudaReceiver) {
	if r.cfg.Keep == "" {
		return
	}
	time.AfterFunc(cmp.Or(s.grace, defaultGrace), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.receivers) > 0 {
			return
		}
		if _, err := RemoveKept(r.cfg.Keep); err != nil {
			r.set.Logger.Warn("Cannot remove the probes of the tracer", zap.String("reason", err.Error()))
		}
	})
}

// leave removes a receiver that shuts down.
func (s *Switch) leave(r *cudaReceiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.receivers, r)
}
