//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/selfreceiver"
)

// defaultListen is where the page is served: for this machine only.
const defaultListen = "localhost:9400"

type agent struct {
	hardware
	identity
	scheduler
	sinks
	tracing
	version  string
	config   string
	listen   string
	interval time.Duration
	slow     time.Duration
	pcie     bool
	once     bool
	output   string
	logLevel string
	socket   string
	stateDir string
	expect   int
	print    bool

	env        func(string) string // variables of the environment
	store      hubexporter.Opener  // of a hub in this process; nil: there is none
	attributes map[string]string   // of the resource, see identify
}

func newAgent(version string) *cobra.Command {
	a := &agent{version: version, env: os.Getenv}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Read this machine's accelerators and export metrics",
		Long: `Read this machine's accelerators and export metrics.

Without --config it serves a Prometheus page at http://` + defaultListen + `/metrics, and
sends OTLP to the endpoint that --otlp-endpoint or OTEL_EXPORTER_OTLP_ENDPOINT names.
A configuration file is that of an OpenTelemetry Collector; gpumeter components lists
what it may use.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.check(cmd); err != nil {
				return err
			}
			if a.print {
				return a.printConfig(cmd.Context())
			}
			if a.once {
				return once(cmd.Context(), a.local(), a.output)
			}
			return a.run(cmd.Context(), nil)
		},
	}
	a.hardware.register(cmd)
	a.identity.register(cmd)
	a.scheduler.register(cmd)
	a.sinks.register(cmd)
	a.tracing.register(cmd)
	f := cmd.Flags()
	f.StringVarP(&a.config, "config", "c", "", "Collector configuration `FILE`")
	f.StringVar(&a.listen, "listen", defaultListen, "address of the Prometheus page")
	f.DurationVar(&a.interval, "interval", local.DefaultInterval, "time between two readings, 100ms to 5m")
	f.DurationVar(&a.slow, "slow-interval", local.DefaultSlowInterval, "time between two readings of values that are slow to get or rarely change")
	f.BoolVar(&a.pcie, "pcie-throughput", true, "measure PCIe traffic on NVIDIA GPUs before Hopper, which keeps the driver busy for 40 ms every 30 s")
	f.BoolVar(&a.once, "once", false, "read once, print and end")
	f.StringVarP(&a.output, "output", "o", "table", "format of --once: table, json or prometheus")
	f.StringVar(&a.socket, "socket", defaultSocket(), "socket at which gpumeter pause finds this agent; empty for none")
	f.StringVar(&a.stateDir, "state-dir", defaultState(), "`FOLDER` for what must survive the agent; empty for none")
	f.IntVar(&a.expect, "expect", 0, "how many devices the machine should have: fewer are a finding (default: those it has had since it was booted)")
	f.BoolVar(&a.print, "print-config", false, "print the Collector configuration that would run, without secrets, and end")
	registerLogLevel(cmd, &a.logLevel)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check refuses combinations of flags that would silently do something else.
func (a *agent) check(cmd *cobra.Command) error {
	if err := checkOutput(a.output); err != nil {
		return err
	}
	if cmd.Flags().Changed("output") && !a.once {
		return errors.New("--output is the format of --once: add it, or leave --output out")
	}
	for _, flag := range slices.Concat(sinkFlags, schedulerFlags, tracingFlags) {
		if a.once && cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s has no effect with --once, which only prints", flag)
		}
	}
	if a.config == "" {
		if err := a.identify(a.env); err != nil {
			return err
		}
		if err := a.readable(a.env); err != nil {
			return err
		}
		kind, _, err := a.exporter(logs, a.env)
		if err != nil {
			return err
		}
		if err := a.scheduler.check(kind != "" || a.file != "" || a.store != nil); err != nil {
			return err
		}
		return a.local().Validate()
	}
	decided := []string{"listen", "interval", "slow-interval", "pcie-throughput", "nvidia-library", "gaudi-library", "neuron-monitor", "root", "host-name", "simulate", "state-dir", "expect", "once"}
	for _, flag := range slices.Concat(decided, identityFlags, schedulerFlags, sinkFlags, tracingFlags, workloadFlags) {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s has no effect with --config: set it in %s", flag, a.config)
		}
	}
	return nil
}

func (a *agent) local() local.Config {
	c := a.hardware.config()
	c.Interval, c.SlowInterval, c.NoPCIeThroughput = a.interval, a.slow, !a.pcie
	c.Workloads.Node = cmp.Or(a.attributes["k8s.node.name"], c.Workloads.Node)
	c.Expected = a.expect
	c.Resource, c.Cloud = a.attributes, !a.noCloud && !a.once && a.simulate == ""
	return c
}

// source returns the configuration of an agent without a file. queue is where it may
// keep what waits to be sent.
func (a *agent) source(queue string) (confmap.ProviderFactory, error) {
	conf, err := a.defaults(a.env, queue)
	if err != nil {
		return nil, err
	}
	return fromMap(conf), nil
}

// queue takes the folder for what waits to be sent, if anything is sent at all, until
// release is called. Without one the agent runs, too.
func (a *agent) queue(log *zap.Logger) (dir string, release func(), err error) {
	push, err := a.pushes(a.env)
	if err != nil || !push {
		return "", func() {}, err
	}
	dir, lock, err := takeFolder(a.stateDir, "queue")
	if err != nil {
		log.Warn("What an OTLP endpoint does not take waits in memory and is lost with the agent", zap.String("reason", oneLine(err)))
		return "", func() {}, nil
	}
	return dir, func() { lock.Close() }, nil
}

func (a *agent) printConfig(ctx context.Context) error {
	if a.config != "" {
		text, err := readConfig(a.config)
		if err != nil {
			return err
		}
		return printConfig(ctx, os.Stdout, fromText(text), true)
	}
	queue := ""
	if a.stateDir != "" {
		queue = filepath.Join(a.stateDir, "queue")
	}
	source, err := a.source(queue)
	if err != nil {
		return err
	}
	return printConfig(ctx, os.Stdout, source, false)
}

// run runs the agent until ctx ends. ready, if any, is called after each tick.
func (a *agent) run(ctx context.Context, ready func(node.Tick)) error {
	hide := &redactor{}
	if a.config == "" && !a.receiver && a.store == nil {
		beGuest(1) // its own ticks and nobody else's: a third less than with four
	}
	log, err := newLogger(a.logLevel, hide)
	if err != nil {
		return err
	}
	defer forgetStart(30 * time.Second)()
	live := &liveView{ctx: ctx, log: log, ready: ready, relay: newRelay()}
	defer live.close()
	stop, unreachable := a.control(ctx, live, log)
	defer stop()
	if unreachable != nil { // it still measures
		live.started = func() {
			log.Info("gpumeter pause cannot reach this agent", zap.String("reason", oneLine(unreachable)))
		}
	}
	meter := &selfreceiver.Meter{}
	collector := func(source confmap.ProviderFactory) (*otelcol.Collector, error) {
		return newCollector(a.version, source, live.open, a.store, meter, log, hide.converter())
	}
	if a.config != "" {
		file, err := openConfigFile(a.config, func(ctx context.Context, text []byte) error { return validateText(ctx, a.version, text) }, log)
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
func (a *agent) control(ctx context.Context, live *liveView, log *zap.Logger) (stop func(), err error) {
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
				if err := live.pause(ctx, defaultPause); err != nil {
					log.Warn("Cannot pause", zap.String("reason", oneLine(err)))
				}
			}
		}
	})
	if a.socket != "" {
		err = serveControl(ctx, &done, a.socket, live)
	}
	return func() {
		signal.Stop(usr1)
		cancel()
		done.Wait()
	}, err
}
