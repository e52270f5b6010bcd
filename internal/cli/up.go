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

// newUp returns the command that is agent and hub in one process.
func newUp(version string) *cobra.Command {
	h := &hubFlags{options: server.Options{Version: version, Vendors: local.Vendors()}}
	a := newAgentFlags(version)
	var s *server.Server
	a.options.Store = func() (hubexporter.Store, error) { return s.Store(), nil }
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
