//go:build linux

// Package demo simulates the fleet of gpumeter demo: nodes of several vendors and schedulers,
// with a history and problems to find. Run writes the telemetry of the fleet to the store of
// a hub through the same receivers as an agent, and also reads the devices of this machine.
package demo

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/local"
)

// Interval is the time between readings of the demo.
const Interval = 5 * time.Second

// Options configures the demo.
type Options struct {
	Nodes   int           // number of nodes of Fleet
	History time.Duration // length of the simulated history
	Local   local.Config  // for the devices of this machine
	Now     func() time.Time
}

// Sight is a problem to find in the fleet.
type Sight struct {
	Node string // where the problem is
	Name string
	Text string
}

// Sights returns the problems of the fleet.
func Sights() []Sight {
	return []Sight{
		{"h100-02", "the idle hoarder", "team vision holds 8 H100 GPUs on h100-02 and leaves them idle"},
		{"h100-01", "the thief", "notebooks/mallory uses GPU 5 of h100-01, which is allocated to inference/chat-api"},
		{"h200-01", "the sick GPU", "GPU 7 of h200-01 has memory errors, XIDs and poor cooling"},
		{"a100-01", "the careless job", "Slurm job md-sweep holds 4 GPUs of a100-01 and uses 1"},
		{"h100-03", "the split pool", "vision/detector-train waits for 4 H100 while 4 are free: 3 on h100-03, 1 on h100-01"},
		{"mi300x-01", "the stranded", "research/eval-suite waits in front of 2 free GPUs of mi300x-01, which has no CPUs left"},
		{"mi300x-01", "the full cache", "inference/summarizer on 2 GPUs of mi300x-01: the cache is full, requests wait for minutes"},
	}
}

// Run writes the telemetry of the fleet to a store until ctx is canceled. It calls ready once
// the store has the history. beside is the name of this machine, empty if it has no devices.
func Run(ctx context.Context, o Options, store hubexporter.Store, ready func(beside string)) (err error) {
	has := make(chan bool, 1)
	go func() { has <- local.HasDevices(ctx, o.real()) }()
	to, err := Into(store)
	if err != nil {
		return err
	}
	all, err := o.simulate(to)
	defer func() { err = errors.Join(err, all.Close()) }()
	if err != nil {
		return err
	}
	all.seed(ctx, steps(o.Now(), o.History))
	all.tick(ctx, o.Now())
	var found bool
	select {
	case <-ctx.Done():
		return nil
	case found = <-has:
	}
	if ctx.Err() != nil { // select picks at random if both are ready
		return nil
	}
	var running sync.WaitGroup
	defer running.Wait()
	beside := ""
	if found {
		n, err := newNode(o.real(), to, zap.NewNop())
		if err != nil {
			return err
		}
		running.Go(func() {
			_ = n.run(ctx) // unreleased drivers are freed when the process exits
			_ = n.Close()  // never fails
		})
		name, _ := os.Hostname() // only for display
		beside = cmp.Or(name, "this machine")
	}
	ready(beside)
	clock := time.NewTicker(Interval)
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
			all.tick(ctx, o.Now())
		}
	}
}

// real returns the configuration for reading the devices of this machine.
func (o *Options) real() local.Config {
	c := o.Local
	c.Interval, c.SlowInterval = Interval, Interval
	return c
}

// simulate returns the simulated nodes and their scheduler.
func (o *Options) simulate(to Sink) (*simulation, error) {
	start := o.Now().Add(-Age).Truncate(time.Second)
	return newSimulation(Fleet()[:o.Nodes], start, o.Now().Add(-o.History), to)
}

// Into returns a sink that writes to the store of a hub.
func Into(store hubexporter.Store) (Sink, error) {
	w := hubexporter.NewWriter(store, nil)
	metrics, err := consumer.NewMetrics(func(ctx context.Context, md pmetric.Metrics) error {
		_, err := w.Metrics(ctx, md)
		return err
	})
	if err != nil {
		return Sink{}, err
	}
	logs, err := consumer.NewLogs(func(ctx context.Context, ld plog.Logs) error { return w.Logs(ctx, ld) })
	return Sink{metrics, logs}, err
}
