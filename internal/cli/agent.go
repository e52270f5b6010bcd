//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// defaultListen is where the page is served: for this machine only.
const defaultListen = "localhost:9400"

// agentFlags are the flags of agent. Those that need no parsing are in options.
type agentFlags struct {
	hardware
	options   agent.Options
	queueSize string
	interval  time.Duration
	slow      time.Duration
	pcie      bool
	noCloud   bool
	expect    int
	once      bool
	output    string
	print     bool
	logLevel  string
}

func newAgentFlags(version string) *agentFlags {
	return &agentFlags{options: agent.Options{Version: version, Env: os.Getenv}, output: "table", pcie: true}
}

func newAgent(version string) *cobra.Command {
	a := newAgentFlags(version)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Read this machine's accelerators and export metrics",
		Long: `Read this machine's accelerators and export metrics.

Without --config it serves a Prometheus page at http://` + defaultListen + `/metrics, and
sends OTLP to the endpoint that --otlp-endpoint or OTEL_EXPORTER_OTLP_ENDPOINT names.
A configuration file is that of an OpenTelemetry Collector; gpumeter components lists
what it may use.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			made, err := a.prepare(cmd)
			if err != nil {
				return err
			}
			switch {
			case a.print:
				return made.WriteConfig(cmd.Context(), os.Stdout)
			case a.once:
				return printOnce(cmd.Context(), made.DeviceConfig(), a.output)
			}
			return a.run(cmd.Context(), made)
		},
	}
	a.registerShared(cmd)
	a.registerSinks(cmd)
	f := cmd.Flags()
	f.StringVarP(&a.options.ConfigFile, "config", "c", "", "Collector configuration `FILE`")
	f.StringVar(&a.options.Listen, "listen", defaultListen, "address of the Prometheus page")
	f.BoolVar(&a.pcie, "pcie-throughput", true, "measure PCIe traffic on NVIDIA GPUs before Hopper, which keeps the driver busy for 40 ms every 30 s")
	f.BoolVar(&a.once, "once", false, "read once, print and end")
	f.StringVarP(&a.output, "output", "o", "table", "format of --once: table, json or prometheus")
	f.BoolVar(&a.print, "print-config", false, "print the Collector configuration that would run, without secrets, and end")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// Flags that are refused with --config, which decides them.
var (
	readingFlags   = []string{"listen", "interval", "slow-interval", "pcie-throughput", "nvidia-library", "gaudi-library", "neuron-monitor", "root", "host-name", "simulate", "state-dir", "expect", "once"}
	identityFlags  = []string{"cluster", "node-name", "no-cloud"}
	schedulerFlags = []string{"scheduler", "slurm-accounting", "slurm-prometheus"}
	sinkFlags      = []string{"otlp-endpoint", "otlp-protocol", "otlp-header", "otlp-insecure", "otlp-ca", "otlp-cert", "otlp-key", "queue-size", "otlp-file", "otlp-receiver"}
	tracingFlags   = []string{"trace"}
)

// registerShared adds the flags that agent and up have in common.
func (a *agentFlags) registerShared(cmd *cobra.Command) {
	a.hardware.register(cmd)
	o, f := &a.options, cmd.Flags()
	f.StringVar(&o.Identity.Cluster, "cluster", "", "name of the cluster in k8s.cluster.name, whatever runs it")
	f.StringVar(&o.Identity.Node, "node-name", "", "name of the Kubernetes node in k8s.node.name (default: $K8S_NODE_NAME, else $NODE_NAME)")
	f.BoolVar(&a.noCloud, "no-cloud", false, "do not ask the cloud's metadata server for region, zone and instance type")
	f.StringVar(&o.Scheduler.Kind, "scheduler", "", "report the jobs and nodes of the whole cluster, as its scheduler has them: "+strings.Join(agent.Schedulers(), ", ")+"; for one agent of a cluster")
	f.BoolVar(&o.Scheduler.Accounting, "slurm-accounting", false, "with --scheduler slurm, send a log record of each job that ended")
	f.StringVar(&o.Scheduler.Prometheus, "slurm-prometheus", "", "`URL` of a Prometheus-compatible API with the series of the agents, from which accounting takes what jobs used")
	f.BoolVar(&o.Trace, "trace", false, "trace what processes ask of CUDA and NCCL, with eBPF: needs CAP_BPF and CAP_PERFMON, and CAP_SYS_PTRACE for processes of others")
	f.DurationVar(&a.interval, "interval", local.DefaultInterval, "time between two readings, 100ms to 5m")
	f.DurationVar(&a.slow, "slow-interval", local.DefaultSlowInterval, "time between two readings of values that are slow to get or rarely change")
	f.StringVar(&o.Socket, "socket", defaultSocket(), "socket at which gpumeter pause finds this agent; empty for none")
	f.StringVar(&o.StateDir, "state-dir", defaultState(), "`FOLDER` for what must survive the agent; empty for none")
	f.IntVar(&a.expect, "expect", 0, "how many devices the machine should have: fewer are a finding (default: those it has had since it was booted)")
	registerLogLevel(cmd, &a.logLevel)
	_ = cmd.RegisterFlagCompletionFunc("scheduler", cobra.FixedCompletions(agent.Schedulers(), cobra.ShellCompDirectiveNoFileComp))
}

// registerSinks adds the flags that say where telemetry goes besides the page, and where it
// comes from besides the devices.
func (a *agentFlags) registerSinks(cmd *cobra.Command) {
	o, f := &a.options.OTLP, cmd.Flags()
	f.StringVar(&o.Endpoint, "otlp-endpoint", "", "`URL` to which metrics and events are sent, such as http://localhost:4318 (default: $OTEL_EXPORTER_OTLP_ENDPOINT)")
	f.StringVar(&o.Protocol, "otlp-protocol", "", "http/protobuf, http/json or grpc (default: $OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf)")
	f.StringArrayVar(&o.Headers, "otlp-header", nil, "`KEY=VALUE` sent with each request; may be repeated. Others can see it in the list of processes, $OTEL_EXPORTER_OTLP_HEADERS not")
	f.BoolVar(&o.Insecure, "otlp-insecure", false, "no TLS to an endpoint without http:// or https://")
	f.StringVar(&o.CA, "otlp-ca", "", "`FILE` with the certificates to trust, PEM")
	f.StringVar(&o.Cert, "otlp-cert", "", "`FILE` with the certificate to present, PEM")
	f.StringVar(&o.Key, "otlp-key", "", "`FILE` with the key of that certificate, PEM")
	f.StringVar(&a.queueSize, "queue-size", "", "how much may wait for an OTLP endpoint that does not answer, of each signal (default: 256MiB on disk, 32MiB if there is no folder for it)")
	f.StringVar(&a.options.File, "otlp-file", "", "`FILE` to which OTLP is written, too, as lines of JSON; - is standard output")
	f.BoolVar(&a.options.Receiver, "otlp-receiver", false, "take OTLP of applications at localhost:4317 (gRPC) and localhost:4318 (HTTP), and pass it on")
	_ = cmd.RegisterFlagCompletionFunc("otlp-protocol", cobra.FixedCompletions(agent.OTLPProtocols(), cobra.ShellCompDirectiveNoFileComp))
}

// prepare refuses combinations of flags that would silently do something else, and returns
// the agent that the rest describes.
func (a *agentFlags) prepare(cmd *cobra.Command) (*agent.Agent, error) {
	if err := checkOutput(a.output); err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("output") && !a.once {
		return nil, errors.New("--output is the format of --once: add it, or leave --output out")
	}
	for _, flag := range slices.Concat(sinkFlags, schedulerFlags, tracingFlags) {
		if a.once && cmd.Flags().Changed(flag) {
			return nil, fmt.Errorf("--%s has no effect with --once, which only prints", flag)
		}
	}
	if a.options.ConfigFile != "" {
		for _, flag := range slices.Concat(readingFlags, identityFlags, schedulerFlags, sinkFlags, tracingFlags, workloadFlags) {
			if cmd.Flags().Changed(flag) {
				return nil, fmt.Errorf("--%s has no effect with --config: set it in %s", flag, a.options.ConfigFile)
			}
		}
	}
	made, err := a.agent()
	if err != nil {
		return nil, err
	}
	return made, made.Check()
}

// agent returns the agent that the flags describe.
func (a *agentFlags) agent() (*agent.Agent, error) {
	o := a.options
	o.Local = a.hardware.config()
	o.Local.Interval, o.Local.SlowInterval, o.Local.NoPCIeThroughput = a.interval, a.slow, !a.pcie
	o.Local.Expected = a.expect
	o.Local.Cloud = !a.noCloud && !a.once && a.simulate == ""
	if a.queueSize != "" {
		size, err := parseSize(a.queueSize)
		if err != nil {
			return nil, fmt.Errorf("--queue-size %w", err)
		}
		o.QueueSize = size
	}
	return agent.New(o)
}

// run runs the agent until ctx ends.
func (a *agentFlags) run(ctx context.Context, made *agent.Agent) error {
	if o := &a.options; o.ConfigFile == "" && !o.Receiver && o.Store == nil {
		beGuest(1) // its own ticks and nobody else's: a third less than with four
	}
	hide := &redact.Redactor{}
	log, err := newLogger(a.logLevel, hide)
	if err != nil {
		return err
	}
	return made.Run(ctx, log, hide)
}
