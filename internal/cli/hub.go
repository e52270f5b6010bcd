//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub/server"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// Default addresses of a hub: reachable from this machine only.
const (
	defaultHubListen = "localhost:9500"
	defaultHubGRPC   = "localhost:4317"
)

// hubFlags holds the flags of gpumeter hub. Flags that need no parsing are bound to options.
type hubFlags struct {
	options   server.Options
	retention string
	keepUsage string
	maxSize   string
	zone      string
	store     storeFlags // of --backend
}

const quotasHelp = "quotas of teams: a `FILE`, kubernetes (ResourceQuotas; kubernetes:KUBECONFIG outside a pod) or slurm (account limits; slurm:FOLDER sets the folder of its tools); may be repeated"

func (h *hubFlags) register(cmd *cobra.Command) {
	o, f := &h.options, cmd.Flags()
	f.StringVar(&o.Listen, "listen", defaultHubListen, "address of the page, the Prometheus API and OTLP over HTTP")
	f.StringVar(&o.GRPC, "listen-grpc", defaultHubGRPC, "address of OTLP over gRPC; empty disables it")
	f.StringVar(&o.Dir, "data-dir", filepath.Join(defaultState(), "hub"), "`FOLDER` of the store")
	f.StringVar(&h.retention, "retention", "30d", "how long to keep samples and events, such as 36h or 90d")
	f.StringVar(&h.keepUsage, "keep-usage", "1826d", "`DURATION` to keep the usage of past days, from which bills are made, such as 400d; at least --retention")
	f.StringVar(&h.maxSize, "max-size", "", "maximum disk usage of samples, such as 50GiB; the oldest are deleted first (default: no limit)")
	f.IntVar(&o.MaxSeries, "max-series", 0, "maximum number of series in memory (default: depends on available memory, at most 2 million)")
	f.IntVar(&o.NodeSeries, "max-series-per-node", 0, "maximum number of series of one node in memory (default: a quarter of --max-series, at least 50000)")
	f.StringVar(&o.Prices, "prices", "", "`FILE` with device prices")
	f.StringArrayVar(&o.Quotas, "quotas", nil, quotasHelp)
	f.StringVar(&o.Objectives, "objectives", "", "`FILE` with service level objectives for inference, such as latencies and errors by model")
	registerZone(cmd, &h.zone, "of the months of quotas, and of days and months on the page")
	f.StringVar(&o.Title, "title", "", "name of this fleet on the page")
	f.StringVar(&o.Tokens, "tokens", "", "`FILE` with the tokens that may read and write")
	f.StringVar(&o.Audit, "audit-log", "", "`FILE` to which to append who asked the hub for what, as lines of JSON")
	f.StringVar(&o.Cert, "tls-cert", "", "`FILE` with the server certificate, PEM")
	f.StringVar(&o.Key, "tls-key", "", "`FILE` with the private key of the certificate, PEM")
	f.StringVar(&o.ClientCA, "client-ca", "", "`FILE` with the CA certificates that client certificates must be signed by, PEM")
	f.BoolVar(&o.Insecure, "insecure", false, "allow everyone on the network to read and write")
}

// registerZone adds --time-zone.
func registerZone(cmd *cobra.Command, to *string, what string) {
	cmd.Flags().StringVar(to, "time-zone", "UTC", "time `ZONE` "+what+", such as Europe/Berlin")
}

// zoneOf returns the time zone of --time-zone.
func zoneOf(name string) (*time.Location, error) {
	zone, err := cost.Zone(name)
	if err != nil {
		return nil, fmt.Errorf("--time-zone: %w", err)
	}
	return zone, nil
}

// registerBackend adds the flags of hub that up does not have.
func (h *hubFlags) registerBackend(cmd *cobra.Command) {
	o, f := &h.options, cmd.Flags()
	h.store.register(cmd, "backend", "", "`URL` of a Prometheus, Mimir, Thanos or VictoriaMetrics that stores the samples; the hub then stores none")
	f.StringArrayVar(&o.Labels, "resource-label", nil, "resource `ATTRIBUTE` to add as a label, such as the node pool; may be repeated")
}

