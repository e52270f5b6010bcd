//go:build linux

package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/hub/server"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// newUp returns the command that runs agent and hub in one process.
func newUp(version string) *cobra.Command {
	h := &hubFlags{options: server.Options{Version: version, Vendors: local.Vendors()}}
	a := newAgentFlags(version)
	var s *server.Server
	a.options.Store = func() (hubexporter.Store, error) { return s.Store(), nil }
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the agent and the hub for this machine in one process",
		Long: `Run the agent and the hub for this machine in one process: read the accelerators, store
their telemetry and show it at http://` + defaultHubListen + `/. Agents on other machines may
send to the hub too.`,
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
			serverRuntime()
			if s, err = server.Start(cmd.Context(), h.options, log); err != nil {
				return err
			}
			return s.Run(cmd.Context(), func(ctx context.Context) error { return a.run(ctx, made) })
		},
	}
	a.registerShared(cmd)
	h.register(cmd)
	cmd.Flags().StringVar(&a.options.Listen, "listen-page", defaultListen, "address of the agent's Prometheus page")
	return cmd
}
