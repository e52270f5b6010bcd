//go:build linux

package server

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

// quotaTimeout is the timeout of reading one source.
const quotaTimeout = 20 * time.Second

// ReadQuotas reads one source of quotas: a file, "kubernetes" or "kubernetes:KUBECONFIG"
// (ResourceQuotas), or "slurm" or "slurm:FOLDER" (account limits; FOLDER has the Slurm tools).
func ReadQuotas(ctx context.Context, from string, vendors device.Vendors) ([]cost.Quota, error) {
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	kind, where, _ := strings.Cut(from, ":")
	switch kind {
	case "kubernetes":
		text, err := kubeapi.ResourceQuotas(ctx, where)
		if err != nil {
			return nil, err
		}
		return cost.ParseResourceQuotas(text, vendors.CountsDevices)
	case "slurm":
		tools, ok := slurm.FindTools(where, "", "sacctmgr")
		if !ok {
			return nil, errors.New("sacctmgr not found: set its folder with slurm:FOLDER")
		}
		var list []cost.Quota
		err := tools.Run(ctx, func(r io.Reader) error {
			text, err := io.ReadAll(r)
			if err == nil {
				list, err = cost.ParseAssociations(text)
			}
			return err
		}, "sacctmgr", "--readonly", "show", "assoc", "-p", "format=Cluster,Account,User,Partition,GrpTRES,GrpTRESMins")
		return list, err
	default:
		text, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		return cost.ParseQuotas(text)
	}
}

func isQuotaFile(from string) bool {
	kind, _, _ := strings.Cut(from, ":")
	return kind != "kubernetes" && kind != "slurm"
}
