//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/bundle"
	"github.com/gpumeter/gpumeter/internal/check/worker"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
)

func newDoctor() *cobra.Command {
	var h hardware
	var asJSON bool
	var archive, config string
	agentSide := agentDoctor{trace: openTracing}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose what was found, what is missing and how to fix it",
		Long: `Diagnose what was found, what is missing and how to fix it. Run doctor as the same user
and in the same container as the agent, because permissions and mounts matter. The exit
code is 1 if something is broken.

With --bundle doctor also writes a support archive: devices, findings, checks, drivers,
kernel log lines of the drivers, versions and the configuration, without secrets and
serial numbers.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if h.simulate != "" {
				return errors.New("--simulate has no effect here: doctor examines this machine")
			}
			if config != "" && archive == "" {
				return errors.New("--config needs --bundle")
			}
			agentSide.proc = filepath.Join("/", h.root, "proc")
			checks := append(local.Diagnose(cmd.Context(), h.config()), agentSide.diagnose(cmd.Context())...)
			if archive != "" {
				o := bundleOptions(cmd, &h, &agentSide, config)
				o.Doctor = checks
				if err := bundle.Write(cmd.Context(), archive, o); err != nil {
					return err
				}
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				if err := e.Encode(checks); err != nil {
					return err
				}
			} else {
				printChecks(os.Stdout, checks)
				if archive != "" {
					fmt.Println("Wrote " + archive + ". Review it before you send it.")
				}
			}
			for _, c := range checks {
				if c.State == device.CheckFailed {
					return errors.New("something is broken, see above")
				}
			}
			return nil
		},
	}
	h.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.Flags().StringVar(&archive, "bundle", "", "write a support archive to `FILE`, such as bundle.tar.gz")
	cmd.Flags().StringVar(&agentSide.state, "state-dir", defaultState(), "state `FOLDER` of the agent")
	cmd.Flags().StringVar(&agentSide.listen, "listen", defaultListen, "address of the agent's Prometheus page")
	cmd.Flags().StringVarP(&config, "config", "c", "", "the agent's configuration `FILE`, for --bundle")
	return cmd
}

// bundleLimit is the timeout of reading the devices, and of running the checks, for a bundle.
const bundleLimit = 20 * time.Second

// bundleOptions returns the content of a bundle: this machine, and the configuration of an
// agent with the same flags.
func bundleOptions(cmd *cobra.Command, h *hardware, d *agentDoctor, config string) bundle.Options {
	args := []string{"check", "--timeout", bundleLimit.String()}
	for _, flag := range []string{"nvidia-library", "gaudi-library", "neuron-monitor", "root", "host-name"} {
		if f := cmd.Flags().Lookup(flag); f != nil && f.Changed {
			args = append(args, "--"+flag+"="+f.Value.String())
		}
	}
	version := cmd.Root().Version
	return bundle.Options{
		Version: version, Root: h.root, Environ: os.Environ(), Vendors: local.Vendors(), Limit: bundleLimit, ConfigFile: config,
		Devices: func(ctx context.Context) (node.Tick, error) { return local.ReadOnce(ctx, h.config()) },
		Checks:  func(ctx context.Context) (any, error) { return worker.Fork(ctx, bundleLimit+worker.Grace, args) },
		Config: func(ctx context.Context, w io.Writer) error {
			c := h.config()
			c.Cloud = true
			a, err := agent.New(agent.Options{Version: version, Env: os.Getenv, ConfigFile: config, Local: c, Listen: d.listen, StateDir: d.state})
			if err != nil {
				return err
			}
			return a.WriteConfig(ctx, w)
		},
	}
}

func printChecks(w io.Writer, checks []device.Check) {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Subject))
	}
	for _, c := range checks {
		fmt.Fprintf(w, "%-8s %-*s  %s\n", c.State, width, c.Subject, c.Detail)
		if c.Fix != "" {
			fmt.Fprintf(w, "%s  -> %s\n", strings.Repeat(" ", 9+width), c.Fix)
		}
	}
}
