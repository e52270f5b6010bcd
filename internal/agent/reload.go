//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/logging"
)

const (
	pollFile   = 2 * time.Second        // between two looks at the file
	settleFile = 200 * time.Millisecond // for which a file that changed must rest
)

// configFile is a configuration that may change while it runs. The Collector sees a
// change only if it is valid: with an invalid one it would end.
type configFile struct {
	path  string
	check func(context.Context, []byte) error
	log   *zap.Logger

	mu       sync.Mutex
	running  []byte // what the Collector has or is about to get
	previous []byte // what ran before; nil: nothing, or nobody may go back
	refused  []byte // was said to be invalid
	changed  confmap.WatcherFunc
}

func openConfigFile(path string, check func(context.Context, []byte) error, log *zap.Logger) (*configFile, error) {
	text, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	return &configFile{path: path, check: check, log: log, running: text}, nil
}

// retrieve is a retriever.
func (c *configFile) retrieve(changed confmap.WatcherFunc) (*confmap.Retrieved, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = changed
	return confmap.NewRetrievedFromYAML(c.running, confmap.WithRetrievedClose(func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed = nil // calling it would panic
		return nil
	}))
}

// watch looks at the file until ctx ends, and at once when somebody sends on now.
func (c *configFile) watch(ctx context.Context, now <-chan os.Signal) {
	poll := time.NewTicker(pollFile)
	defer poll.Stop()
	seen, _ := os.Stat(c.path) // nil is a file that changes when it is there again
	asked := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-now:
			asked = true
		case <-poll.C:
		}
		st, err := os.Stat(c.path)
		if !asked && (err != nil || sameFile(seen, st)) {
			continue
		}
		for err == nil && ctx.Err() == nil { // somebody may still be writing
			seen = st
			time.Sleep(settleFile)
			if st, err = os.Stat(c.path); sameFile(seen, st) {
				break
			}
		}
		asked = !c.reload(ctx, asked)
	}
}

func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// reload makes the Collector run what is in the file now, if it is valid. If asked it
// does so even if nothing changed: what the file refers to may have. It reports whether
// it is done with the file; if not it must be called again.
func (c *configFile) reload(ctx context.Context, asked bool) bool {
	text, err := readConfig(c.path)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		if !asked && (bytes.Equal(text, c.running) || bytes.Equal(text, c.refused)) {
			return true
		}
		err = c.check(ctx, text)
	}
	if ctx.Err() != nil {
		return true
	}
	if err != nil {
		c.refused = text
		c.log.Error("The changed configuration is not valid: the agent goes on with the one it has", logging.Reason(err))
		return true
	}
	if c.changed == nil { // it is just being replaced
		return false
	}
	c.previous, c.running, c.refused = c.running, text, nil
	c.log.Info("reloading the configuration")
	c.changed(&confmap.ChangeEvent{})
	c.changed = nil // the next retrieve brings another
	return true
}

// recover reports whether a Collector that ended with err may be started again, after a
// change that passed every check but could not run: a port is taken, a file is missing.
func (c *configFile) recover(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.previous == nil {
		return false
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "failed to setup configuration components: "):
		c.refused, c.running, c.previous = c.running, c.previous, nil
		c.log.Error("The changed configuration cannot run: the agent goes back to the one before", logging.Reason(explained(errors.Unwrap(err))))
		return true
	case strings.HasPrefix(text, "failed to shutdown the retiring config: "):
		c.previous = nil
		c.log.Warn("The old configuration did not end well", logging.Reason(explained(errors.Unwrap(err))))
		return true
	}
	return false
}

// run runs Collectors of its configuration until one ends for good.
func (c *configFile) run(ctx context.Context, collector func(confmap.ProviderFactory) (*otelcol.Collector, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	hangup := newHangup()
	var done sync.WaitGroup
	defer func() {
		cancel()
		done.Wait()
		signal.Stop(hangup)
	}()
	done.Go(func() { c.watch(ctx, hangup) })
	for {
		col, err := collector(retriever(c.retrieve).source())
		if err != nil {
			return err
		}
		done.Go(func() { takeHangup(ctx, col, hangup) })
		if err = col.Run(ctx); err == nil || !c.recover(err) {
			return err
		}
	}
}

func newHangup() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c
}

// takeHangup takes SIGHUP away from a Collector once it runs: it would end the pipelines
// before it looks at the file. Should the signal come first, no harm is done, for
// retrieve has only what is valid.
func takeHangup(ctx context.Context, col *otelcol.Collector, c chan os.Signal) {
	for col.GetState() == otelcol.StateStarting {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond): // it asks for signals right after it runs
		signal.Ignore(syscall.SIGHUP) // which undoes every Notify
		signal.Notify(c, syscall.SIGHUP)
	}
}
