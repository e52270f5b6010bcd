//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/hub/server"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// demoInterval is the time between two readings of the demo.
const demoInterval = 5 * time.Second

// demo is a simulated fleet, a hub and its page in one process.
type demo struct {
	hardware
	version string
	listen  string
	nodes   int
	history time.Duration
	dir     string // where the data of the hub is kept until the end
	prices  string // file of the examples, while it runs
	now     func() time.Time
}

func newDemo(version string) *cobra.Command {
	d := &demo{version: version, now: time.Now}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See gpumeter work: a simulated fleet, its hub and page, and this machine's devices beside it",
		Long: `See gpumeter work, with or without a GPU: a simulated fleet of several vendors and
schedulers with a day of history, the hub that keeps it and the page that shows it. The
devices of this machine, if it has some, are beside the simulated ones.

Nothing leaves this machine, and nothing is left on it.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.check(); err != nil {
				return err
			}
			// A terminal or an ssh that goes away ends it, too, and leaves no data behind.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
			defer stop()
			return d.run(ctx, os.Stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.listen, "listen", "localhost:9500", "address of the page, of this machine only")
	f.IntVar(&d.nodes, "nodes", len(demoFleet()), "how many nodes to simulate")
	f.DurationVar(&d.history, "history", 24*time.Hour, "how much of the past to simulate, up to 36h")
	f.StringVar(&d.library, "nvidia-library", "", "path of libnvidia-ml.so.1, for the devices of this machine (default: search the usual places)")
	return cmd
}

func (d *demo) check() error {
	if most := len(demoFleet()); d.nodes < 1 || d.nodes > most {
		return fmt.Errorf("--nodes must be between 1 and %d, is %d", most, d.nodes)
	}
	if d.history < 0 || d.history > 36*time.Hour {
		return fmt.Errorf("--history must be between 0 and 36h, is %s", d.history)
	}
	host, _, err := net.SplitHostPort(d.listen)
	if err != nil {
		return fmt.Errorf("--listen must be like localhost:9500, is %q", d.listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen must be of this machine only, such as localhost:9500, is %s: the demo asks nobody for a token", d.listen)
	}
	// A library that was named must be one.
	_, err = local.Open(d.real(), nil)
	return err
}

// run shows the demo until ctx ends.
func (d *demo) run(ctx context.Context, w io.Writer) (err error) {
	log, err := newLogger("error", &redact.Redactor{}) // the store warns of what it does about a day that comes at once
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(d.dir, "gpumeter-demo-")
	if err != nil {
		return fmt.Errorf("cannot make a folder for the data: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if d.listen, err = withPort(ctx, d.listen); err != nil {
		return err
	}
	h := server.Options{
		Version: d.version, Listen: d.listen, Dir: filepath.Join(dir, "hub"), Retention: 3 * 24 * time.Hour, Title: "Demo", Prices: filepath.Join(dir, "prices.yaml"),
	}
	d.prices = h.Prices
	if err := os.WriteFile(h.Prices, demoPrices, 0o600); err != nil {
		return fmt.Errorf("cannot write the prices: %w", err)
	}
	beServer()
	s, err := server.Start(ctx, h, log)
	if err != nil {
		return err
	}
	return s.Run(ctx, func(ctx context.Context) error { return d.show(ctx, w, s.Store()) })
}

// withPort returns an address whose port is one that is free, if it has none.
func withPort(ctx context.Context, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port != "0" {
		return address, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	_, port, err = net.SplitHostPort(l.Addr().String())
	return net.JoinHostPort(host, port), errors.Join(err, l.Close())
}

// show lets the fleet live into a store until ctx ends.
func (d *demo) show(ctx context.Context, w io.Writer, store hubexporter.Store) (err error) {
	has := make(chan bool, 1)
	go func() { has <- local.HasDevices(ctx, d.real()) }()
	to, err := demoWriter(hubexporter.NewWriter(store, nil))
	if err != nil {
		return err
	}
	nodes, err := d.simulate(to)
	defer func() { err = errors.Join(err, closeDemo(nodes)) }()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Simulating the last %s of %d nodes, for http://%s/ ...\n", shortDuration(d.history), len(nodes), d.listen)
	seedDemo(ctx, nodes, demoSteps(d.now(), d.history))
	tickAll(ctx, nodes, d.now())
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
		n, err := newDemoNode(d.real(), to, zap.NewNop())
		if err != nil {
			return err
		}
		running.Go(func() {
			_ = n.run(ctx) // what it could not release ends with us
			_ = n.close()  // which never fails
		})
		name, _ := os.Hostname() // it is only said
		beside = cmp.Or(name, "this machine")
	}
	d.welcome(w, beside)
	clock := time.NewTicker(demoInterval)
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
			tickAll(ctx, nodes, d.now())
		}
	}
}

// real returns how to read the devices of this machine.
func (d *demo) real() local.Config {
	c := d.config()
	c.Interval, c.SlowInterval = demoInterval, demoInterval
	return c
}

// simulate returns the nodes of the fleet.
func (d *demo) simulate(to demoSink) ([]*demoNode, error) {
	var nodes []*demoNode
	for _, m := range demoFleet()[:d.nodes] {
		n, err := newSimulatedNode(m, d.now().Add(-demoAge).Truncate(time.Second), to, zap.NewNop())
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func closeDemo(nodes []*demoNode) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// demoWriter returns the hub as the end of a pipeline.
func demoWriter(w *hubexporter.Writer) (demoSink, error) {
	metrics, err := consumer.NewMetrics(func(ctx context.Context, md pmetric.Metrics) error {
		_, err := w.Metrics(ctx, md)
		return err
	})
	if err != nil {
		return demoSink{}, err
	}
	logs, err := consumer.NewLogs(func(ctx context.Context, ld plog.Logs) error { return w.Logs(ctx, ld) })
	return demoSink{metrics, logs}, err
}

// demoSights are what there is to find, by the node that has it.
var demoSights = []struct{ node, name, text string }{
	{"h100-02", "the idle hoarder", "team vision holds 8 H100 on h100-02 and does nothing with them"},
	{"h100-01", "the thief", "notebooks/mallory uses GPU 5 of h100-01, which was given to inference/chat-api"},
	{"h200-01", "the sick GPU", "GPU 7 of h200-01 has memory errors, XIDs and too little air"},
	{"a100-01", "the careless job", "md-sweep of Slurm was given 4 GPUs of a100-01 and uses 1"},
}

// welcome says where to look, and what for.
func (d *demo) welcome(w io.Writer, beside string) {
	devices := 0
	var hosts []string
	for _, m := range demoFleet()[:d.nodes] {
		hosts = append(hosts, m.host)
		for _, g := range m.groups {
			devices += g.Devices
		}
	}
	self := os.Args[0] // after make demo it is not on PATH
	page := "http://" + d.listen
	fmt.Fprintf(w, `
SIMULATED: %d devices on %d nodes. None of these numbers are real, and the prices are examples.

  Page      %s/
  Terminal  %s top --url %s
  Report    %s report --url %s --prices %s
  PromQL    curl -s '%s/api/v1/query?query=sum(gpu_power_draw_watts)'

Look for
`, devices, d.nodes, page, self, page, self, page, d.prices, page)
	for _, s := range demoSights {
		if slices.Contains(hosts, s.node) {
			fmt.Fprintf(w, "  %-17s %s\n", s.name, s.text)
		}
	}
	if beside != "" {
		fmt.Fprintf(w, "\nThe devices of this machine, %s, are beside them: those are real.\n", beside)
	}
	fmt.Fprintf(w, "\nCtrl-C ends the demo and removes its data. For real: %s agent on each node, %s hub on one.\n", self, self)
}

// shortDuration returns 24h for 24h0m0s.
func shortDuration(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}
