// Package stdoutexporter writes OTLP to standard output as lines of JSON, one line per batch.
//
// The exporter writes to the stream that the process was given and never opens /dev/stdout: an
// open fails on a socket, such as the journal of systemd, and on a terminal of another user, and
// an open of a pipe for reading and writing hides that the reader has gone.
package stdoutexporter

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

const (
	// maxWaiting is the number of batches that wait for a reader that has stalled.
	maxWaiting = 16
	// grace is how long a shutdown waits for a stalled reader.
	grace = 5 * time.Second
)

// Config is empty: the process has one standard output.
type Config struct{}

// NewFactory returns the factory of an exporter that writes to stdout. An error of stdout is for
// its owner to act on: the exporter only stops writing.
func NewFactory(stdout io.Writer) exporter.Factory {
	s := &stream{w: stdout, patience: sync.OnceValue(func() <-chan struct{} {
		over := make(chan struct{})
		time.AfterFunc(grace, func() { close(over) })
		return over
	})}
	return exporter.NewFactory(component.MustNewType("stdout"), func() component.Config { return &Config{} },
		exporter.WithMetrics(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
			l := newLines(s)
			return exporterhelper.NewMetrics(ctx, set, cfg, func(_ context.Context, md pmetric.Metrics) error {
				return l.put((&pmetric.JSONMarshaler{}).MarshalMetrics(md))
			}, exporterhelper.WithStart(l.start), exporterhelper.WithShutdown(l.shutdown))
		}, component.StabilityLevelDevelopment),
		exporter.WithLogs(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
			l := newLines(s)
			return exporterhelper.NewLogs(ctx, set, cfg, func(_ context.Context, ld plog.Logs) error {
				return l.put((&plog.JSONMarshaler{}).MarshalLogs(ld))
			}, exporterhelper.WithStart(l.start), exporterhelper.WithShutdown(l.shutdown))
		}, component.StabilityLevelDevelopment),
		exporter.WithTraces(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Traces, error) {
			l := newLines(s)
			return exporterhelper.NewTraces(ctx, set, cfg, func(_ context.Context, td ptrace.Traces) error {
				return l.put((&ptrace.JSONMarshaler{}).MarshalTraces(td))
			}, exporterhelper.WithStart(l.start), exporterhelper.WithShutdown(l.shutdown))
		}, component.StabilityLevelDevelopment),
	)
}

// stream keeps the lines of all signals whole.
type stream struct {
	mu sync.Mutex
	w  io.Writer
	// patience returns a channel that is closed grace after the first call: all signals of a
	// shutdown share the wait.
	patience func() <-chan struct{}
}

func (s *stream) write(line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.w.Write(line)
	return err
}

// lines writes the lines of one signal on a goroutine of its own: a write to a pipe that nobody
// reads blocks, and cannot be interrupted.
type lines struct {
	to      *stream
	waiting chan []byte
	stop    chan struct{} // closed by shutdown
	done    chan struct{} // closed when the goroutine has ended; nil before start
}

func newLines(to *stream) *lines {
	return &lines{to: to, waiting: make(chan []byte, maxWaiting), stop: make(chan struct{})}
}

func (l *lines) start(context.Context, component.Host) error {
	l.done = make(chan struct{})
	go l.run()
	return nil
}

// put queues a line, or rejects the batch if the reader has stalled. exporterhelper counts it.
func (l *lines) put(line []byte, err error) error {
	if err != nil {
		return err
	}
	select {
	case l.waiting <- append(line, '\n'):
		return nil
	default:
		return errors.New("standard output is not being read: batch discarded")
	}
}

// run writes lines until shutdown has been called and no line waits, or until a write has failed:
// the owner of the stream stops the agent then.
func (l *lines) run() {
	defer close(l.done)
	for {
		var line []byte
		select {
		case line = <-l.waiting:
		default:
			select {
			case line = <-l.waiting:
			case <-l.stop:
				return
			}
		}
		if err := l.to.write(line); err != nil {
			return
		}
	}
}

// shutdown writes what waits, unless the reader has stalled.
func (l *lines) shutdown(context.Context) error {
	close(l.stop)
	if l.done == nil {
		return nil
	}
	select {
	case <-l.done:
	case <-l.to.patience():
	}
	return nil
}
