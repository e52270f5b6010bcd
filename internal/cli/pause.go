//go:build linux

package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
)

func newPause() *cobra.Command {
	var d time.Duration
	var socket string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Make the agent release every driver for a while",
		Long: `Make the agent on this machine release every driver for a while, so that a GPU can be
reset, MIG reconfigured or the driver upgraded. The agent resumes on its own; --for 0
resumes now. SIGUSR1 pauses the agent for ` + agent.DefaultPause.String() + `.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return errors.New("no default socket for this user: set --socket to the agent's")
			}
			answer, err := agent.Pause(cmd.Context(), socket, d)
			if err != nil {
				return err
			}
			fmt.Println(answer)
			return nil
		},
	}
	cmd.Flags().DurationVar(&d, "for", agent.DefaultPause, "length of the pause, up to "+agent.MaxPause.String()+"; 0 resumes now")
	cmd.Flags().StringVar(&socket, "socket", defaultSocket(), "control socket of the agent")
	return cmd
}
