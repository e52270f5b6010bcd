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
	pollFile   = 2 * time.Second        // how often the file is checked
	settleFile = 200 * time.Millisecond // how long a changed file must stay unchanged
)

// configFile is a configuration file that may change while the agent runs. The Collector sees
// only valid changes: it would exit on an invalid one.
type configFile struct {
	path  string
	check func(context.Context, []byte) error
	log   *zap.Logger

	mu       sync.Mutex
	running  []byte // what the Collector runs or is about to load
	previous []byte // what ran before; nil: no rollback possible
	refused  []byte // logged as invalid
	changed  confmap.WatcherFunc
}

func openConfigFile(path string, check func(context.Context, []byte) error, log *zap.Logger) (*configFile, error) {
	text, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	return &configFile{path: path, check: check, log: log, running: text}, nil
}

// retrieve implements retriever.
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

// watch polls the file until ctx is canceled, and checks it immediately on a signal from now.
func (c *configFile) watch(ctx context.Context, now <-chan os.Signal) {
	poll := time.NewTicker(pollFile)
	defer poll.Stop()
	seen, _ := os.Stat(c.path) // nil if the file is missing: it has changed once it is back
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
		for err == nil && ctx.Err() == nil { // the file may still be written
			seen = st
			time.Sleep(settleFile)
			if st, err = os.Stat(c.path); sameFile(seen, st) {
				break
			}
		}
		select {
		case <-now: // came while the file settled: this reading answers it
			asked = true
		default:
		}
		asked = !c.reload(ctx, asked)
	}
}

func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// reload makes the Collector load the file if it is valid. If asked, it does so even if the
// file is unchanged, because files and variables that it refers to may have changed. It
// reports whether it is done; if not, it must be called again.
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
		c.log.Error("The changed configuration is not valid: the agent keeps the current one", logging.Reason(err))
		return true
	}
	if c.changed == nil { // a reload is in progress
		return false
	}
	c.previous, c.running, c.refused = c.running, text, nil
	c.log.Info("Reloading the configuration")
	c.changed(&confmap.ChangeEvent{})
	c.changed = nil // the next retrieve sets it
	return true
}

// recover reports whether to restart a Collector that failed with err, after a change that
// passed validation but could not start, such as a port in use or a missing file.
func (c *configFile) recover(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.previous == nil {
		return false
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "failed to setup configuration components: "):
		c.refused, c.running, c.previous = c.running, c.previous, nil
		c.log.Error("The changed configuration failed to start: the agent returns to the previous one", logging.Reason(explained(errors.Unwrap(err))))
		return true
	case strings.HasPrefix(text, "failed to shutdown the retiring config: "):
		c.previous = nil
		c.log.Warn("The old configuration did not shut down cleanly", logging.Reason(explained(errors.Unwrap(err))))
		return true
	}
	return false
}

// run runs a Collector, and restarts it as long as recover allows.
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

// takeHangup takes SIGHUP over from a running Collector, which would shut down the pipelines
// before it reads the file. A signal that arrives earlier does no harm, because retrieve
// returns only valid configurations.
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
	case <-time.After(20 * time.Millisecond): // the Collector calls Notify right after it enters StateRunning
		signal.Ignore(syscall.SIGHUP) // which undoes every Notify
		signal.Notify(c, syscall.SIGHUP)
	}
}
