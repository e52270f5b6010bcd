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
	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

func newWhy() *cobra.Command {
	kubeconfig, job := "", ""
	slurm := slurmctl.Config{Timeout: time.Minute}
	cmd := &cobra.Command{
		Use:   "why NAMESPACE/NAME | --job ID",
		Short: "Say why a pod or a Slurm job waits, and in front of which free GPUs",
		Long: `Say in three lines why a pod or a Slurm job waits for its GPUs: what it lacks, which GPUs are
free and what keeps it from them, and what the scheduler says. It asks once for the pods and
nodes of the cluster. Without permission to list them it only says what the scheduler says.`,
		Example: "  gpumeter why ml/train-0\n  gpumeter why --job 4711",
		RunE: func(cmd *cobra.Command, args []string) error {
			say := func(lines []string, err error) error {
				for _, line := range lines {
					fmt.Fprintln(cmd.OutOrStdout(), line)
				}
				return err
			}
			if job != "" && len(args) == 0 {
				slurm.Conf, slurm.REST.User = os.Getenv("SLURM_CONF"), os.Getenv("SLURM_USER_NAME") // as squeue itself would
				client, err := slurmctl.New(slurm)
				if err != nil {
					return err
				}
				return say(client.Why(cmd.Context(), job))
			}
			namespace, name, _ := strings.Cut(strings.Join(args, "/"), "/")
			if len(args) != 1 || job != "" || namespace == "" || name == "" || strings.Contains(name, "/") {
				return errors.New("give the pod as NAMESPACE/NAME, or a Slurm job as --job ID")
			}
			api, err := kubeapi.Open(kubeapi.Kubeconfig(kubeconfig, os.Getenv("KUBECONFIG"), os.Getenv("HOME")))
			if errors.Is(err, kubeapi.ErrNotInCluster) {
				return errors.New("no API server: set --kubeconfig or KUBECONFIG, or run this command in a pod")
			}
			if err != nil {
				return err
			}
			defer api.Close()
			return say(live.Why(cmd.Context(), api, local.Vendors(), namespace, name, time.Now))
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, else ~/.kube/config, else the service account, in a pod)")
	f.StringVarP(&job, "job", "j", "", "`ID` of a Slurm job or job array")
	f.StringVar(&slurm.Tools, "slurm-tools", "", "`FOLDER` with squeue (default: search the usual places)")
	f.StringVar(&slurm.REST.Address, "slurm-rest", "", "`URL` of slurmrestd (default: use squeue)")
	f.StringVar(&slurm.REST.TokenFile, "slurm-token", "", "`FILE` with the token for slurmrestd")
	return cmd
}
