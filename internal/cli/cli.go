//go:build linux

// Package cli is the gpumeter command, one file a subcommand. It alone reads the
// environment, ends the process and writes to the terminal.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/local"
)

// Main runs the command and returns its exit code: 0, or 1 after one line on standard
// error that says what went wrong. Only check has other codes.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends even a process that hangs in a driver
	beGuest(4)
	root := newRoot(version)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil || errors.Is(err, context.Canceled) {
		return 0
	}
	if e, ok := errors.AsType[exitError](err); ok {
		if e.err != nil {
			fmt.Fprintln(os.Stderr, "gpumeter: "+oneLine(e.err))
		}
		return e.code
	}
	fmt.Fprintln(os.Stderr, "gpumeter: "+oneLine(err))
	return 1
}

// beGuest takes less of the machine than Go would, unless Go's own variables say
// otherwise: the cores and the memory belong to the jobs. For a host of 192 cores the
// runtime would keep memory for each, and wake several threads for what one can do; calls
// into a driver do not count. bench/agent measured what that and half the garbage save.
func beGuest(procs int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(procs, runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// noArgs refuses arguments without repeating them: what follows a header whose quotes
// were forgotten is a secret.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes flags only, and got %d words more: a value with blanks needs quotes", cmd.CommandPath(), len(args))
	}
	return nil
}

func newRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "gpumeter",
		Short: "Whose work is on the GPU, and what does it cost",
		Long: `gpumeter reads the accelerators of this machine, of any vendor, and exports what
they do as OpenTelemetry and Prometheus metrics.

  gpumeter demo      see it work, with or without a GPU
  gpumeter agent     run it for real
  gpumeter doctor    find out what is missing`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(
		newAgent(version), newCheck(), newDemo(version), newDevices(), newDoctor(), newExplain(), newHub(version), newPause(), newReport(), newSlurm(), newTop(), newTrace(), newUp(version),
		newValidate(version), newComponents(version), newVersion(version),
	)
	return root
}

// hardware are the flags of every command that reads devices.
type hardware struct {
	library  string
	root     string
	host     string
	simulate string

	noWorkloads bool
	kubelet     string
	kubeconfig  string
	podLabels   []string
	teamLabel   string
	slurmREST   string
	slurmToken  string
	slurmMaps   string

	gaudiLibrary  string
	neuronMonitor string
}

// workloadFlags are refused with --config.
var workloadFlags = []string{"no-workloads", "kubelet-socket", "kubeconfig", "pod-label", "team-label", "slurm-rest", "slurm-token", "slurm-job-maps"}

func (h *hardware) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&h.library, "nvidia-library", "", "path of libnvidia-ml.so.1 (default: search the usual places)")
	f.StringVar(&h.gaudiLibrary, "gaudi-library", "", "path of libhlml.so (default: search the usual places)")
	f.StringVar(&h.neuronMonitor, "neuron-monitor", "", "`FILE` or socket to which you send what neuron-monitor writes: AWS accelerators have no utilization without")
	f.StringVar(&h.root, "root", "/", "where the host's file system is mounted, in a container")
	f.StringVar(&h.host, "host-name", "", "name of this machine in host.name (default: what the kernel says)")
	f.StringVar(&h.simulate, "simulate", "", "simulate a node of this model instead of reading hardware: "+strings.Join(sim.Models(), ", "))
	f.BoolVar(&h.noWorkloads, "no-workloads", false, "do not find out whose work is on the devices")
	f.StringVar(&h.kubelet, "kubelet-socket", "", "`FILE` of the kubelet's pod-resources socket (default: var/lib/kubelet/pod-resources/kubelet.sock below --root)")
	f.StringVar(&h.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the Kubernetes API (default: as a pod does, if this is one)")
	f.StringArrayVar(&h.podLabels, "pod-label", nil, "`KEY` of a pod label to add to what a pod uses, as k8s.pod.label.KEY; may be repeated")
	f.StringVar(&h.teamLabel, "team-label", local.DefaultTeamLabel, "`KEY` of the pod label that becomes gpu.workload.team")
	f.StringVar(&h.slurmREST, "slurm-rest", "", "`URL` of slurmrestd (default: Slurm's own tools are asked, if this is one of its nodes)")
	f.StringVar(&h.slurmToken, "slurm-token", "", "`FILE` with the token for slurmrestd")
	f.StringVar(&h.slurmMaps, "slurm-job-maps", "", "`FOLDER` in which a prolog writes which job has which GPU")
	_ = cmd.RegisterFlagCompletionFunc("simulate", cobra.FixedCompletions(sim.Models(), cobra.ShellCompDirectiveNoFileComp))
}

// config returns how to read the hardware, at the default intervals.
func (h *hardware) config() local.Config {
	return local.Config{
		Interval:      local.DefaultInterval,
		SlowInterval:  local.DefaultSlowInterval,
		Host:          h.host,
		Root:          h.root,
		NVIDIALibrary: h.library,
		LibraryDirs:   filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), // where a user's loader would look first
		GaudiLibrary:  h.gaudiLibrary,
		NeuronMonitor: h.neuronMonitor,
		Simulate:      h.simulate,
		Workloads: local.Workloads{
			Off: h.noWorkloads, KubeletSocket: h.kubelet, Kubeconfig: h.kubeconfig, PodLabels: h.podLabels, TeamLabel: h.teamLabel,
			Node:  cmp.Or(os.Getenv("K8S_NODE_NAME"), os.Getenv("NODE_NAME")),
			Slurm: local.Slurm{REST: h.slurmREST, RESTToken: h.slurmToken, JobMaps: h.slurmMaps},
		},
	}
}

// oneLine puts an error that was joined or wrapped over several lines on one.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(explain(err)) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

// isTerminal reports whether f is one, where people read.
func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
