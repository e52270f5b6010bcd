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
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// Where a hub listens: for this machine only.
const (
	defaultHubListen = "localhost:9500"
	defaultHubGRPC   = "localhost:4317"
)

// hubOptions are the flags of a hub.
type hubOptions struct {
	version   string
	listen    string
	grpc      string
	dir       string
	retention string
	maxSize   string
	maxSeries int
	prices    string
	quotas    []string
	labels    []string // attributes of resources that become labels, besides the usual
	title     string
	tokens    string
	cert      string
	key       string
	clientCA  string
	insecure  bool

	backend      string
	backendToken string
	backendCA    string
}

func (h *hubOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&h.listen, "listen", defaultHubListen, "address of the page, of Prometheus' API and of OTLP over HTTP")
	f.StringVar(&h.grpc, "listen-grpc", defaultHubGRPC, "address of OTLP over gRPC; empty for none")
	f.StringVar(&h.dir, "data-dir", filepath.Join(defaultState(), "hub"), "`FOLDER` of the store")
	f.StringVar(&h.retention, "retention", "30d", "how long samples and events are kept, such as 36h or 90d")
	f.StringVar(&h.maxSize, "max-size", "", "how much of the disk samples may take, such as 50GiB, oldest go first (default: no limit)")
	f.IntVar(&h.maxSeries, "max-series", 0, "how many series may be in memory (default: by the memory there is, at most 2 million)")
	f.StringVar(&h.prices, "prices", "", "`FILE` with the prices of devices")
	f.StringArrayVar(&h.quotas, "quotas", nil, quotasHelp)
	f.StringVar(&h.title, "title", "", "name of this fleet on the page")
	f.StringVar(&h.tokens, "tokens", "", "`FILE` with the tokens of those who may read and send")
	f.StringVar(&h.cert, "tls-cert", "", "`FILE` with the certificate to present, PEM")
	f.StringVar(&h.key, "tls-key", "", "`FILE` with the key of that certificate, PEM")
	f.StringVar(&h.clientCA, "client-ca", "", "`FILE` with the certificates that those of clients must be signed by, PEM")
	f.BoolVar(&h.insecure, "insecure", false, "let everybody on the network read and write")
}

// registerBackend adds the flags of a hub of its own.
func (h *hubOptions) registerBackend(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&h.backend, "backend", "", "`URL` of a Prometheus, Mimir, Thanos or VictoriaMetrics that has the samples: the hub keeps none of its own")
	f.StringArrayVar(&h.labels, "resource-label", nil, "`ATTRIBUTE` of the resource that becomes a label, too, such as the pool of a node; may be repeated")
	f.StringVar(&h.backendToken, "backend-token", "", "`FILE` with a bearer token for it")
	f.StringVar(&h.backendCA, "backend-ca", "", "`FILE` with the certificates to trust there, PEM")
}

func newHub(version string) *cobra.Command {
	h := &hubOptions{version: version}
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
			s, err := h.start(cmd.Context(), log)
			if err != nil {
				return err
			}
			return s.wait(cmd.Context())
		},
	}
	h.register(cmd)
	h.registerBackend(cmd)
	registerLogLevel(cmd, &level)
	return cmd
}

// check refuses combinations of flags that would silently do something else.
func (h *hubOptions) check(cmd *cobra.Command) error {
	if (h.cert == "") != (h.key == "") {
		return errors.New("--tls-cert and --tls-key need each other")
	}
	if h.clientCA != "" && h.cert == "" {
		return errors.New("--client-ca needs --tls-cert and --tls-key: there are no certificates of clients without TLS")
	}
	if h.insecure && (h.tokens != "" || h.clientCA != "") {
		return errors.New("--insecure lets everybody in, which --tokens and --client-ca contradict")
	}
	if h.maxSeries < 0 {
		return fmt.Errorf("--max-series must be above 0, is %d", h.maxSeries)
	}
	if h.backend != "" {
		for _, flag := range []string{"data-dir", "retention", "max-size", "max-series", "listen-grpc", "resource-label"} {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s is about the hub's own store, and with --backend there is none", flag)
			}
		}
	} else if h.dir == "" {
		return errors.New("--data-dir must name the folder of the store")
	}
	_, err := h.storeOptions(nil)
	return err
}

// storeOptions returns how the store is to be opened.
func (h *hubOptions) storeOptions(log *zap.Logger) (o hub.Options, err error) {
	if o.Retention, err = parseDays(h.retention); err != nil || o.Retention < 2*time.Hour {
		return o, fmt.Errorf("--retention must be a time of 2h or more, such as 36h or 90d, is %q", h.retention)
	}
	if h.maxSize != "" {
		if o.MaxBytes, err = parseSize(h.maxSize); err != nil {
			return o, fmt.Errorf("--max-size %w", err)
		}
	}
	o.MaxSeries = h.maxSeries
	if o.MaxSeries == 0 {
		o.MaxSeries = seriesFor(machineMemory("/"))
	}
	if log != nil {
		o.Log = slogTo(log)
	}
	return o, nil
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

// bytesPerSeries is what a series in memory is taken to need, with its part of the index, of
// what is being written and of garbage. bench/hub measured half of it with few samples; a
// limit that is too low refuses with a message, one that is too high ends the process.
const bytesPerSeries = 6 << 10

// seriesFor returns how many series fit into half of the memory: queries need the rest.
func seriesFor(memory int64) int {
	return int(min(max(memory/2/bytesPerSeries, 10_000), hub.DefaultMaxSeries))
}

// machineMemory returns how many bytes this process may use: those of the machine, or of the
// control group that it is in.
func machineMemory(root string) int64 {
	size := int64(8 << 30)
	if text, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 && fields[0] == "MemTotal:" {
			if kb, err := strconv.ParseInt(fields[1], 10, 53); err == nil {
				size = kb << 10
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup/memory.max")); err == nil {
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			size = min(size, limit)
		}
	}
	return size
}

// openBackend returns the store that --backend names.
func (h *hubOptions) openBackend(ctx context.Context) (query.Store, error) {
	c, err := query.Open(query.Config{URL: h.backend, TokenFile: h.backendToken, CAFile: h.backendCA})
	if err != nil {
		return nil, fmt.Errorf("--backend: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Instant(ctx, "vector(1)", time.Now()); err != nil {
		return nil, fmt.Errorf("the store that --backend names does not answer: %w", err)
	}
	return c, nil
}
