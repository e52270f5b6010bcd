//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/demo"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub/server"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// demoFlags holds the flags of gpumeter demo, which runs a simulated fleet, a hub and its page in
// one process.
type demoFlags struct {
	hardware
	version string
	listen  string
	nodes   int
	history time.Duration
	dir     string // parent of the temporary data folder; empty: the default of the system
	prices  string // file with the example prices, set by run
	now     func() time.Time
}

func newDemo(version string) *cobra.Command {
	d := &demoFlags{version: version, now: time.Now}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Try gpumeter on a simulated fleet with a hub and its page, next to this machine's devices",
		Long: `Try gpumeter with or without a GPU: a simulated fleet of several vendors and schedulers
with a day of history, a hub that stores it and a page that shows it. Devices of this
machine, if any, appear next to the simulated ones.

No data leaves this machine, and the demo removes its data when it ends.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.check(); err != nil {
				return err
			}
			// A closed terminal or SSH session ends the demo too, and must leave no data behind.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
			defer stop()
			return d.run(ctx, os.Stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.listen, "listen", "localhost:9500", "address of the page; must be a loopback address")
	f.IntVar(&d.nodes, "nodes", len(demo.Fleet()), "number of nodes to simulate")
	f.DurationVar(&d.history, "history", 24*time.Hour, "length of the simulated history, up to 36h")
	f.StringVar(&d.library, "nvidia-library", "", "path of libnvidia-ml.so.1, for the devices of this machine (default: search the usual places)")
	return cmd
}

func (d *demoFlags) check() error {
	if most := len(demo.Fleet()); d.nodes < 1 || d.nodes > most {
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
		return fmt.Errorf("--listen must be a loopback address such as localhost:9500, is %s: the demo has no authentication", d.listen)
	}
	// Fails early if --nvidia-library is not a usable library.
	_, err = local.Open(d.config(), nil)
	return err
}

// run runs the demo until ctx is canceled.
func (d *demoFlags) run(ctx context.Context, w io.Writer) (err error) {
	log, err := newLogger("error", &redact.Redactor{}) // the store warns while it ingests a day of history at once
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
	files, err := demo.WriteFiles(dir)
	if err != nil {
		return err
	}
	d.prices = files.Prices
	h := server.Options{
		Vendors: local.Vendors(),
		Version: d.version, Listen: d.listen, Dir: filepath.Join(dir, "hub"), Retention: 3 * 24 * time.Hour, Title: "Demo",
		Prices: files.Prices, Objectives: files.Objectives, Quotas: []string{files.Quotas},
	}
	serverRuntime()
	s, err := server.Start(ctx, h, log)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Simulating the last %s of %d nodes, for http://%s/ ...\n", shortDuration(d.history), d.nodes, d.listen)
	o := demo.Options{Nodes: d.nodes, History: d.history, Local: d.config(), Now: d.now}
	return s.Run(ctx, func(ctx context.Context) error {
		return demo.Run(ctx, o, s.Store(), func(beside string) { d.welcome(w, beside) })
	})
}

// withPort replaces port 0 of an address with a free port.
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

// welcome prints the addresses and what there is to see.
func (d *demoFlags) welcome(w io.Writer, beside string) {
	devices := 0
	var hosts []string
	for _, m := range demo.Fleet()[:d.nodes] {
		hosts = append(hosts, m.Host)
		for _, g := range m.Groups {
			devices += g.Devices
		}
	}
	self := os.Args[0] // after make demo gpumeter is not on PATH
	page := "http://" + d.listen
	fmt.Fprintf(w, `
SIMULATED: %d devices on %d nodes. None of these numbers are real; the prices are examples.

  Page      %s/
  Terminal  %s top --url %s
  Report    %s report --url %s --prices %s
  PromQL    curl -s '%s/api/v1/query?query=sum(%s)'

Look for
`, devices, d.nodes, page, self, page, self, page, d.prices, page, fleet.SeriesPower)
	for _, s := range demo.Sights() {
		if slices.Contains(hosts, s.Node) {
			fmt.Fprintf(w, "  %-17s %s\n", s.Name, s.Text)
		}
	}
	if beside != "" {
		fmt.Fprintf(w, "\nThe devices of this machine, %s, are shown too: those are real.\n", beside)
	}
	fmt.Fprintf(w, "\nCtrl-C ends the demo and removes its data. To monitor real devices, run %s agent on each node and %s hub on one.\n", self, self)
}

// shortDuration returns 24h for 24h0m0s.
func shortDuration(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}
