//go:build linux

package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/live"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

func newWhy() *cobra.Command {
	kubeconfig := ""
	cmd := &cobra.Command{
		Use:   "why NAMESPACE/NAME",
		Short: "Say why a pod waits, and in front of which free GPUs",
		Long: `Say in three lines why a pod waits for its GPUs: what it lacks, which GPUs are free and what
keeps the pod from them, and what the scheduler says. It lists the pods and nodes of the
cluster once. Without permission to do so it only says what the scheduler says.`,
		Example: "  gpumeter why ml/train-0",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, _ := strings.Cut(strings.Join(args, "/"), "/")
			if len(args) != 1 || namespace == "" || name == "" || strings.Contains(name, "/") {
				return errors.New("give the pod as NAMESPACE/NAME")
			}
			api, err := kubeapi.Open(kubeapi.Kubeconfig(kubeconfig, os.Getenv("KUBECONFIG"), os.Getenv("HOME")))
			if errors.Is(err, kubeapi.ErrNotInCluster) {
				return errors.New("no API server: set --kubeconfig or KUBECONFIG, or run this command in a pod")
			}
			if err != nil {
				return err
			}
			defer api.Close()
			lines, err := live.Why(cmd.Context(), api, local.Vendors(), namespace, name, time.Now)
			for _, line := range lines {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, else ~/.kube/config, else the service account, in a pod)")
	return cmd
}
