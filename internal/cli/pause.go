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
		Long: `Make the agent of this machine release every driver for a while, so that a GPU can be
reset, MIG reconfigured or the driver upgraded. The agent resumes by itself; --for 0
resumes now. SIGUSR1 does the same for ` + agent.DefaultPause.String() + `.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return errors.New("where is the agent? Name its socket with --socket")
			}
			answer, err := agent.Pause(cmd.Context(), socket, d)
			if err != nil {
				return err
			}
			fmt.Println(answer)
			return nil
		},
	}
	cmd.Flags().DurationVar(&d, "for", agent.DefaultPause, "how long, up to "+agent.MaxPause.String()+"; 0 resumes now")
	cmd.Flags().StringVar(&socket, "socket", defaultSocket(), "socket of the agent")
	return cmd
}
