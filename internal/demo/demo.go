//go:build linux

// Package demo is the fleet that gpumeter demo shows: simulated nodes of several vendors and
// schedulers, with a history and with things to find in it. Run lets the fleet live into
// the store of a hub, through the same receivers that an agent has, and reads the devices
// of this machine beside it.
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

// Interval is the time between two readings of the demo.
const Interval = 5 * time.Second

// Options say how much of the fleet is shown.
type Options struct {
	Nodes   int           // how many of Fleet
	History time.Duration // how much of the past is simulated
	Local   local.Config  // how the devices of this machine are read
	Now     func() time.Time
}

// Sight is something to find in the fleet.
type Sight struct {
	Node string // that has it
	Name string
	Text string
}

// Sights returns what there is to find.
func Sights() []Sight {
	return []Sight{
		{"h100-02", "the idle hoarder", "team vision holds 8 H100 on h100-02 and does nothing with them"},
		{"h100-01", "the thief", "notebooks/mallory uses GPU 5 of h100-01, which was given to inference/chat-api"},
		{"h200-01", "the sick GPU", "GPU 7 of h200-01 has memory errors, XIDs and too little air"},
		{"a100-01", "the careless job", "md-sweep of Slurm was given 4 GPUs of a100-01 and uses 1"},
	}
}

// Run lets the fleet live into a store until ctx ends. It calls ready once the store has
// the history: beside is the name of this machine if it has devices, else empty.
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
	if ctx.Err() != nil { // both may be ready
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
			_ = n.run(ctx) // what it could not release ends with us
			_ = n.Close()  // which never fails
		})
		name, _ := os.Hostname() // it is only said
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

// real returns how to read the devices of this machine.
func (o *Options) real() local.Config {
	c := o.Local
	c.Interval, c.SlowInterval = Interval, Interval
	return c
}

// simulate returns the nodes of the fleet.
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

// Into returns a sink that writes into the store of a hub.
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
