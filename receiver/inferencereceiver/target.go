package inferencereceiver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// target is a page that is read again and again.
type target struct {
	inference.Target
	interval time.Duration
	timeout  time.Duration
	tenants  []string // labels that say who asked
	next     consumer.Metrics
	log      *zap.Logger
	slots    inference.Slots // of all targets, and of discovery

	// Only the goroutine that follows the clock uses these.
	last time.Time // when the last reading began

	mu      sync.Mutex // held by a reading
	emitter *emitter
	about   inference.About // what the engine says of itself beside its page
	asked   int             // how often it was asked for that
	trouble string          // the last logged reason for a failed reading
	refused bool            // the pipeline refused the last batch
	// before is the target that had the same ID, until the first reading, and origin the one whose totals go on: of the
	// same socket under another ID, or else of what was in its place.
	before, origin *target

	ended   bool        // another target has its series and totals, or the engine is gone
	barred  atomic.Bool // the page must not be read again
	unknown atomic.Bool // nobody has made sure that the page may be read

	addresses atomic.Pointer[[]netip.Addr] // of the name of a listed target, nil: unknown

	engine sync.Mutex // guards what follows
	joined *discover.Engine

	routed sync.Mutex // guards what follows; held by a reading for routing
	said   time.Time  // when the engine said it
	signal inference.Signals
	silent error // why it did not
}

// join remembers what is known about the engine of the target.
func (t *target) join(e *discover.Engine) {
	t.engine.Lock()
	defer t.engine.Unlock()
	t.joined = e
}

// due reports whether the page has to be read at a tick.
func (t *target) due(now time.Time, slack time.Duration) bool {
	if !t.last.IsZero() && now.Sub(t.last) < t.interval-min(slack, t.interval/2) && !now.Before(t.last) {
		return false
	}
	t.last = now
	return true
}

// round reads the page once and passes on what it says. If the reading before has not ended, there is
// none: each is timed out before the next is due, but the pipeline may hold it back.
func (t *target) round(ctx context.Context, tick *node.Tick) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.inherit()
	begin := time.Now()
	reading, err := t.read(ctx)
	if ctx.Err() != nil { // shutting down: an aborted request says nothing about the engine
		return
	}
	t.engine.Lock()
	joined := t.joined
	t.engine.Unlock()
	md, other := t.emitter.emit(tick, joined, reading, time.Since(begin))
	t.say(cmp.Or(err, other))
	t.send(ctx, md)
}

// inherit takes over what the target before had shown: its series end, or go on with new starts. The totals know
// whether the process is the same.
func (t *target) inherit() {
	if old := t.before; old != nil {
		old.leave(func() { t.emitter.shown = old.emitter.shown })
	}
	if old := t.origin; old != nil {
		old.leave(func() { t.emitter.growth = old.emitter.growth })
		if old.emitter.id != t.emitter.id { // what it counted under its old ID does not count again
			t.emitter.growth.Relabel()
		}
	}
	t.before, t.origin = nil, nil
}

// leave ends a target, and has take what it leaves.
func (t *target) leave(take func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inherit()
	t.ended = true
	take()
	t.Client.CloseIdleConnections()
}

// end sends the end of all series of an engine that is gone.
func (t *target) end(ctx context.Context, tick *node.Tick) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inherit()
	t.ended = true
	t.log.Info("An inference engine has ended")
	t.send(ctx, t.emitter.end(tick))
	t.Client.CloseIdleConnections()
}

func (t *target) send(ctx context.Context, md pmetric.Metrics) {
	err := t.next.ConsumeMetrics(ctx, md)
	if (err != nil) == t.refused {
		return
	}
	if t.refused = err != nil; t.refused {
		t.log.Error("The pipeline refuses metrics of an inference engine", zap.Error(err))
	} else {
		t.log.Info("The pipeline accepts metrics of an inference engine again")
	}
}

// rescue turns a panic of the parser into an error.
func (t *target) rescue(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the parser panicked: %v", p)
		t.log.Debug("The parser of metrics pages panicked", zap.ByteString("stack", debug.Stack()))
	}
}

// bar remembers that the page must not be read again if an error says so.
func (t *target) bar(err error) {
	if errors.Is(err, inference.ErrNotPage) && t.Empties() {
		t.barred.Store(true)
	}
}

// read reads the page once. A page that ends the parser costs its target alone.
func (t *target) read(stop context.Context) (_ *inference.Reading, err error) {
	defer t.rescue(&err)
	ctx, cancel := context.WithTimeout(stop, t.timeout)
	defer cancel()
	if t.barred.Load() {
		return nil, inference.ErrNotPage
	}
	if t.unknown.Load() {
		if err := t.Drains(ctx); err != nil {
			t.bar(err)
			return nil, err
		}
		t.unknown.Store(false)
	}
	page, err := t.Page(ctx)
	if err != nil {
		t.bar(err)
		return nil, err
	}
	if t.Format == inference.Ollama {
		reading, err := inference.ReadOllama(page)
		if err != nil {
			return nil, err
		}
		t.ask(ctx, reading)
		reading.Describe(t.about.Version)
		return reading, nil
	}
	before := t.about.Model
	reading, err := t.parse(stop, page, t.about.Model)
	if err != nil {
		return nil, err
	}
	if t.ask(ctx, reading); t.about.Model != before {
		if reading, err = t.parse(stop, page, t.about.Model); err != nil {
			return nil, err
		}
	}
	reading.Describe(t.about.Version)
	return reading, nil
}

// parse parses a page when it is its turn.
func (t *target) parse(stop context.Context, page []byte, model string) (out *inference.Reading, err error) {
	if err := t.slots.Use(stop, func() {
		text := promtext.Scan(page)
		if len(text.Samples) == 0 && text.Bad > 0 {
			err = fmt.Errorf("the answer is not a metrics page: %w", text.Err)
			return
		}
		out = inference.Read(text, model, t.tenants...)
	}); err != nil {
		return nil, err
	}
	return out, err
}

// enough is how often an engine is asked about itself if it does not answer.
const enough = 5

// ask asks the engine about itself, once.
func (t *target) ask(ctx context.Context, r *inference.Reading) {
	if len(r.Providers) == 0 || t.asked >= enough {
		return
	}
	about, err := t.About(ctx, r.Providers[0])
	if err != nil {
		t.asked++
		t.log.Debug("An inference engine does not answer what it is", zap.Error(err))
		return
	}
	t.asked, t.about = enough, about
}

// say logs why a reading failed, once per kind of reason.
func (t *target) say(err error) {
	kind := reason(err)
	if kind == t.trouble {
		return
	}
	if t.trouble = kind; kind == "" {
		t.log.Info("The page of an inference engine can be read again")
		return
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	t.log.Warn("The page of an inference engine cannot be read", zap.String("error", text[:min(len(text), maxText)]))
}

// maxText bounds an error in the log: it may repeat what the engine has sent.
const maxText = 500

// reason returns a text that is the same for errors of one kind. What an error says may differ each time, such
// as the port of the connection.
func reason(err error) string {
	var status *inference.StatusError
	var number syscall.Errno
	var network net.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &status):
		return status.Error()
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "end"
	}
	for _, known := range []error{inference.ErrNotPage, inference.ErrJSON, inference.ErrTooLarge, inference.ErrAlternates} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "other"
}