func newHub(version string) *cobra.Command {
	h := &hubFlags{options: server.Options{Version: version, Vendors: local.Vendors()}}
	level := ""
	cmd := &cobra.Command{
		Use:   "hub",
		Short: "Store and show the telemetry of a fleet of agents",
		Long: `Store and show the telemetry of a fleet of agents.

The hub accepts OTLP over HTTP at http://` + defaultHubListen + ` and over gRPC at ` + defaultHubGRPC + `,
keeps it in its own store, and serves a page and the Prometheus API. Point agents to the
hub with OTEL_EXPORTER_OTLP_ENDPOINT=http://HUB:9500. To listen on a network the hub
needs --tokens or --client-ca.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(level, &redact.Redactor{})
			if err != nil {
				return err
			}
			if err := h.check(cmd); err != nil {
				return err
			}
			serverRuntime()
			s, err := server.Start(cmd.Context(), h.options, log)
			if err != nil {
				return err
			}
			return s.Run(cmd.Context(), nil)
		},
	}
	h.register(cmd)
	h.registerBackend(cmd)
	registerLogLevel(cmd, &level)
	cmd.AddCommand(newHubCheck())
	return cmd
}

// check rejects contradictory flags and flags that would be silently ignored.
func (h *hubFlags) check(cmd *cobra.Command) error {
	o := &h.options
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("--tls-cert and --tls-key must be set together")
	}
	if o.ClientCA != "" && o.Cert == "" {
		return errors.New("--client-ca needs --tls-cert and --tls-key: client certificates require TLS")
	}
	if o.Insecure && (o.Tokens != "" || o.ClientCA != "") {
		return errors.New("--insecure disables authentication and contradicts --tokens and --client-ca")
	}
	if o.MaxSeries < 0 {
		return fmt.Errorf("--max-series must be above 0, is %d", o.MaxSeries)
	}
	if o.NodeSeries < 0 {
		return fmt.Errorf("--max-series-per-node must be above 0, is %d", o.NodeSeries)
	}
	if err := h.store.check(cmd); err != nil {
		return err
	}
	if h.store.url != "" {
		backend, err := h.store.config(0)
		if err != nil {
			return err
		}
		o.Backend = &backend
		for _, flag := range []string{"data-dir", "retention", "keep-usage", "max-size", "max-series", "max-series-per-node", "listen-grpc", "resource-label"} {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s configures the hub's own store and has no effect with --backend", flag)
			}
		}
	} else if o.Dir == "" {
		return errors.New("--data-dir must not be empty")
	}
	var err error
	if o.Zone, err = zoneOf(h.zone); err != nil {
		return err
	}
	if o.Retention, err = parseDays(h.retention); err != nil || o.Retention < 2*time.Hour {
		return fmt.Errorf("--retention must be at least 2h, such as 36h or 90d, is %q", h.retention)
	}
	if o.KeepUsage, err = parseDays(h.keepUsage); err != nil || cmd.Flags().Changed("keep-usage") && o.KeepUsage < o.Retention {
		return fmt.Errorf("--keep-usage must be at least --retention, such as 400d, is %q", h.keepUsage)
	}
	if h.maxSize != "" {
		if o.MaxBytes, err = parseSize(h.maxSize); err != nil {
			return fmt.Errorf("--max-size %w", err)
		}
	}
	return nil
}

// readQuotas reads one value of --quotas.
func readQuotas(ctx context.Context, from string) ([]cost.Quota, error) {
	return server.ReadQuotas(ctx, from, local.Vendors())
}

// parseDays parses a duration that may be in days.
func parseDays(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// serverRuntime undoes limitRuntime: a hub has a machine or a cgroup to itself.
func serverRuntime() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.SetDefaultGOMAXPROCS()
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(75) // as Prometheus
	}
}
