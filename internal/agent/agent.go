//go:build linux

// Package agent builds the agent on top of the OpenTelemetry Collector: the list of available
// components, the configuration derived from the options, the single View of the devices that
// outlives every reload, and the control socket for gpumeter pause. It reads neither flags nor
// the environment: Options carries both.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/folder"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/redact"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver"
	"github.com/gpumeter/gpumeter/receiver/selfreceiver"
)

// Options configures what an agent reads and where its telemetry goes. Error messages name
// the flags of gpumeter agent.
type Options struct {
	Version string
	// ConfigFile is a Collector configuration. If set, only Version, Socket, NoStandby, Env and Stdout
	// apply: the file sets the rest.
	ConfigFile string

	Local     local.Config // how devices are read
	Identity  Identity
	Scheduler Scheduler
	OTLP      OTLP
	Listen    string // address of the Prometheus page
	File      string // also write OTLP to this file; "-" is standard output
	QueueSize int64  // maximum size of the send queue of each signal in bytes; 0: the default
	Receiver  bool   // accept OTLP from applications
	Spans     string // what the spans of applications get: a vocabulary of the gpuspan processor, or SpansOff
	Inference Inference
	Trace     bool   // trace CUDA and NCCL
	TraceKeep string // folder on a bpf file system in which probes outlive the agent; empty: none
	Socket    string // control socket for gpumeter pause; empty: none
	StateDir  string // folder for state that must survive a restart; empty: none
	// NoStandby: read devices even if another agent of this machine does.
	NoStandby bool

	Env    func(string) string // looks up environment variables
	Stdout io.Writer           // standard output, for File "-" and the stdout exporter
	Store  hubexporter.Opener  // store of a hub in this process; nil: no hub
}

// SpansOff leaves the spans of applications as they are.
const SpansOff = "off"

// Spans returns the values of Options.Spans, the default first.
func Spans() []string { return []string{"gpumeter", "guide", "both", SpansOff} }

// Agent is a configured agent. Run runs it.
type Agent struct {
	Options

	attributes map[string]string // resource attributes
}

// New returns the agent that o describes.
func New(o Options) (*Agent, error) {
	a := &Agent{Options: o}
	a.Spans = cmp.Or(a.Spans, Spans()[0])
	if a.ConfigFile != "" {
		return a, nil
	}
	if err := a.identify(); err != nil {
		return nil, err
	}
	return a, nil
}

// Check rejects options that cannot work. It reads the files that the options name, and
// accesses no device.
func (a *Agent) Check() error {
	if a.ConfigFile != "" {
		return nil
	}
	if !slices.Contains(Spans(), a.Spans) {
		return fmt.Errorf("--otlp-spans: must be one of %s, not %q", strings.Join(Spans(), ", "), a.Spans)
	}
	if err := a.OTLP.readable(a.Env); err != nil {
		return err
	}
	kind, _, err := a.OTLP.exporter(logs, a.Env)
	if err != nil {
		return err
	}
	if err := a.Scheduler.check(kind != "" || a.File != "" || a.Store != nil); err != nil {
		return err
	}
	return a.DeviceConfig().Validate()
}

// DeviceConfig returns the configuration for reading devices, including the identity of the
// machine.
func (a *Agent) DeviceConfig() local.Config {
	c := a.Local
	c.Workloads.Node = cmp.Or(a.attributes["k8s.node.name"], c.Workloads.Node)
	c.Resource = a.attributes
	return c
}

// source returns the configuration of an agent without a configuration file. queue is the
// folder of the send queue; empty: the queue is in memory.
func (a *Agent) source(queue string) (confmap.ProviderFactory, error) {
	conf, err := a.config(queue)
	if err != nil {
		return nil, err
	}
	return fromMap(conf), nil
}

// queue locks the folder of the send queue until release is called. dir is empty if nothing
// is pushed, or if there is no usable folder: the agent then queues in memory.
func (a *Agent) queue(log *zap.Logger) (dir string, release func(), err error) {
	push, err := a.OTLP.pushes(a.Env)
	if err != nil || !push {
		return "", func() {}, err
	}
	dir, lock, err := takeFolder(a.StateDir, "queue")
	if err != nil {
		log.Warn("No send queue on disk: telemetry that an OTLP endpoint has not accepted is lost when the agent stops", logging.Reason(err))
		return "", func() {}, nil
	}
	return dir, func() {
		_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN) // a child that has not executed its program yet has the file, too
		lock.Close()
	}, nil
}

