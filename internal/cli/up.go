//go:build linux

package cli

import (
	"context"
	"errors"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// newUp returns the command that is agent and hub in one process.
func newUp(version string) *cobra.Command {
	h := &hubOptions{version: version}
	a := newAgentFlags(version)
	var s *hubServer
	a.options.Store = func() (hubexporter.Store, error) { return s.store, nil }
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Read this machine's accelerators and show them: agent and hub in one",
		Long: `Read this machine's accelerators, keep what they do and show it at http://` + defaultHubListen + `/:
agent and hub in one process. Agents of other machines may send to it, too.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			made, err := a.prepare(cmd)
			if err := errors.Join(h.check(cmd), err); err != nil {
				return err
			}
			log, err := newLogger(a.logLevel, &redact.Redactor{})
			if err != nil {
				return err
			}
			beServer()
			if s, err = h.start(cmd.Context(), log); err != nil {
				return err
			}
			return s.with(cmd.Context(), func(ctx context.Context) error { return a.run(ctx, made) })
		},
	}
	a.registerShared(cmd)
	h.register(cmd)
	cmd.Flags().StringVar(&a.options.Listen, "listen-page", defaultListen, "address of the agent's Prometheus page")
	return cmd
}

// with runs the agent until ctx ends or something fails, and then ends it and the hub.
func (s *hubServer) with(ctx context.Context, run func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var failed, err error
	var agent sync.WaitGroup
	agent.Go(func() {
		failed = run(ctx)
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
