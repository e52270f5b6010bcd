//go:build linux

package cli

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/local"
)

// newUp returns the command that is agent and hub in one process.
func newUp(version string) *cobra.Command {
	h := &hubOptions{version: version}
	a := &agent{version: version, env: os.Getenv, output: "table", pcie: true}
	var s *hubServer
	a.store = func() (hubexporter.Store, error) { return s.store, nil }
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Read this machine's accelerators and show them: agent and hub in one",
		Long: `Read this machine's accelerators, keep what they do and show it at http://` + defaultHubListen + `/:
agent and hub in one process. Agents of other machines may send to it, too.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(h.check(cmd), a.check(cmd)); err != nil {
				return err
			}
			log, err := newLogger(a.logLevel, &redactor{})
			if err != nil {
				return err
			}
			beServer()
			if s, err = h.start(cmd.Context(), log); err != nil {
				return err
			}
			return s.with(cmd.Context(), a)
		},
	}
	a.hardware.register(cmd)
	a.identity.register(cmd)
	a.scheduler.register(cmd)
	a.tracing.register(cmd)
	h.register(cmd)
	f := cmd.Flags()
	f.StringVar(&a.listen, "listen-page", defaultListen, "address of the agent's Prometheus page")
	f.DurationVar(&a.interval, "interval", local.DefaultInterval, "time between two readings, 100ms to 5m")
	f.DurationVar(&a.slow, "slow-interval", local.DefaultSlowInterval, "time between two readings of values that are slow to get or rarely change")
	f.StringVar(&a.socket, "socket", defaultSocket(), "socket at which gpumeter pause finds this agent; empty for none")
	f.StringVar(&a.stateDir, "state-dir", defaultState(), "`FOLDER` for what must survive the agent; empty for none")
	f.IntVar(&a.expect, "expect", 0, "how many devices the machine should have: fewer are a finding (default: those it has had since it was booted)")
	registerLogLevel(cmd, &a.logLevel)
	return cmd
}

// with runs the agent until ctx ends or something fails, and then ends it and the hub.
func (s *hubServer) with(ctx context.Context, a *agent) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var failed, err error
	var agent sync.WaitGroup
	agent.Go(func() {
		failed = a.run(ctx, nil)
		stop()
	})
	select {
	case <-ctx.Done():
	case err = <-s.failed:
		stop()
	}
	agent.Wait()
	return errors.Join(err, failed, s.close())
}
