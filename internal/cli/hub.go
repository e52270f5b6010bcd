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

// Where a hub listens: for this machine only.
const (
	defaultHubListen = "localhost:9500"
	defaultHubGRPC   = "localhost:4317"
)

// hubFlags are the flags of hub. Those that need no parsing are in options.
type hubFlags struct {
	options   server.Options
	retention string
	maxSize   string
}

const quotasHelp = "what teams may use: `FILE`, kubernetes (ResourceQuotas; kubernetes:KUBECONFIG outside of a pod) or slurm (limits of accounts; slurm:FOLDER of its tools); may be given again"

func (h *hubFlags) register(cmd *cobra.Command) {
	o, f := &h.options, cmd.Flags()
	f.StringVar(&o.Listen, "listen", defaultHubListen, "address of the page, of Prometheus' API and of OTLP over HTTP")
	f.StringVar(&o.GRPC, "listen-grpc", defaultHubGRPC, "address of OTLP over gRPC; empty for none")
	f.StringVar(&o.Dir, "data-dir", filepath.Join(defaultState(), "hub"), "`FOLDER` of the store")
	f.StringVar(&h.retention, "retention", "30d", "how long samples and events are kept, such as 36h or 90d")
	f.StringVar(&h.maxSize, "max-size", "", "how much of the disk samples may take, such as 50GiB, oldest go first (default: no limit)")
	f.IntVar(&o.MaxSeries, "max-series", 0, "how many series may be in memory (default: by the memory there is, at most 2 million)")
	f.StringVar(&o.Prices, "prices", "", "`FILE` with the prices of devices")
	f.StringArrayVar(&o.Quotas, "quotas", nil, quotasHelp)
	f.StringVar(&o.Title, "title", "", "name of this fleet on the page")
	f.StringVar(&o.Tokens, "tokens", "", "`FILE` with the tokens of those who may read and send")
	f.StringVar(&o.Cert, "tls-cert", "", "`FILE` with the certificate to present, PEM")
	f.StringVar(&o.Key, "tls-key", "", "`FILE` with the key of that certificate, PEM")
	f.StringVar(&o.ClientCA, "client-ca", "", "`FILE` with the certificates that those of clients must be signed by, PEM")
	f.BoolVar(&o.Insecure, "insecure", false, "let everybody on the network read and write")
}

// registerBackend adds the flags of a hub of its own.
func (h *hubFlags) registerBackend(cmd *cobra.Command) {
	o, f := &h.options, cmd.Flags()
	f.StringVar(&o.Backend, "backend", "", "`URL` of a Prometheus, Mimir, Thanos or VictoriaMetrics that has the samples: the hub keeps none of its own")
	f.StringArrayVar(&o.Labels, "resource-label", nil, "`ATTRIBUTE` of the resource that becomes a label, too, such as the pool of a node; may be repeated")
	f.StringVar(&o.BackendToken, "backend-token", "", "`FILE` with a bearer token for it")
	f.StringVar(&o.BackendCA, "backend-ca", "", "`FILE` with the certificates to trust there, PEM")
}

func newHub(version string) *cobra.Command {
	h := &hubFlags{options: server.Options{Version: version, Vendors: local.Vendors()}}
	level := ""
	cmd := &cobra.Command{
		Use:   "hub",
		Short: "Keep what the agents of a fleet send, and show it",
		Long: `Keep what the agents of a fleet send, and show it.

The hub takes OTLP over HTTP at http://` + defaultHubListen + ` and over gRPC at ` + defaultHubGRPC + `,
keeps it in a store of its own, and serves the page and Prometheus' API. Agents send to
it with OTEL_EXPORTER_OTLP_ENDPOINT=http://HUB:9500. On a network it needs --tokens or
--client-ca.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(level, &redact.Redactor{})
			if err != nil {
				return err
			}
			if err := h.check(cmd); err != nil {
				return err
			}
			beServer()
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
	return cmd
}

// check refuses combinations of flags that would silently do something else.
func (h *hubFlags) check(cmd *cobra.Command) error {
	o := &h.options
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("--tls-cert and --tls-key need each other")
	}
	if o.ClientCA != "" && o.Cert == "" {
		return errors.New("--client-ca needs --tls-cert and --tls-key: there are no certificates of clients without TLS")
	}
	if o.Insecure && (o.Tokens != "" || o.ClientCA != "") {
		return errors.New("--insecure lets everybody in, which --tokens and --client-ca contradict")
	}
	if o.MaxSeries < 0 {
		return fmt.Errorf("--max-series must be above 0, is %d", o.MaxSeries)
	}
	if o.Backend != "" {
		for _, flag := range []string{"data-dir", "retention", "max-size", "max-series", "listen-grpc", "resource-label"} {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s is about the hub's own store, and with --backend there is none", flag)
			}
		}
	} else if o.Dir == "" {
		return errors.New("--data-dir must name the folder of the store")
	}
	var err error
	if o.Retention, err = parseDays(h.retention); err != nil || o.Retention < 2*time.Hour {
		return fmt.Errorf("--retention must be a time of 2h or more, such as 36h or 90d, is %q", h.retention)
	}
	if h.maxSize != "" {
		if o.MaxBytes, err = parseSize(h.maxSize); err != nil {
			return fmt.Errorf("--max-size %w", err)
		}
	}
	return nil
}

// readQuotas reads one source of --quotas.
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

// beServer takes what Go would: a hub has a machine, or its part of one, for itself.
func beServer() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.SetDefaultGOMAXPROCS()
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(75) // as Prometheus
	}
}