// WriteConfig writes the effective Collector configuration to w, without secrets.
func (a *Agent) WriteConfig(ctx context.Context, w io.Writer) error {
	if a.ConfigFile != "" {
		text, err := readConfig(a.ConfigFile)
		if err != nil {
			return err
		}
		return explained(printConfig(ctx, w, fromText(text), true))
	}
	queue := ""
	if a.StateDir != "" {
		queue = filepath.Join(a.StateDir, "queue")
	}
	source, err := a.source(queue)
	if err != nil {
		return err
	}
	return explained(printConfig(ctx, w, source, false))
}

// Run runs the agent until ctx is canceled. It adds the secrets of each running configuration
// to hide, which must be the redactor of log.
func (a *Agent) Run(ctx context.Context, log *zap.Logger, hide *redact.Redactor) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	out := &output{w: a.Stdout, failed: stop}
	err := explained(a.run(ctx, out, log, hide))
	return cmp.Or(out.failure(), err) // a Collector that is stopped while it starts has errors of its own
}

// output is a stream that remembers its first error, and stops the agent at it: an agent whose
// reader has gone has no purpose. A fatal status of the exporter would stop it, too, but not before
// all components have started: until then nobody receives such a status, and the Collector (v0.159.0)
// holds a lock meanwhile that the start needs.
type output struct {
	mu     sync.Mutex
	w      io.Writer
	failed func()
	err    error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err == nil {
		return n, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = cmp.Or(o.err, err)
	o.failed()
	return n, err
}

func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("cannot write to standard output: %w", o.err)
}

func (a *Agent) run(ctx context.Context, out io.Writer, log *zap.Logger, hide *redact.Redactor) error {
	end, err := a.alone(ctx, log) // before the agent opens a socket, a queue or a driver
	if err != nil || end == nil {
		return err
	}
	defer end()
	// Again and again, because what one step of the start needs, the next one does not. On a busy machine it takes many seconds.
	defer releaseStartup(0, time.Second/2, time.Second, 2*time.Second, 4*time.Second, 8*time.Second, 15*time.Second, 30*time.Second)()
	live := &liveView{ctx: ctx, log: log, relay: newRelay()}
	defer live.close()
	a.endTracing(log)
	trace := &cudareceiver.Switch{}
	stop, unreachable := a.control(ctx, live, trace, log)
	defer stop()
	if unreachable != nil { // without the socket the agent still measures
		live.started = func() {
			log.Info("No control socket: gpumeter pause and trace --stop cannot reach this agent", logging.Reason(unreachable))
		}
	}
	engines, err := local.Engines(a.DeviceConfig())
	if err != nil {
		return err
	}
	meter := &selfreceiver.Meter{}
	collector := func(source confmap.ProviderFactory) (*otelcol.Collector, error) {
		return newCollector(a.Version, source, process{live.open, a.Store, out, meter, trace, engines, log}, learning(hide))
	}
	if a.ConfigFile != "" {
		file, err := openConfigFile(a.ConfigFile, func(ctx context.Context, text []byte) error { return validate(ctx, a.Version, text) }, log)
		if err != nil {
			return err
		}
		return file.run(ctx, collector)
	}
	queue, release, err := a.queue(log)
	if err != nil {
		return err
	}
	defer release()
	if why := folder.Shared(a.StateDir); a.StateDir != "" && why != "" {
		log.Warn("Other users can change the state of the agent", zap.String("state_dir", a.StateDir), zap.String("reason", why))
	}
	if a.File != "" && a.File != "-" {
		if err := dropTruncated(a.File); err != nil {
			return err
		}
	}
	source, err := a.source(queue)
	if err != nil {
		return err
	}
	col, err := collector(source)
	if err != nil {
		return err
	}
	return col.Run(ctx)
}

// endTracing removes the probes of an earlier agent if this one does not trace.
func (a *Agent) endTracing(log *zap.Logger) {
	if a.ConfigFile != "" || a.Trace || a.TraceKeep == "" {
		return
	}
	found, err := cudareceiver.RemoveKept(a.TraceKeep)
	switch {
	case err != nil && !errors.Is(err, os.ErrPermission): // without permission, we cannot know whose they are
		log.Warn("Cannot remove the probes of an earlier agent", logging.Reason(err))
	case found && err == nil:
		log.Info("Removed the probes of an earlier agent: this one does not trace", zap.String("folder", a.TraceKeep))
	}
}

// control handles requests on the socket and SIGUSR1 until stop is called. The error is
// why the socket is unavailable.
func (a *Agent) control(ctx context.Context, live *liveView, trace *cudareceiver.Switch, log *zap.Logger) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	usr1 := make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1)
	done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-usr1:
				if err := live.pause(ctx, DefaultPause); err != nil {
					log.Warn("Cannot pause", logging.Reason(err))
				}
			}
		}
	})
	if a.Socket != "" {
		err = serveControl(ctx, &done, a.Socket, live, trace)
	}
	return func() {
		signal.Stop(usr1)
		cancel()
		done.Wait()
	}, err
}
