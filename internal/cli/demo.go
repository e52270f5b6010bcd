//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
)

// demoModel is what is simulated where there is no accelerator.
const demoModel = sim.Mixed

func newDemo(version string) *cobra.Command {
	a := &agent{
		version: version, interval: time.Second, slow: 5 * time.Second, pcie: true, logLevel: "warn",
		identity: identity{noCloud: true},
		env:      func(string) string { return "" }, // a demo sends nothing anywhere
	}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See gpumeter work: this machine's devices, or simulated ones if it has none",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.demo(cmd.Context(), os.Stdout)
		},
	}
	a.hardware.register(cmd)
	cmd.Flags().StringVar(&a.listen, "listen", defaultListen, "address of the Prometheus page")
	return cmd
}

func (a *agent) demo(ctx context.Context, w io.Writer) error {
	if a.simulate == "" && a.library == "" && !local.HasDevices(ctx, a.local()) {
		a.simulate = demoModel
	}
	if err := a.local().Validate(); err != nil {
		return err
	}
	var welcome sync.Once
	return a.run(ctx, func(t node.Tick) {
		// The second tick is the first with profiling.
		if t.Time.After(t.Started) {
			welcome.Do(func() { a.welcome(w, t) })
		}
	})
}

// welcome shows the devices and where to look next.
func (a *agent) welcome(w io.Writer, t node.Tick) {
	fmt.Fprintln(w)
	_ = printShortTable(w, t) // to a terminal
	what := fmt.Sprintf("%d devices of this machine", len(t.Readings))
	switch {
	case a.simulate == sim.Mixed:
		what = "a simulated machine that has a few devices of each vendor"
	case t.Simulated:
		what = fmt.Sprintf("a simulated machine of %s devices", a.simulate)
	}
	self := os.Args[0] // after make demo it is not on PATH
	page := a.listen
	if strings.HasPrefix(page, ":") {
		page = "localhost" + page
	}
	fmt.Fprintf(w, `
gpumeter reads %s, once a second.

  Metrics   http://%s/metrics
  Try       curl -s http://%s/metrics | grep gpu_workload_power_draw
  Devices   %s devices%s
  For real  %s agent

Ctrl-C ends the demo.
`, what, page, page, self, map[bool]string{true: " --simulate " + a.simulate}[t.Simulated], self)
}
