//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/extension/gpuextension"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
)

// defaultListen is where the page is served: for this machine only.
const defaultListen = "localhost:9400"

type agent struct {
	hardware
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
}

func newAgent(version string) *cobra.Command {
	a := &agent{version: version}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Read this machine's accelerators and export metrics",
		Long: `Read this machine's accelerators and export metrics.

Without --config it serves a Prometheus page at http://` + defaultListen + `/metrics. A
configuration file is that of an OpenTelemetry Collector; gpumeter components lists
what it may use.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.check(cmd); err != nil {
				return err
			}
			if a.once {
				return once(cmd.Context(), a.local(), a.output)
			}
			return a.run(cmd.Context(), nil)
		},
	}
	a.hardware.register(cmd)
	f := cmd.Flags()
	f.StringVarP(&a.config, "config", "c", "", "Collector configuration `FILE`")
	f.StringVar(&a.listen, "listen", defaultListen, "address of the Prometheus page")
	f.DurationVar(&a.interval, "interval", local.DefaultInterval, "time between two readings, 100ms to 5m")
	f.DurationVar(&a.slow, "slow-interval", local.DefaultSlowInterval, "time between two readings of values that are slow to get or rarely change")
	f.BoolVar(&a.pcie, "pcie-throughput", true, "measure PCIe traffic on NVIDIA GPUs before Hopper, which keeps the driver busy for 40 ms every 30 s")
	f.BoolVar(&a.once, "once", false, "read once, print and end")
	f.StringVarP(&a.output, "output", "o", "table", "format of --once: table, json or prometheus")
	f.StringVar(&a.socket, "socket", defaultSocket(), "socket at which gpumeter pause finds this agent; empty for none")
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
	if a.config == "" {
		return a.local().Validate()
	}
	for _, flag := range []string{"listen", "interval", "slow-interval", "pcie-throughput", "nvidia-library", "root", "host-name", "simulate", "once"} {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s has no effect with --config: set it in %s", flag, a.config)
		}
	}
	return nil
}

func (a *agent) local() local.Config {
	c := a.hardware.config()
	c.Interval, c.SlowInterval, c.NoPCIeThroughput = a.interval, a.slow, !a.pcie
	return c
}

// defaults is the Collector configuration of an agent without a file.
func (a *agent) defaults() map[string]any {
	c := a.local()
	return map[string]any{
		"extensions": map[string]any{"gpu": map[string]any{
			"interval":            c.Interval.String(),
			"slow_interval":       c.SlowInterval.String(),
			"host_name":           c.Host,
			"root":                c.Root,
			"nvidia_library":      c.NVIDIALibrary,
			"nvidia_library_dirs": c.LibraryDirs,
			"pcie_throughput":     a.pcie,
			"simulate":            c.Simulate,
		}},
		"receivers": map[string]any{"gpu": nil},
		"exporters": map[string]any{"page": map[string]any{"endpoint": a.listen}},
		"service": map[string]any{
			"extensions": []any{"gpu"},
			"pipelines": map[string]any{"metrics": map[string]any{
				"receivers": []any{"gpu"},
				"exporters": []any{"page"},
			}},
		},
	}
}

// run runs the agent until ctx ends. ready, if any, is called after each tick.
func (a *agent) run(ctx context.Context, ready func(node.Tick)) error {
	log, err := newLogger(a.logLevel)
	if err != nil {
		return err
	}
	live := &liveView{ctx: ctx, log: log, ready: ready}
	defer live.close()
	stop, unreachable := a.control(ctx, live, log)
	defer stop()
	if unreachable != nil { // it still measures
		live.started = func() {
			log.Info("gpumeter pause cannot reach this agent", zap.String("reason", oneLine(unreachable)))
		}
	}
	uri := ""
	if a.config != "" {
		uri = "file:" + a.config
	}
	col, err := newCollector(a.version, uri, a.defaults(), live.open, log)
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

// liveView is the one View of the process. It is opened by the first extension that
// asks and outlives every reload of the pipelines.
type liveView struct {
	ctx   context.Context //nolint:containedctx // the life of the process, not of a call
	log   *zap.Logger
	ready func(node.Tick)
	// started is called when the clock starts; nil: nobody cares.
	started func()

	mu    sync.Mutex
	cfg   local.Config
	view  *node.View
	start func()
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// open implements gpuextension.Opener.
func (l *liveView) open(cfg local.Config) (view *node.View, start func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.view != nil {
		if !sameConfig(cfg, l.cfg) {
			l.log.Warn("Changes of extensions::gpu take effect when the agent is restarted")
		}
		return l.view, l.start, nil
	}
	view, err = local.Open(cfg, func(n node.Notice) { gpuextension.Log(l.log, n) })
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.ctx)) // the pipelines end first
	l.view, l.cfg, l.stop = view, cfg, cancel
	if l.ready != nil {
		ticks, unsubscribe := view.Subscribe()
		l.done.Go(func() {
			for t := range ticks {
				l.ready(t)
			}
		})
		context.AfterFunc(ctx, unsubscribe)
	}
	l.start = sync.OnceFunc(func() {
		if l.started != nil {
			l.started()
		}
		if cfg.Simulate != "" {
			l.log.Warn("SIMULATED devices: none of these numbers are real", zap.String("model", cfg.Simulate))
		}
		l.done.Go(func() {
			if err := view.Run(ctx); err != nil {
				l.log.Warn("Cannot release the drivers", zap.String("reason", oneLine(err)))
			}
		})
	})
	return l.view, l.start, nil
}

func sameConfig(a, b local.Config) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

func (l *liveView) pause(ctx context.Context, d time.Duration) error {
	l.mu.Lock()
	view := l.view
	l.mu.Unlock()
	if view == nil {
		return errors.New("the agent has not started yet")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return view.Pause(ctx, time.Now(), d)
}

func (l *liveView) close() {
	l.mu.Lock()
	stop := l.stop
	l.mu.Unlock()
	if stop != nil {
		stop()
		l.done.Wait()
	}
}
