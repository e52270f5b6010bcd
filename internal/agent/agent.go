//go:build linux

// Package agent makes an agent out of the OpenTelemetry Collector: the list of components
// it may use, the configuration that its options amount to, the one View of the devices
// that outlives every reload, and the socket at which gpumeter pause reaches it. It reads
// no flags and no environment variables of its own: Options carries both.
package agent

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/redact"
	"github.com/gpumeter/gpumeter/receiver/selfreceiver"
)

// Options say what an agent reads and where its telemetry goes. Messages about them name
// the flags of gpumeter agent.
type Options struct {
	Version string
	// ConfigFile is a Collector configuration. With one, only Version, Socket and Env count:
	// the file decides the rest.
	ConfigFile string

	Local     local.Config // how devices are read
	Identity  Identity
	Scheduler Scheduler
	OTLP      OTLP
	Listen    string // address of the Prometheus page
	File      string // to which OTLP is written, too; "-" is standard output
	QueueSize int64  // bytes of each signal that may wait for an OTLP endpoint; 0: the default
	Receiver  bool   // take OTLP of applications
	Trace     bool   // trace CUDA and NCCL
	Socket    string // at which gpumeter pause finds the agent; empty: none
	StateDir  string // folder of what must survive the agent; empty: none

	Env   func(string) string // variables of the environment
	Store hubexporter.Opener  // of a hub in this process; nil: there is none
}

// Agent is an agent that may run.
type Agent struct {
	Options

	attributes map[string]string // of the resource
}

// New returns the agent that o describes.
func New(o Options) (*Agent, error) {
	a := &Agent{Options: o}
	if a.ConfigFile != "" {
		return a, nil
	}
	if err := a.identify(); err != nil {
		return nil, err
	}
	return a, nil
}

// Check refuses options that cannot work. It reads files that options name, and touches no
// device.
func (a *Agent) Check() error {
	if a.ConfigFile != "" {
		return nil
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

// DeviceConfig returns how devices are read, with the identity of the machine.
func (a *Agent) DeviceConfig() local.Config {
	c := a.Local
	c.Workloads.Node = cmp.Or(a.attributes["k8s.node.name"], c.Workloads.Node)
	c.Resource = a.attributes
	return c
}

// source returns the configuration of an agent without a file. queue is the folder for
// what waits to be sent; empty: it waits in memory.
func (a *Agent) source(queue string) (confmap.ProviderFactory, error) {
	conf, err := a.config(queue)
	if err != nil {
		return nil, err
	}
	return fromMap(conf), nil
}

// queue takes the folder for what waits to be sent, if anything is sent at all, until
// release is called. Without a folder the agent still runs.
func (a *Agent) queue(log *zap.Logger) (dir string, release func(), err error) {
	push, err := a.OTLP.pushes(a.Env)
	if err != nil || !push {
		return "", func() {}, err
	}
	dir, lock, err := takeFolder(a.StateDir, "queue")
	if err != nil {
		log.Warn("What an OTLP endpoint does not take waits in memory and is lost with the agent", logging.Reason(err))
		return "", func() {}, nil
	}
	return dir, func() { lock.Close() }, nil
}

// WriteConfig writes the Collector configuration that would run to w, without secrets.
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

// Run runs the agent until ctx ends. hide is what log writes through: it learns the secrets
// of each configuration that runs.
func (a *Agent) Run(ctx context.Context, log *zap.Logger, hide *redact.Redactor) error {
	return explained(a.run(ctx, log, hide))
}

func (a *Agent) run(ctx context.Context, log *zap.Logger, hide *redact.Redactor) error {
	defer forgetStart(30 * time.Second)()
	live := &liveView{ctx: ctx, log: log, relay: newRelay()}
	defer live.close()
	stop, unreachable := a.control(ctx, live, log)
	defer stop()
	if unreachable != nil { // it still measures
		live.started = func() {
			log.Info("gpumeter pause cannot reach this agent", logging.Reason(unreachable))
		}
	}
	meter := &selfreceiver.Meter{}
	collector := func(source confmap.ProviderFactory) (*otelcol.Collector, error) {
		return newCollector(a.Version, source, live.open, a.Store, meter, log, learning(hide))
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

// control offers pausing over the socket and by SIGUSR1, until the returned function
// is called. The error is why the socket does not work.
func (a *Agent) control(ctx context.Context, live *liveView, log *zap.Logger) (stop func(), err error) {
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
		err = serveControl(ctx, &done, a.Socket, live)
	}
	return func() {
		signal.Stop(usr1)
		cancel()
		done.Wait()
	}, err
}
