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
	nodes, err := o.simulate(to)
	defer func() { err = errors.Join(err, closeAll(nodes)) }()
	if err != nil {
		return err
	}
	seed(ctx, nodes, steps(o.Now(), o.History))
	tickAll(ctx, nodes, o.Now())
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
			tickAll(ctx, nodes, o.Now())
		}
	}
}

// real returns the configuration for reading the devices of this machine.
func (o *Options) real() local.Config {
	c := o.Local
	c.Interval, c.SlowInterval = Interval, Interval
	return c
}

// simulate returns the simulated nodes.
func (o *Options) simulate(to Sink) ([]*Node, error) {
	var nodes []*Node
	for _, m := range Fleet()[:o.Nodes] {
		n, err := NewNode(m, o.Now().Add(-Age).Truncate(time.Second), to, zap.NewNop())
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func closeAll(nodes []*Node) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
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
