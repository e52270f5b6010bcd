//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// defaultListen is the address of the Prometheus page: reachable from this machine only.
const defaultListen = "localhost:9400"

// agentFlags holds the flags of gpumeter agent. Flags that need no parsing are bound to options.
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
	return &agentFlags{options: agent.Options{Version: version, Env: os.Getenv, Stdout: os.Stdout}, output: "table", pcie: true}
}

func newAgent(version string) *cobra.Command {
	a := newAgentFlags(version)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Read this machine's accelerators and export metrics",
		Long: `Read this machine's accelerators and export metrics.

Without --config the agent serves a Prometheus page at http://` + defaultListen + `/metrics
and sends OTLP to the endpoint set by --otlp-endpoint or OTEL_EXPORTER_OTLP_ENDPOINT.
The configuration file is an OpenTelemetry Collector configuration; gpumeter components
lists the components that the file may use.`,
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
	f.BoolVar(&a.pcie, "pcie-throughput", true, "measure PCIe traffic on NVIDIA GPUs older than Hopper; keeps the driver busy for 40 ms every 30 s")
	f.BoolVar(&a.once, "once", false, "read once, print and exit")
	f.StringVarP(&a.output, "output", "o", "table", "output format of --once: table, json or prometheus")
	f.BoolVar(&a.print, "print-config", false, "print the effective Collector configuration with secrets redacted, and exit")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// Flags rejected together with --config, because the file sets these values.
var (
	readingFlags   = []string{"listen", "interval", "slow-interval", "pcie-throughput", "nvidia-library", "gaudi-library", "neuron-monitor", "root", "host-name", "simulate", "state-dir", "expect", "once"}
	identityFlags  = []string{"cluster", "node-name", "no-cloud"}
	schedulerFlags = []string{"scheduler", "slurm-accounting", "slurm-prometheus"}
	sinkFlags      = []string{"otlp-endpoint", "otlp-protocol", "otlp-header", "otlp-insecure", "otlp-ca", "otlp-cert", "otlp-key", "queue-size", "otlp-file", "otlp-receiver", "otlp-spans"}
	tracingFlags   = []string{"trace", "trace-keep"}
	inferenceFlags = []string{"no-inference", "inference-target", "inference-listen"}
)

// registerShared adds the flags that agent and up share.
func (a *agentFlags) registerShared(cmd *cobra.Command) {
	a.hardware.register(cmd)
	o, f := &a.options, cmd.Flags()
	f.StringVar(&o.Identity.Cluster, "cluster", "", "cluster name, exported as k8s.cluster.name whatever the scheduler")
	f.StringVar(&o.Identity.Node, "node-name", "", "Kubernetes node name, exported as k8s.node.name (default: $K8S_NODE_NAME, else $NODE_NAME)")
	f.BoolVar(&a.noCloud, "no-cloud", false, "do not query the cloud metadata server for region, zone and instance type")
	f.StringVar(&o.Scheduler.Kind, "scheduler", "", "report the jobs and nodes of the whole cluster from its scheduler ("+strings.Join(agent.Schedulers(), ", ")+"); set it on one agent per cluster, or with kubernetes on several, of which one is elected")
	f.BoolVar(&o.Scheduler.Accounting, "slurm-accounting", false, "with --scheduler slurm, send a log record for each finished job")
	f.StringVar(&o.Scheduler.Prometheus, "slurm-prometheus", "", "`URL` of a Prometheus-compatible API that stores the agents' series; accounting reads job usage from it")
	f.BoolVar(&o.Trace, "trace", false, "trace CUDA and NCCL calls with eBPF; needs CAP_BPF and CAP_PERFMON, and CAP_SYS_PTRACE for processes of other users")
	f.StringVar(&o.TraceKeep, "trace-keep", agent.DefaultTraceKeep, "`FOLDER` on a bpf file system in which probes and their counts survive a restart, for 10 minutes; empty: probes end with the agent")
	f.BoolVar(&o.Inference.Off, "no-inference", false, "do not look for inference engines among the processes on the devices")
	f.StringArrayVar(&o.Inference.Targets, "inference-target", nil, "`URL` of the metrics page of an inference engine, such as http://localhost:8000/metrics, besides those that are found; may be repeated")
	f.StringVar(&o.Inference.Listen, "inference-listen", "", "`ADDRESS` at which to serve the queue, the cache and the adapters of the engines, in the names that endpoint pickers of Kubernetes ask for, such as :9402")
	f.DurationVar(&a.interval, "interval", local.DefaultInterval, "time between readings, 100ms to 5m")
	f.DurationVar(&a.slow, "slow-interval", local.DefaultSlowInterval, "time between readings of values that are slow to read or rarely change")
	f.StringVar(&o.Socket, "socket", defaultSocket(), "control socket, to pause the agent and to end tracing; empty disables it")
	f.StringVar(&o.StateDir, "state-dir", defaultState(), "`FOLDER` for state that must survive a restart; empty for none")
	f.BoolVar(&o.NoStandby, "no-standby", false, "read devices even if another agent of this machine does; a store that gets the samples of both has two senders of each device")
	f.IntVar(&a.expect, "expect", 0, "number of devices this machine should have; fewer raise a finding (default: all devices seen since boot)")
	registerLogLevel(cmd, &a.logLevel)
	_ = cmd.RegisterFlagCompletionFunc("scheduler", cobra.FixedCompletions(agent.Schedulers(), cobra.ShellCompDirectiveNoFileComp))
}

// registerSinks adds the flags of sinks other than the page and of sources other than the
// devices.
func (a *agentFlags) registerSinks(cmd *cobra.Command) {
	o, f := &a.options.OTLP, cmd.Flags()
	f.StringVar(&o.Endpoint, "otlp-endpoint", "", "`URL` to send metrics and events to, such as http://localhost:4318 (default: $OTEL_EXPORTER_OTLP_ENDPOINT)")
	f.StringVar(&o.Protocol, "otlp-protocol", "", "http/protobuf, http/json or grpc (default: $OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf)")
	f.StringArrayVar(&o.Headers, "otlp-header", nil, "`KEY=VALUE` sent with each request; may be repeated. Visible in the process list, unlike $OTEL_EXPORTER_OTLP_HEADERS")
	f.BoolVar(&o.Insecure, "otlp-insecure", false, "do not use TLS for an endpoint without http:// or https://")
	f.StringVar(&o.CA, "otlp-ca", "", "`FILE` with the CA certificates to trust, PEM")
	f.StringVar(&o.Cert, "otlp-cert", "", "`FILE` with the client certificate, PEM")
	f.StringVar(&o.Key, "otlp-key", "", "`FILE` with the private key of the certificate, PEM")
	f.StringVar(&a.queueSize, "queue-size", "", "maximum size of the send queue of each signal while the OTLP endpoint is unreachable (default: 256MiB on disk, or 32MiB in memory without a state folder)")
	f.StringVar(&a.options.File, "otlp-file", "", "also write OTLP to `FILE` as JSON lines; - is standard output")
	f.BoolVar(&a.options.Receiver, "otlp-receiver", false, "accept OTLP from applications at localhost:4317 (gRPC) and localhost:4318 (HTTP), and forward it")
	f.StringVar(&a.options.Spans, "otlp-spans", agent.Spans()[0], "with --otlp-receiver, attributes about the GPUs of their process that spans and log records get ("+strings.Join(agent.Spans(), ", ")+")")
	_ = cmd.RegisterFlagCompletionFunc("otlp-protocol", cobra.FixedCompletions(agent.OTLPProtocols(), cobra.ShellCompDirectiveNoFileComp))
}

// prepare rejects flags that would be silently ignored, and builds the agent.
func (a *agentFlags) prepare(cmd *cobra.Command) (*agent.Agent, error) {
	if err := checkOutput(a.output); err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("output") && !a.once {
		return nil, errors.New("--output needs --once")
	}
	for _, flag := range slices.Concat(sinkFlags, schedulerFlags, tracingFlags, inferenceFlags) {
		if a.once && cmd.Flags().Changed(flag) {
			return nil, fmt.Errorf("--%s has no effect with --once, which only prints", flag)
		}
	}
	if a.options.ConfigFile != "" {
		for _, flag := range slices.Concat(readingFlags, identityFlags, schedulerFlags, sinkFlags, tracingFlags, inferenceFlags, workloadFlags) {
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

// agent builds the agent from the flags.
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

// run runs the agent until ctx is canceled.
func (a *agentFlags) run(ctx context.Context, made *agent.Agent) error {
	if o := &a.options; o.ConfigFile == "" && !o.Receiver && o.Store == nil {
		limitRuntime(1) // it processes only its own ticks: one P costs a third less than four
	}
	hide := &redact.Redactor{}
	log, err := newLogger(a.logLevel, hide)
	if err != nil {
		return err
	}
	// A write to a closed pipe returns an error instead of killing the process: the stdout
	// exporter ends the agent in order, and a log that nobody reads does not end it.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	return made.Run(ctx, log, hide)
}
